#pragma once

/// \file
/// Errors of the CUDA runtime and driver.

#include <cuda_runtime.h>

#include <stdexcept>
#include <string>

namespace mhla::cuda {

/// A call of the CUDA runtime or driver failed: what() names the call and gives CUDA's text.
struct cuda_error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Throws unless the call that returned `status` succeeded. The error is told here, so it is not
/// left for the next that asks CUDA for its last one; errors that a device keeps stay.
/// \param call  how the message names it
inline void expect_success(cudaError_t status, const char* call) {
  if (status == cudaSuccess) return;
  static_cast<void>(cudaGetLastError());
  throw cuda_error(std::string("mhla::cuda: ") + call + " failed: " + cudaGetErrorName(status) +
                   " (" + cudaGetErrorString(status) + ")");
}

}  // namespace mhla::cuda

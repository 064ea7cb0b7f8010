#pragma once

/// \file
/// Errors of the CUDA runtime and driver.

#include <cuda_runtime.h>

#include <stdexcept>
#include <string>

namespace mhla::cuda {

/// Failed call of the CUDA runtime or driver. what() names the call and gives CUDA's text.
struct cuda_error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Throws unless the call that returned `status` succeeded. Clears CUDA's last error, unless the
/// device keeps it.
/// \param call  name of the call in the message
inline void expect_success(cudaError_t status, const char* call) {
  if (status == cudaSuccess) return;
  static_cast<void>(cudaGetLastError());
  throw cuda_error(std::string("mhla::cuda: ") + call + " failed: " + cudaGetErrorName(status) +
                   " (" + cudaGetErrorString(status) + ")");
}

}  // namespace mhla::cuda

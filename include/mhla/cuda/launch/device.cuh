#pragma once

/// \file
/// The current device: its multiprocessors, and the architecture of the program's kernels for it.

#include <cuda_runtime.h>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/launch/error.cuh"
#include "mhla/cuda/launch/problem.cuh"

namespace mhla::cuda::detail {
inline namespace MHLA_CUDA_ARCHS {

/// Never launched. Each compiler pass stores its instruction set here as the maximum block size,
/// and the host reads that attribute. PTX stores it too: code that the driver compiles from PTX of
/// sm_80 has the kernels of sm_80.
template <class>
__global__ void __launch_bounds__(kArch == Arch::kSm90a ? 64 : 32) target_mark() {}

/// The architecture of the code that the program has for the current device.
inline Arch compiled_arch() {
  cudaFuncAttributes attributes{};
  const cudaError_t status = cudaFuncGetAttributes(&attributes, target_mark<void>);
  const bool without_code =
      status == cudaErrorNoKernelImageForDevice || status == cudaErrorInvalidDeviceFunction;
  expect_success(status, without_code ? "cudaFuncGetAttributes (the program is not built for this "
                                        "device's architecture)"
                                      : "cudaFuncGetAttributes");
  return attributes.maxThreadsPerBlock == 64 ? Arch::kSm90a : Arch::kSm80;
}

}  // namespace MHLA_CUDA_ARCHS
}  // namespace mhla::cuda::detail

namespace mhla::cuda {
inline namespace MHLA_CUDA_ARCHS {

/// The current device, for plan(). Synchronises nothing. Kernels are loaded at their first launch.
/// With a driver older than CUDA 12.3, run a call once before it is captured.
/// \throws cuda_error if there is no device, or the program has neither machine code nor PTX for
///         it.
inline Device current_device() {
  int index = 0;
  expect_success(cudaGetDevice(&index), "cudaGetDevice");
  const auto attribute = [index](cudaDeviceAttr which, const char* call) {
    int value = 0;
    expect_success(cudaDeviceGetAttribute(&value, which, index), call);
    return value;
  };
  const int major = attribute(cudaDevAttrComputeCapabilityMajor,
                              "cudaDeviceGetAttribute(cudaDevAttrComputeCapabilityMajor)");
  const int minor = attribute(cudaDevAttrComputeCapabilityMinor,
                              "cudaDeviceGetAttribute(cudaDevAttrComputeCapabilityMinor)");
  return {detail::compiled_arch(),
          attribute(cudaDevAttrMultiProcessorCount,
                    "cudaDeviceGetAttribute(cudaDevAttrMultiProcessorCount)"),
          10 * major + minor, CUDART_VERSION,
          attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin,
                    "cudaDeviceGetAttribute(cudaDevAttrMaxSharedMemoryPerBlockOptin)")};
}

}  // namespace MHLA_CUDA_ARCHS
}  // namespace mhla::cuda

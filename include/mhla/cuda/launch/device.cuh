#pragma once

/// \file
/// The device that runs the kernels: how many multiprocessors it has, and which of the kernels in
/// the program are made for it.

#include <cuda_runtime.h>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/launch/error.cuh"
#include "mhla/cuda/launch/problem.cuh"

namespace mhla::cuda {

namespace detail {

/// Never launched. Each pass of the compiler writes its instruction set into the code it makes, as
/// the largest block.
template <class>
__global__ void __launch_bounds__(kArch == Arch::kSm90a ? 64 : 32) target_mark() {}

}  // namespace detail

/// The current device, as plan() wants it. Loads the program's kernels for it, so call it before a
/// stream is captured. Synchronises nothing.
/// \throws cuda_error where there is no device, or the program has no code for it: it was built for
///         other architectures.
inline Device current_device() {
  int index = 0, multiprocessors = 0;
  expect_success(cudaGetDevice(&index), "cudaGetDevice");
  expect_success(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, index),
                 "cudaDeviceGetAttribute(cudaDevAttrMultiProcessorCount)");
  cudaFuncAttributes attributes{};
  expect_success(cudaFuncGetAttributes(&attributes, detail::target_mark<void>),
                 "cudaFuncGetAttributes (is the program built for this device's architecture?)");
  return {attributes.maxThreadsPerBlock == 64 ? Arch::kSm90a : Arch::kSm80, multiprocessors};
}

}  // namespace mhla::cuda

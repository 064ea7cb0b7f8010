#pragma once

/// \file
/// Launches kernels into a CUDA stream. Nothing here allocates or waits, so a stream may be
/// captured.

#include <cuda_runtime.h>

#include <cstdint>
#include <utility>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/launch/device.cuh"
#include "mhla/cuda/launch/error.cuh"
#include "mhla/cuda/launch/map_cache.cuh"
#include "mhla/cuda/launch/stages.cuh"
#include "mhla/cuda/launch/tensor_map.cuh"
#include "mhla/cuda/ptx/stop.cuh"

namespace mhla::cuda::detail {
inline namespace MHLA_CUDA_ARCHS {

/// Entry point of a kernel. A compiler pass for another instruction set compiles it to a trap.
/// Stream never launches such code.
template <class Kernel>
__global__ void __launch_bounds__(Kernel::kThreads, Kernel::kBlocksPerMultiprocessor)
    run_kernel(const __grid_constant__ typename Kernel::Params parameters) {
  if constexpr (Kernel::kArchitecture == Arch::kSm80 || kArch == Arch::kSm90a) {
    Kernel{}(parameters);
  } else {
    ptx::trap();
  }
}

}  // namespace MHLA_CUDA_ARCHS
}  // namespace mhla::cuda::detail

namespace mhla::cuda {
inline namespace MHLA_CUDA_ARCHS {

/// Cached launch state of a call's kernels: function attributes and tensor maps.
struct LaunchCache {
  bool ready = false;  ///< the program has the kernels, and their shared memory limits are set
  bool skips = false;  ///< the mixing kernel is the one for a pattern
  MapCache maps;

  /// Begins a call with these matrices. With a pattern it has another mixing kernel than without.
  void begin(const MixingArray& mixing) {
    ready = ready && skips == (mixing.strips != nullptr);
    skips = mixing.strips != nullptr;
  }
};

/// Launches the kernels of forms (launch/forms.cuh).
class Stream {
 public:
  /// Begins a call.
  /// \param planned  Architecture of the plan.
  /// \param cache    Launch state of an earlier call of the same kernels, or an empty one.
  /// \throws cuda_error if the program has no code of that architecture for the current device.
  Stream(cudaStream_t stream, Arch planned, LaunchCache& cache)
      : stream_(stream),
        planned_(planned),
        cache_(cache),
        asked_(!cache.ready && planned == Arch::kSm90a) {
    cache_.maps.begin();
    if (asked_ && detail::compiled_arch() != Arch::kSm90a) {
      throw cuda_error(
          "mhla::cuda: the plan is for sm_90a, the program has code of sm_80 for the current "
          "device, expected a plan for current_device()");
    }
  }

  /// Launches a kernel for `pairs` pairs (batch item, head).
  /// \throws cuda_error if it cannot be launched.
  template <class Kernel>
  void run(const typename Kernel::Params& parameters, std::int32_t pairs,
           Start start = Start::kInOrder) const {
    const unsigned blocks = Kernel::grid(parameters, pairs);
    if (blocks == 0) return;
    constexpr auto kernel = detail::run_kernel<Kernel>;
    constexpr int kDefaultLimit = 48 * 1024;
    if (Kernel::kSharedBytes > kDefaultLimit && !cache_.ready) {
      expect_success(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                          Kernel::kSharedBytes),
                     "cudaFuncSetAttribute(cudaFuncAttributeMaxDynamicSharedMemorySize)");
    }
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(blocks);
    config.blockDim = dim3(Kernel::kThreads);
    config.dynamicSmemBytes = Kernel::kSharedBytes;
    config.stream = stream_;
    cudaLaunchAttribute early{};
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    config.attrs = &early;
    config.numAttrs = start == Start::kEarly && planned_ == Arch::kSm90a ? 1 : 0;
    expect_success(cudaLaunchKernelEx(&config, kernel, parameters), "cudaLaunchKernelEx");
  }

  /// Returns the tensor map of a box.
  /// \throws cuda_error if the driver refuses it.
  const TensorMap& tensor_map(const TensorBox& box) const {
    return cache_.maps.map(box, [this](const TensorBox& moved) {
      // The first question of a thread creates the context that the driver needs.
      if (!std::exchange(asked_, true)) detail::compiled_arch();
      return encode(moved);
    });
  }

 private:
  cudaStream_t stream_;
  Arch planned_;
  LaunchCache& cache_;
  mutable bool asked_;  // about code for the device
};

}  // namespace MHLA_CUDA_ARCHS
}  // namespace mhla::cuda

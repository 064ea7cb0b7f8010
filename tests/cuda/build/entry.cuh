#pragma once

/// \file
/// Entry functions of kernels, each with its plan in its name for report_check.cpp to read.
///
///     template struct Entry<Kernel<bfloat16, kWidth, kValueWidth>, kMma | kCopies>;
///
/// A unit is compiled once for each instruction set and each pair of widths (check_unit.cmake).

#include "cuda/build/plan.hpp"
#include "mhla/cuda/arch.cuh"

namespace mhla::cuda::build {

/// The architecture that the unit is compiled for.
inline constexpr Arch kTarget = MHLA_ARCH == 80 ? Arch::kSm80 : Arch::kSm90a;

#if defined(MHLA_WIDTH)
inline constexpr int kWidth = MHLA_WIDTH;             // D
inline constexpr int kValueWidth = MHLA_VALUE_WIDTH;  // E
#endif

/// Registers per thread in the kernel's plan; by default, as many as the launch bounds allow.
template <class K>
constexpr int registers_of() {
  if constexpr (requires { K::kRegisters; }) {
    return K::kRegisters;
  } else {
    return register_limit(K::kThreads, K::kBlocksPerMultiprocessor);
  }
}

/// Bytes of dynamic shared memory, or the largest possible if the kernel asks at run time.
template <class K>
constexpr int shared_bytes_of() {
  if constexpr (requires { K::kSharedBytes; }) {
    return K::kSharedBytes;
  } else {
    return shared_limit(K::kArchitecture) / K::kBlocksPerMultiprocessor / 1024 * 1024 - 1024;
  }
}

/// Entry function of a kernel. Plan (plan.hpp) explains the last template arguments.
template <class K, int kThreads, int kBlocks, int kRegisters, int kSharedBytes, int kNeeds,
          int kFences>
__global__ void __launch_bounds__(kThreads, kBlocks)
    entry(const __grid_constant__ typename K::Params params) {
  K{}(params);
}

/// Instantiates the entry function of a kernel.
template <class K, int kNeeds, int kFences = 0>
struct Entry {
  static_assert(K::kArchitecture == Arch::kSm80 || kTarget == Arch::kSm90a,
                "sm_80 has not the instructions or the shared memory of this kernel");
  static constexpr auto* kFunction =
      &entry<K, K::kThreads, K::kBlocksPerMultiprocessor, registers_of<K>(), shared_bytes_of<K>(),
             kNeeds, kFences>;
};

}  // namespace mhla::cuda::build

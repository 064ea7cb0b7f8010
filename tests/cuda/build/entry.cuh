#pragma once

/// \file
/// Entry functions of kernels, each with its plan in its name for check_code.py to read.
///
///     template struct Entry<Kernel<bfloat16, kWidth, kValueWidth>, kMma | kCopies>;
///
/// A unit is compiled once for each instruction set and each pair of widths.

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/kernel/occupancy.cuh"

namespace mhla::cuda::build {

/// Instructions of a kernel. A kernel has all instructions that it names, and no others of this
/// list.
enum Needs : int {
  kMma = 1,             ///< mma.sync
  kWgmma = 2,           ///< wgmma
  kMatrices = 4,        ///< ldmatrix
  kCopies = 8,          ///< cp.async
  kTensorLoads = 16,    ///< cp.async.bulk.tensor to shared memory, counted by mbarriers
  kWaits = 32,          ///< griddepcontrol.wait; not on sm_80
  kLaunches = 64,       ///< griddepcontrol.launch_dependents; not on sm_80
  kTensorStores = 128,  ///< cp.async.bulk.tensor from shared memory, in groups
  kHints = 256,         ///< cache policies of tensor copies
};

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

/// Entry function of a kernel. The other template arguments are its plan: threads and blocks per
/// multiprocessor, registers per thread, bytes of dynamic shared memory, Needs, and the least
/// number of fence.proxy.async in its PTX.
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

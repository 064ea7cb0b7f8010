#pragma once

/// \file
/// Kernels that the checks must refuse. A case is a functor of whether it is right: refused as it
/// is not, accepted as it is. Its line in the file says what the refusal must say:
///
///     // expect Case: <regex>
///
/// A file is compiled for each case, -DMHLA_CASE=Case -DMHLA_PLANT_Case, and once for all of them
/// as they are right, -DMHLA_CONTROL.

#include <cstdint>
#include <tuple>

#include "cuda/build/entry.cuh"
#include "mhla/cuda/ptx/barrier.cuh"
#include "mhla/cuda/ptx/global.cuh"
#include "mhla/cuda/ptx/index.cuh"
#include "mhla/cuda/ptx/shared.cuh"

namespace mhla::cuda::build {

/// What a case does not say otherwise.
struct Planted {
  struct Params {
    float* data;
    std::uint64_t b;  // a descriptor, or a count
  };
  static constexpr Arch kArchitecture = Arch::kSm80;
  static constexpr int kThreads = 128;
  static constexpr int kBlocksPerMultiprocessor = 2;
  static constexpr int kSharedBytes = 0;
  static constexpr int kNeeds = 0, kFences = 0;
};

/// The thread's numbers lie kThreads apart.
MHLA_DEVICE float* own(const Planted::Params& p) { return p.data + ptx::tid_x(); }

template <class K>
inline constexpr auto* kEntry = Entry<K, K::kNeeds, K::kFences>::kFunction;

}  // namespace mhla::cuda::build

#pragma once

/// \file
/// Kernels that the checks must refuse. A case is a template with a bool: refused if false,
/// accepted if true. Its line in the file gives the text of the refusal:
///
///     // expect Case: <regex>
///
/// A file is compiled once per case, with -DMHLA_CASE=Case -DMHLA_PLANT_Case, and once with
/// -DMHLA_CONTROL for the accepted versions of all cases.

#include <cstdint>
#include <tuple>

#include "cuda/build/entry.cuh"
#include "mhla/cuda/ptx/barrier.cuh"
#include "mhla/cuda/ptx/global.cuh"
#include "mhla/cuda/ptx/index.cuh"
#include "mhla/cuda/ptx/shared.cuh"

namespace mhla::cuda::build {

/// Defaults of a case.
struct Planted {
  struct Params {
    float* data;
    std::uint64_t b;  // a descriptor or a count
  };
  static constexpr Arch kArchitecture = Arch::kSm80;
  static constexpr int kThreads = 128;
  static constexpr int kBlocksPerMultiprocessor = 2;
  static constexpr int kSharedBytes = 0;
  static constexpr int kNeeds = 0, kFences = 0;
};

/// Returns the thread's first number. Numbers of a thread are kThreads apart.
MHLA_DEVICE float* thread_data(const Planted::Params& p) { return p.data + ptx::tid_x(); }

template <class K>
inline constexpr auto* kEntry = Entry<K, K::kNeeds, K::kFences>::kFunction;

}  // namespace mhla::cuda::build

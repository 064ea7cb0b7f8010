#pragma once

/// \file
/// Counters of joined_stages_sm80.cuh in device memory: items that were taken, and for each pair
/// the items of its first two stages that have ended. A kernel of one thread per counter zeroes
/// them.

#include <cstdint>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/ptx/barrier.cuh"
#include "mhla/cuda/ptx/global.cuh"
#include "mhla/cuda/ptx/index.cuh"

namespace mhla::cuda {

struct StageCounters {
  std::uint32_t* begin;
  std::int32_t pairs;

  MHLA_HOST_DEVICE constexpr std::int64_t count() const { return 1 + 2 * std::int64_t{pairs}; }
  MHLA_HOST_DEVICE constexpr std::uint32_t* taken() const { return begin; }
  /// \param stage  0 for summaries, 1 for mixtures
  MHLA_HOST_DEVICE constexpr std::uint32_t* ended(int stage, std::int32_t pair) const {
    return begin + 1 + std::int64_t{stage} * pairs + pair;
  }
};

struct ZeroCountersSm80 {
  using Params = StageCounters;
  static constexpr Arch kArchitecture = Arch::kSm80;
  static constexpr int kThreads = 128;
  static constexpr int kSharedBytes = 0;
  static constexpr int kBlocksPerMultiprocessor = 8;
  static constexpr int kRegisters = 32;

  static constexpr unsigned grid(const Params& p, int) {
    return static_cast<unsigned>((p.count() - 1) / kThreads + 1);
  }

  MHLA_DEVICE void operator()(const Params& p) const {
    ptx::griddepcontrol_launch_dependents();
    const std::int64_t counter = std::int64_t{ptx::ctaid_x()} * kThreads + ptx::tid_x();
    if (counter < p.count()) ptx::st_global(p.begin + counter, 0);
  }
};

}  // namespace mhla::cuda

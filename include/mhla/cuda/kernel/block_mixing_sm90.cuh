#pragma once

/// \file
/// Summaries of a pair in the shared memory of a thread block of fused_sm90.cuh, mixed in place.
/// Once all warps have read the mixture of a block, its region takes a summary of the next pair.

#include <cstdint>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/kernel/parameters.cuh"
#include "mhla/cuda/kernel/region_mixing.cuh"
#include "mhla/cuda/kernel/summary_rows.cuh"
#include "mhla/cuda/ptx/barrier.cuh"
#include "mhla/cuda/ptx/mbarrier.cuh"
#include "mhla/cuda/ptx/shared.cuh"

namespace mhla::cuda {

/// \tparam Config  configuration of the kernel
template <class T, class Config>
class BlockMixing {
  using Regions = typename Config::Regions;
  static constexpr int kSteps = (Config::kRegions + 15) / 16;  ///< steps of 16 blocks

 public:
  /// Zeroes shared memory, before the first barrier of all threads.
  static MHLA_DEVICE void prepare_shared(std::uint32_t thread) {
    if (thread < 8) ptx::st_shared_v4(zeros() + thread * 16, {});
  }

  /// \param thread  index among the consumers
  MHLA_DEVICE BlockMixing(const DirectParameters& stage, std::uint32_t thread)
      : stage_(stage),
        rows_(static_cast<std::uint32_t>(stage.query_blocks.blocks())),
        columns_(static_cast<std::uint32_t>(stage.key_blocks.blocks())),
        normalized_(stage.normalization.denominator == Denominator::kKeySum),
        warp_(thread / 32),
        lane_(thread % 32) {}

  /// Barriers of the regions: a phase ends when all warps have read a mixture.
  struct ReadBarriers {
    MHLA_DEVICE void init_barriers(std::uint32_t readers) const {
      for (int i = 0; i < Config::kRegions; ++i) ptx::mbarrier_init(barrier(i), readers);
    }
    static MHLA_DEVICE std::uint32_t barrier(std::int32_t block) {
      return ptx::shared_begin() + Config::kReadBarriers + static_cast<std::uint32_t>(block) * 8;
    }
  };

  /// Stores rows 16 tile.. 16 tile + 15 of the summary of a block.
  MHLA_DEVICE void keep(const SummaryRows<T, Config::D, Config::E>& sums, std::int32_t block,
                        std::uint32_t tile) const {
    const auto b = static_cast<std::uint32_t>(block);
    sums.store(regions().region(b), key_sum(block), tile, stage_.summary_scale, lane_);
  }

  /// Mixes all summaries of a pair. It begins and ends with barriers of the consumers.
  MHLA_DEVICE void mix(BatchHead pair) const {
    const float* const data = stage_.mixing.of(pair).data;
    // Loaded per pair: the other phases need the registers.
    const auto m = load_mixing<T, kSteps>(data, stage_.mixing.stride, rows_, columns_, lane_);
    meet();  // all summaries are stored
    VectorMixing<Config::kConsumers, Config::kRegions, Config::D> key_sums{
        key_sum(0), warp_, lane_, {}};
    if (normalized_) key_sums.mix(data, stage_.mixing.stride, rows_, columns_);
    mix_regions<T, Config::kConsumers>(regions(), m, zeros(), rows_, columns_, warp_, lane_);
    meet();  // all mixtures are stored, and all z are read
    if (normalized_) {
      key_sums.store(rows_);
      meet();
    }
  }

  /// Releases the mixture of a block that the warp has read. All its threads call together.
  MHLA_DEVICE void release(std::int32_t block) const {
    ptx::bar_warp_sync();
    if (lane_ == 0) ptx::mbarrier_arrive(ReadBarriers::barrier(block));
  }
  /// Waits until all warps have released the mixture of a block in the phase of this parity. Phases
  /// alternate from 0 on, and the one before has ended.
  MHLA_DEVICE void wait_until_read(std::int32_t block, std::uint32_t parity) const {
    if (static_cast<std::uint32_t>(block) < rows_) {
      ptx::mbarrier_wait(ReadBarriers::barrier(block), parity);
    }
  }
  /// Waits until all warps have read all mixtures of a pair.
  MHLA_DEVICE void end() const { meet(); }

  /// Mixtures of a block: of its summary, and of its key sum.
  MHLA_DEVICE typename Regions::Region mixture(std::int32_t block) const {
    return regions().region(static_cast<std::uint32_t>(block));
  }
  static MHLA_DEVICE std::uint32_t key_sum(std::int32_t block) {
    return ptx::shared_begin() + Config::kKeySums +
           static_cast<std::uint32_t>(block) * (Config::D * 4);
  }

 private:
  static MHLA_DEVICE Regions regions() { return {ptx::shared_begin() + Config::kSummaries}; }
  static MHLA_DEVICE std::uint32_t zeros() { return ptx::shared_begin() + Config::kZeros; }
  /// Synchronises all consumers.
  static MHLA_DEVICE void meet() { ptx::bar_sync(1, Config::kConsumers * 32); }

  const DirectParameters& stage_;
  std::uint32_t rows_, columns_;  ///< of the mixing matrix
  bool normalized_;
  std::uint32_t warp_, lane_;
};

}  // namespace mhla::cuda

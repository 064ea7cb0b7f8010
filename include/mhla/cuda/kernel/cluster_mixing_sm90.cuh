#pragma once

/// \file
/// Summaries of a pair that the four thread blocks of a cluster keep and mix, each 16 blocks of
/// keys and of queries: what fused_sm90.cuh does with them where there are up to 64. They change
/// places in the same 128 KB of each thread block, by stores to the memory of others:
///
///     as summaries    rows 16 rank.. of S_b for all b, as 16 panels [64 b][8 rows, 8 columns],
///                     where wgmma reads them as the factor B (tile/layout.cuh): numbers of row r,
///                     columns 8 j.. are the piece r % 8 of row b of panel 8 (r / 8) + j
///     as mixtures     S~_i whole for the thread block's own i, as regions
///
///     keep    a warp has 16 rows of S_b, which go to the block that mixes these
///     mix     unit[64 i, 128] = m[64, 64] (A, in registers)  panels[64 b, 128] (B), two panels at
///             a time and 8 for each warpgroup. Warp w has the rows i of block w there, keeps them,
///             rounded, until all blocks have read their panels, and stores them to block w
///     z       every z_b goes to all blocks, which mix those of their own i, in float
///
/// m is rounded to T, as mixing_sm90.cuh has it. Both ways a warp stores to all banks at once, rows
/// of 128 bytes there and of 32 bytes back.
///
/// Blocks meet at barriers in the memory of each (ptx/mbarrier.cuh), four times for a pair. The
/// thread that loads has no part in that, and runs ahead meanwhile. A block that has met all others
/// for the last time can end: none touches its memory again.

#include <cstdint>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/kernel/parameters.cuh"
#include "mhla/cuda/kernel/region_mixing.cuh"
#include "mhla/cuda/kernel/summary_rows.cuh"
#include "mhla/cuda/ptx/barrier.cuh"
#include "mhla/cuda/ptx/convert.cuh"
#include "mhla/cuda/ptx/global.cuh"
#include "mhla/cuda/ptx/index.cuh"
#include "mhla/cuda/ptx/mbarrier.cuh"
#include "mhla/cuda/ptx/shared.cuh"
#include "mhla/cuda/ptx/tensor_copy.cuh"
#include "mhla/cuda/ptx/wgmma.cuh"
#include "mhla/cuda/ptx/words.cuh"
#include "mhla/cuda/tile/layout.cuh"
#include "mhla/cuda/tile/pieces.cuh"
#include "mhla/cuda/tile/token_boxes.cuh"

namespace mhla::cuda {

/// \tparam Config  of the kernel
template <class T, class Config>
class ClusterMixing {
  using Regions = typename Config::Regions;
  static constexpr int kBlocks = Config::kCluster * Config::kRegions;  ///< of the pair, at most
  static constexpr int kSteps = kBlocks / 16;
  static constexpr int kPieces = Config::E / 8;
  using Panel = SharedTile<kBlocks, 64>;
  static constexpr int kPanels = Regions::kBytes / Panel::kBytes;
  static constexpr int kPasses = kPieces / 2;  ///< of a warpgroup, which has 8 rows of S
  static_assert(kBlocks == 64 && kPanels == 2 * kPieces, "two warpgroups have two rows of panels");
  static_assert(Config::D == 64 && Config::kRegions == 2 * Config::kConsumers);

 public:
  /// What threads do before all meet first: the cluster's blocks have begun, and have barriers.
  static MHLA_DEVICE void prepare_shared(const DirectParameters& stage, std::uint32_t thread) {
    if (thread == 0) {
      ptx::mbarrier_init(meeting(), Config::kCluster);
      ptx::mbarrier_init(meeting() + 8, Config::kCluster);
      ptx::fence_mbarrier_init();
    }
    const BlockRange rows = share(stage.query_blocks);
    const std::int32_t columns = stage.key_blocks.blocks();
    MHLA_CUDA_LOOP
    for (auto i = static_cast<std::int32_t>(thread); i < Config::kRegions * kBlocks;
         i += Config::kThreads) {
      const std::int32_t row = i / kBlocks, b = i % kBlocks;
      const bool counts = row < rows.count() && b < columns;
      ptx::st_shared_f32(
          mixing(0) + static_cast<std::uint32_t>(i) * 4,
          counts ? ptx::ld_global_nc_f32(stage.mixing.row(rows.begin + row) + b) : 0);
    }
    MHLA_CUDA_LOOP
    for (std::int32_t i = columns * Config::D + static_cast<std::int32_t>(thread);
         i < kBlocks * Config::D; i += Config::kThreads) {
      ptx::st_shared_f32(key_sums() + static_cast<std::uint32_t>(i) * 4, 0);
    }
    ptx::barrier_cluster_arrive();
    ptx::barrier_cluster_wait();
  }

  /// \param thread  of the consumers
  MHLA_DEVICE ClusterMixing(const DirectParameters& stage, std::uint32_t thread)
      : stage_(stage),
        thread_(thread),
        warp_(thread / 32),
        lane_(thread % 32),
        row_(lane_ / 4 % 4 * 2 + lane_ / 16) {
    const BlockRange rows = BlockRange::share(
        stage.query_blocks.blocks(), static_cast<std::int32_t>(warp_ % 4), Config::kCluster);
    m_ = load_mixing<T, kSteps, 1>(
        stage.mixing.row(rows.begin), stage.mixing.stride, static_cast<std::uint32_t>(rows.count()),
        static_cast<std::uint32_t>(stage.key_blocks.blocks()), 4 * row_ + lane_ % 4);
  }

  /// The blocks of a pair that the thread block has.
  static MHLA_DEVICE BlockRange share(const TokenBlocks& blocks) {
    return BlockRange::share(blocks.blocks(), static_cast<std::int32_t>(rank()), Config::kCluster);
  }

  /// Begins a pair: zeros where the panels have no summaries.
  MHLA_DEVICE void begin() const {
    const auto columns = static_cast<std::uint32_t>(stage_.key_blocks.blocks());
    MHLA_CUDA_LOOP
    for (std::uint32_t panel = 0; columns < kBlocks && panel < kPanels; ++panel) {
      const std::uint32_t end = memory() + (panel + 1) * Panel::kBytes;
      MHLA_CUDA_LOOP
      for (std::uint32_t at = memory() + panel * Panel::kBytes + columns * 128 + thread_ * 16;
           at < end; at += Config::kConsumers * 32 * 16) {
        ptx::st_shared_v4(at, {});
      }
    }
  }

  /// Takes rows 16 tile.. of the summary of a block.
  MHLA_DEVICE void keep(const SummaryRows<T, Config::D, Config::E>& sums, std::int32_t block,
                        std::uint32_t tile) const {
    const auto b = static_cast<std::uint32_t>(block);
    const float scale = stage_.summary_scale;
    const std::uint32_t to =
        ptx::mapa(memory(), tile) + Panel::offset(b, lane_ / 4) + lane_ % 4 * 4;
    MHLA_CUDA_UNROLL
    for (int j = 0; j < kPieces; ++j) {
      const float(&c)[4] = sums.s[0][j];
      ptx::st_shared_cluster(to + j * Panel::kBytes, ptx::pack<T>(c[0] * scale, c[1] * scale));
      ptx::st_shared_cluster(to + (kPieces + j) * Panel::kBytes,
                             ptx::pack<T>(c[2] * scale, c[3] * scale));
    }
    const std::uint32_t z = ptx::mapa(key_sums(), lane_ % Config::kCluster) +
                            (b * Config::D + 16 * tile + lane_ / 4) * 4;
    ptx::st_shared_cluster_f32(z, sums.z[0][0]);
    ptx::st_shared_cluster_f32(z + 32, sums.z[0][2]);
  }

  /// Mixes, when all are there.
  MHLA_DEVICE void mix() {
    ptx::fence_proxy_async_cluster();
    meet<true>();  // all summaries are there
    if (stage_.normalization.denominator == Denominator::kKeySum) mix_key_sums();
    const std::uint32_t group = ptx::shfl_idx(warp_ / 4, 0);  // ptxas sees: the same in a warp
    std::uint32_t mixtures[kPasses][16][2];
    MHLA_CUDA_UNROLL
    for (int pass = 0; pass < kPasses; ++pass) {
      multiply(block_address(memory()) + (kPieces * group + 2 * pass) * Panel::kBytes,
               mixtures[pass]);
    }
    meet<false>();  // mixtures replace what all have read
    const Regions there{ptx::mapa(memory(), warp_ % 4)};
    std::uint32_t to[kPieces];  // where piece x of the first row goes; of row j piece j ^ x
    MHLA_CUDA_UNROLL
    for (std::uint32_t x = 0; x < kPieces; ++x) {
      to[x] = there.piece(row_, 16 * rank() + 8 * group, x ^ lane_ % 2) + lane_ % 4 / 2 * 8;
    }
    ptx::fence_registers(to);
    MHLA_CUDA_UNROLL
    for (int pass = 0; pass < kPasses; ++pass) {
      MHLA_CUDA_UNROLL
      for (int j = 0; j < 8; ++j) {
        const std::uint32_t at = to[(2 * pass) ^ j] + j * 128;
        const std::uint32_t(&first)[2] = mixtures[pass][j], (&second)[2] = mixtures[pass][8 + j];
        ptx::st_shared_cluster_v2(at, exchange(first[0], second[0]));
        ptx::st_shared_cluster_v2(at + 8 * Regions::kRegionBytes, exchange(first[1], second[1]));
      }
    }
    meet<true>();  // all mixtures are there
  }

  /// The mixture of a block, and of the key sums, counted from the thread block's first.
  MHLA_DEVICE typename Regions::Region mixture(std::int32_t block) const {
    return Regions{memory()}.region(static_cast<std::uint32_t>(block));
  }
  static MHLA_DEVICE std::uint32_t key_sum(std::int32_t block) {
    return key_sums() + (kBlocks + static_cast<std::uint32_t>(block)) * (Config::D * 4);
  }

  /// Ends a pair: all mixtures have been read.
  MHLA_DEVICE void end() { meet<false>(); }

 private:
  static MHLA_DEVICE std::uint32_t memory() { return ptx::shared_begin() + Config::kSummaries; }
  static MHLA_DEVICE std::uint32_t key_sums() { return ptx::shared_begin() + Config::kKeySums; }
  static MHLA_DEVICE std::uint32_t meeting() { return ptx::shared_begin() + Config::kMeeting; }
  /// m of the thread block's own block `i` and all blocks of keys.
  static MHLA_DEVICE std::uint32_t mixing(std::uint32_t i) {
    return key_sums() + Config::kMixing + i * (kBlocks * 4);
  }
  static MHLA_DEVICE std::uint32_t rank() { return ptx::ctaid_x() % Config::kCluster; }

  /// The consumers of all blocks meet, by turns to see what others have stored and when they have
  /// read: at a barrier for each, so that no block that is ahead counts for one that is not there.
  template <bool kStored>
  MHLA_DEVICE void meet() {
    const std::uint32_t own = meeting() + (kStored ? 0 : 8);
    ptx::bar_sync(1, Config::kConsumers * 32);
    // Released to the cluster either way: what others store next, they store over what was read.
    if (thread_ < Config::kCluster) {
      ptx::mbarrier_arrive_release_cluster(ptx::mapa(own, thread_));
    }
    ptx::mbarrier_wait_cluster(own, parity_);
    if (!kStored) parity_ ^= 1;
  }

  /// 64 rows of m times two panels at shared address `panels`, rounded: of rows i and i + 8 of a
  /// warp.
  MHLA_DEVICE void multiply(std::uint32_t panels, std::uint32_t (&mixtures)[16][2]) {
    float sums[16][4];
    MHLA_CUDA_UNROLL
    for (ptx::Words4& step : m_.high[0]) ptx::fence_registers(step.x);
    ptx::fence_registers(sums);
    ptx::wgmma_fence();
    MHLA_CUDA_UNROLL
    for (int s = 0; s < kSteps; ++s) {
      const std::uint64_t b = factor(panels, 16 * s, Panel::kBytes);
      if (s == 0) {
        ptx::wgmma_m64k16<1, 0>(sums, m_.high[0][s].x, b, T{});
      } else {
        ptx::wgmma_m64k16<1>(sums, m_.high[0][s].x, b, T{});
      }
    }
    ptx::wgmma_commit_group();
    ptx::wgmma_wait_group<0>();
    ptx::fence_registers(sums);
    MHLA_CUDA_UNROLL
    for (int j = 0; j < 16; ++j) {
      mixtures[j][0] = ptx::pack<T>(sums[j][0], sums[j][1]);
      mixtures[j][1] = ptx::pack<T>(sums[j][2], sums[j][3]);
    }
  }

  /// Of the words that two threads side by side have of two pieces the even one gets those of the
  /// first piece, the odd one those of the second: 8 bytes each, and 32 of four threads.
  MHLA_DEVICE ptx::Words2 exchange(std::uint32_t first, std::uint32_t second) const {
    const bool odd = lane_ % 2 != 0;
    const float given = as_float(odd ? first : second);
    const auto other = __builtin_bit_cast(std::uint32_t, ptx::shfl_bfly(given, 1));
    return {{odd ? other : first, odd ? second : other}};
  }

  /// Each warp two vectors, a thread two numbers of them.
  MHLA_DEVICE void mix_key_sums() const {
    const auto columns = static_cast<std::uint32_t>(stage_.key_blocks.blocks());
    float sums[2][2] = {};
    MHLA_CUDA_LOOP
    for (std::uint32_t b = 0; b < columns; b += 4) {
      const ptx::Words4 m[2] = {ptx::ld_shared_v4(mixing(2 * warp_) + 4 * b),
                                ptx::ld_shared_v4(mixing(2 * warp_ + 1) + 4 * b)};
      MHLA_CUDA_UNROLL
      for (std::uint32_t k = 0; k < 4; ++k) {
        const std::uint32_t z = key_sums() + ((b + k) * Config::D + lane_) * 4;
        const float x[2] = {ptx::ld_shared_f32(z), ptx::ld_shared_f32(z + 128)};
        MHLA_CUDA_UNROLL
        for (int i = 0; i < 4; ++i) sums[i / 2][i % 2] += as_float(m[i / 2].x[k]) * x[i % 2];
      }
    }
    MHLA_CUDA_UNROLL
    for (int i = 0; i < 4; ++i) {
      const std::uint32_t to = key_sum(static_cast<std::int32_t>(2 * warp_) + i / 2) + lane_ * 4;
      ptx::st_shared_f32(to + i % 2 * 128, sums[i / 2][i % 2]);
    }
  }

  const DirectParameters& stage_;
  std::uint32_t thread_, warp_, lane_;
  /// Of 16 rows the first of a thread's two, in an order in which those of half a warp are stored
  /// to 32 banks.
  std::uint32_t row_;
  MixingOperand<kSteps, 1> m_;
  std::uint32_t parity_ = 0;  ///< of the barriers where blocks meet
};

}  // namespace mhla::cuda

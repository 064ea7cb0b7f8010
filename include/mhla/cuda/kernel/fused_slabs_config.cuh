#pragma once

/// \file
/// Sizes, shared memory and positions of threads of fused_slabs.cuh.

#include <cstdint>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/kernel/parameters.cuh"
#include "mhla/cuda/kernel/widths.cuh"
#include "mhla/cuda/ptx/barrier.cuh"
#include "mhla/cuda/ptx/index.cuh"
#include "mhla/cuda/ptx/shared.cuh"
#include "mhla/cuda/tile/layout.cuh"
#include "mhla/cuda/tile/ring.cuh"
#include "mhla/cuda/tile/token_blocks.cuh"
#include "mhla/cuda/tile/token_boxes.cuh"
#include "mhla/cuda/tile/tokens.cuh"

namespace mhla::cuda {

/// Sizes and shared memory of FusedSlabs.
template <int D, int E>
struct FusedSlabsConfig {
  static_assert(Widths<D, E>::kSlabs, "64 summaries of 16 columns fit into shared memory");
  static constexpr int kRegions = 64;  ///< most blocks
  static constexpr int kColumns = 16;  ///< of a slab
  static constexpr int kSlabs = E / kColumns;
  static constexpr int kRows = 64;  ///< most tokens of a box
  static constexpr int kTeams = 4;
  static constexpr int kTeamWarps = D / 16;
  static constexpr int kWarps = kTeams * kTeamWarps;
  static constexpr int kSteps = kRegions / 16;  ///< steps of 16 blocks
  static_assert(kSteps * kSteps == kWarps, "each warp splits 16 x 16 coefficients");

  using KeyTile = SharedTile<kRows, D>;  ///< also of queries
  using OutputTile = SharedTile<16, kColumns>;
  using Regions = SummaryRegions<kRegions, D, kColumns>;
  static constexpr int kValueBytes = kRows * kColumns * 2;

  // Layout of shared memory, in bytes. Each team has two stages of keys or queries, and of values.
  // The stages of values later hold coefficients, then outputs, in a part for each warp.
  static constexpr int kValues = kTeams * 2 * KeyTile::kBytes;
  static constexpr int kPartBytes = 2 * kValueBytes / kTeamWarps;
  static constexpr int kZeros = kValues + kWarps * kPartBytes;  ///< for absent blocks
  static_assert(kPartBytes >= 1024 && kPartBytes >= OutputTile::kBytes, "a part holds both");
  static constexpr int kSummaries = kZeros + 128;
  static constexpr int kKeySums = kSummaries + Regions::kBytes;
  static constexpr int kBarriers = kKeySums + kRegions * D * 4;
  static constexpr int kBytes = kBarriers + kTeams * 2 * 8;
  static_assert(kBytes <= shared_limit(Arch::kSm90a), "it all fits into shared memory");
};

/// A box of values. Its rows are not swizzled.
template <class Config>
struct SlabValueTile {
  static constexpr int kRowBytes = 2 * Config::kColumns;
  std::uint32_t begin;
  MHLA_HOST_DEVICE constexpr std::uint32_t piece(std::uint32_t row, std::uint32_t piece) const {
    return begin + row * kRowBytes + piece * 16;
  }
};

/// Position of a thread.
template <int D, int E>
struct FusedSlabsTile {
  using Config = FusedSlabsConfig<D, E>;
  using KeyTile = typename Config::KeyTile;
  using ValueTile = SlabValueTile<Config>;

  BatchHead pair;
  std::int32_t column;  ///< first column of the slab
  std::uint32_t shared;
  std::uint32_t thread;
  std::uint32_t lane;
  std::uint32_t warp;
  std::uint32_t team;
  std::uint32_t tile;  ///< 16 rows of S_b, and of a box of queries

  MHLA_DEVICE KeyTile keys(RingCursor slot) const {
    return {shared + (2 * team + slot.slot) * KeyTile::kBytes};
  }
  MHLA_DEVICE ValueTile values(RingCursor slot) const {
    return {shared + Config::kValues + (2 * team + slot.slot) * Config::kValueBytes};
  }
  /// A warp's part of the stages of values.
  MHLA_DEVICE std::uint32_t part(std::uint32_t of_warp) const {
    return shared + Config::kValues + of_warp * Config::kPartBytes;
  }
  MHLA_DEVICE std::uint32_t full(RingCursor slot) const {
    return shared + Config::kBarriers + (2 * team + slot.slot) * 8;
  }
  MHLA_DEVICE std::uint32_t key_sum(std::uint32_t block) const {
    return shared + Config::kKeySums + block * (D * 4);
  }
  /// True for the thread of the team that loads.
  MHLA_DEVICE bool is_leader() const { return tile == 0 && lane == 0; }
  /// Synchronises the team.
  MHLA_DEVICE void sync() const { ptx::bar_sync(1 + team, 32 * Config::kTeamWarps); }
  MHLA_DEVICE typename Config::Regions regions() const { return {shared + Config::kSummaries}; }

  static MHLA_DEVICE FusedSlabsTile of_thread(const DirectParameters& p) {
    const std::uint32_t thread = ptx::tid_x(), item = ptx::ctaid_x();
    const std::uint32_t slab = item % Config::kSlabs;
    return {batch_head(static_cast<std::int32_t>(item / Config::kSlabs), p.heads),
            static_cast<std::int32_t>(slab * Config::kColumns),
            ptx::shared_begin(),
            thread,
            thread % 32,
            thread / 32,
            thread / 32 / Config::kTeamWarps,
            thread / 32 % Config::kTeamWarps};
  }
};

/// The next box of a team's blocks, for the thread that loads.
template <class Config>
struct FusedSlabsCursor {
  const TokenBlocks& blocks;
  const TokenBoxes& boxes;
  std::int32_t block;
  std::int32_t box = 0;
  BlockOrigin origin;

  MHLA_DEVICE FusedSlabsCursor(const TokenBlocks& all, const TokenBoxes& cut, std::uint32_t team)
      : blocks(all),
        boxes(cut),
        block(static_cast<std::int32_t>(team)),
        origin(all.origin(block)) {}

  /// If there is a box, the `leader` calls load(first token), and its cursor advances.
  template <class Load>
  MHLA_DEVICE void next(bool leader, const Load& load) {
    if (!leader || block >= blocks.blocks()) return;
    load(boxes.first_token(origin, box));
    if (++box < boxes.count()) return;
    box = 0;
    block += Config::kTeams;
    origin = blocks.origin(block);
  }
};

}  // namespace mhla::cuda

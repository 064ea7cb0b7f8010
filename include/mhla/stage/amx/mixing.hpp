#pragma once

/// \file
/// Stage 4 of 5 on AMX: the mixtures of a group of query blocks,
///
///     S~_i = sum_b m_ib S_b     [D,E]
///
/// coefficients and summaries as high + low, sums in fp32. Mixtures are kept as high + low, as
/// right operand of the read-out: a tile has 32 features and 16 values. z~ is mixing.hpp's.
///
/// Coefficients outside a band are zeros that are multiplied, up to whole steps of 32 blocks around
/// what a group of rows reads: summaries have to be finite. Steps count from block 0, so that bits
/// do not depend on the group.
/// Cost: 3 * 2*M*M*D*E flops on the unit, or with a band of w coefficients a row 3 *
/// 2*M*(w+48)*D*E.

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "mhla/core/arch.hpp"
#include "mhla/core/workspace.hpp"
#include "mhla/stage/amx/bfloat16_pair.hpp"
#include "mhla/stage/amx/product.hpp"
#include "mhla/stage/amx/summary.hpp"
#include "mhla/stage/amx/tiles.hpp"
#include "mhla/stage/mixing.hpp"

namespace mhla {
inline namespace MHLA_TARGET {
namespace detail {

/// The mixtures of one group of query blocks, and room for its coefficients.
struct TiledMixtures {
  TiledSizes sizes{};
  Index steps = 0;                 ///< of the key blocks
  float* row = nullptr;            ///< [padded M] one row of m
  Pair* coefficients = nullptr;    ///< split tiles [group/16, steps]
  Pair* tiles = nullptr;           ///< split tiles [group, tile]
  Index block_stride = 0;          ///< from one mixture to the next
  std::uint8_t* finite = nullptr;  ///< [group] whether all numbers of a mixture are
  Pair* queries = nullptr;         ///< split tiles [strip/16, feature steps] of the read-out

  TiledMixtures(const char* function, Arena& arena, Index group, const TiledSummaries& s)
      : sizes(s.sizes),
        steps(s.steps()),
        row(arena.take<float>(function, {steps, kUnitDepth})),
        coefficients(arena.take<Pair>(function, {group / kUnitRows, steps, kSplitPairs})),
        block_stride(unaliased_stride<Pair>(
            checked_product(function, "workspace", {s.sizes.tiles(), kSplitPairs}))) {
    tiles = arena.take<Pair>(function, {group, block_stride});
    finite = arena.take<std::uint8_t>(function, group);
    queries =
        arena.take<Pair>(function, {kStripTokens / kUnitRows, sizes.feature_steps(), kSplitPairs});
  }

  Pair* block(Index g) const { return tiles + g * block_stride; }  ///< S~ [tile]
};

/// Packs rows [begin, end) of m as left operand.
/// \return the columns that any of them reads, in whole steps
inline ColumnSpan pack_coefficients(MixingView<const float> m, Index begin, Index end, Index blocks,
                                    const TiledMixtures& mixtures) {
  const Index steps = mixtures.steps;
  ColumnSpan any{steps, 0};
  for (Index g = 0; g < round_up(end - begin, kUnitRows); ++g) {
    std::fill_n(mixtures.row, steps * kUnitDepth, 0.0f);
    if (begin + g < end) {
      const Index i = begin + g;
      const ColumnSpan own = readable(m.band(), i, Reach::kAll, blocks);
      std::copy_n(m.row_from_zero(i) + own.begin, own.end - own.begin, mixtures.row + own.begin);
      if (own.begin < own.end) {
        any = {std::min(any.begin, own.begin / kUnitDepth),
               std::max(any.end, (own.end + kUnitDepth - 1) / kUnitDepth)};
      }
    }
    for (Index k = 0; k < steps; ++k) {
      pack_row(mixtures.row + k * kUnitDepth, kUnitDepth,
               mixtures.coefficients + (g / kUnitRows * steps + k) * kSplitPairs, g % kUnitRows);
    }
  }
  return any;
}

/// Writes S~_i for the query blocks of a group. Summaries and coefficients must be finite.
inline void mix(const MixingGroup<float>& group, const TiledSummaries& s,
                const TiledMixtures& mixtures) {
  const Index rows = group.rows(), begin = group.begin();
  const ColumnSpan span =
      pack_coefficients(group.matrix(), begin, begin + rows, s.blocks, mixtures);
  const Index depth = std::max<Index>(span.end - span.begin, 0);
  const Index first = depth > 0 ? span.begin : 0;
  std::fill_n(mixtures.finite, rows, std::uint8_t{1});
  alignas(kBufferAlignment) float sums[2 * kUnitRows * kUnitColumns];
  const TileScope tiles;
  for (Index t = 0; t < s.sizes.tiles(); ++t) {
    for (Index p = 0; p < kPairs; ++p) {  // features p and p + 16 of the tile
      const TileOperand summaries{s.tile(first, t, p), kPairs * kSplitPairs, s.step_stride, true};
      for (Index g = 0; g < rows; g += 2 * kUnitRows) {
        const Index count = std::min(rows - g, 2 * kUnitRows);
        const TileOperand coefficients{
            mixtures.coefficients + (g / kUnitRows * mixtures.steps + first) * kSplitPairs,
            mixtures.steps * kSplitPairs, kSplitPairs, true};
        multiply_tiles(Start::kZero, sums, kUnitColumns, coefficients, summaries,
                       (count + kUnitRows - 1) / kUnitRows, 2, depth);
        for (Index r = 0; r < count; ++r) {
          const float* const row = sums + r * kUnitColumns;
          Pair* const pairs = mixtures.block(g + r) + t * kSplitPairs + p * kPairs;
          split_pairs(row, row + kPairs, pairs, pairs + kTilePairs);
          if (!all_finite(row, kUnitColumns)) mixtures.finite[g + r] = 0;
        }
      }
    }
  }
}

}  // namespace detail
}  // namespace MHLA_TARGET
}  // namespace mhla

#pragma once

/// \file
/// Stage 4 of 5 on AMX: the mixtures of a group of query blocks,
///
///     S~_i = sum_b m_ib S_b     [D,E]
///
/// Coefficients and summaries are high + low, sums are fp32. Mixtures are kept as high + low,
/// packed as right operand of the read-out: a tile has 32 features and 16 values. For z~ see
/// mixing.hpp.
///
/// The depth goes in steps of 32 blocks from block 0 on, so bits do not depend on the group. A step
/// multiplies coefficients outside the band as zeros, so summaries must be finite.
/// Cost: 3 * 2*M*M*D*E flops on the unit, or 3 * 2*M*(w+48)*D*E with w coefficients per row.

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "mhla/core/arch.hpp"
#include "mhla/core/workspace.hpp"
#include "mhla/stage/amx/bf16_split.hpp"
#include "mhla/stage/amx/product.hpp"
#include "mhla/stage/amx/summary.hpp"
#include "mhla/stage/amx/tiles.hpp"
#include "mhla/stage/mixing.hpp"

namespace mhla {
inline namespace MHLA_TARGET {
namespace detail {

/// The mixtures of one group of query blocks, and scratch for its coefficients.
struct AmxMixtures {
  AmxSizes sizes{};
  Index steps = 0;                 ///< of the key blocks
  float* row = nullptr;            ///< [padded M] one row of m
  Bf16x2* coefficients = nullptr;  ///< tile pairs [group/16, steps]
  Bf16x2* tiles = nullptr;         ///< tile pairs [group, tile]
  Index block_stride = 0;          ///< from one mixture to the next
  std::uint8_t* finite = nullptr;  ///< [group] true if a mixture is finite
  Bf16x2* queries = nullptr;       ///< tile pairs [strip/16, feature steps] of the read-out

  AmxMixtures(const char* function, Arena& arena, Index group, const AmxSummaries& s)
      : sizes(s.sizes),
        steps(s.steps()),
        row(arena.take<float>(function, {steps, kStepDepth})),
        coefficients(arena.take<Bf16x2>(function, {group / kTileRows, steps, kTilePairSize})),
        block_stride(unaliased_stride<Bf16x2>(
            checked_product(function, "workspace", {s.sizes.tiles(), kTilePairSize}))) {
    tiles = arena.take<Bf16x2>(function, {group, block_stride});
    finite = arena.take<std::uint8_t>(function, group);
    queries = arena.take<Bf16x2>(function,
                                 {kStripTokens / kTileRows, sizes.feature_steps(), kTilePairSize});
  }

  Bf16x2* block(Index g) const { return tiles + g * block_stride; }  ///< S~ [tile]
};

/// Packs rows [begin, end) of m as left operand.
/// \return the columns that any of these rows reads, in whole steps
inline ColumnSpan pack_coefficients(MixingView<const float> m, Index begin, Index end, Index blocks,
                                    const AmxMixtures& mixtures) {
  const Index steps = mixtures.steps;
  ColumnSpan any{steps, 0};
  for (Index g = 0; g < round_up(end - begin, kTileRows); ++g) {
    std::fill_n(mixtures.row, steps * kStepDepth, 0.0f);
    if (begin + g < end) {
      const Index i = begin + g;
      const ColumnSpan span = readable(m.pattern(), i, Reach::kAll, blocks);
      std::copy_n(m.row_from_zero(i) + span.begin, span.end - span.begin,
                  mixtures.row + span.begin);
      if (span.begin < span.end) {
        any = {std::min(any.begin, span.begin / kStepDepth),
               std::max(any.end, ceil_div(span.end, kStepDepth))};
      }
    }
    for (Index k = 0; k < steps; ++k) {
      pack_row(mixtures.row + k * kStepDepth, kStepDepth,
               mixtures.coefficients + (g / kTileRows * steps + k) * kTilePairSize, g % kTileRows);
    }
  }
  return any;
}

/// Writes S~_i for the query blocks of a group. Summaries and coefficients must be finite.
inline void mix(const MixingGroup<float>& group, const AmxSummaries& s,
                const AmxMixtures& mixtures) {
  const Index rows = group.rows(), begin = group.begin();
  const ColumnSpan span =
      pack_coefficients(group.matrix(), begin, begin + rows, s.blocks, mixtures);
  const Index depth = std::max<Index>(span.end - span.begin, 0);
  const Index first = depth > 0 ? span.begin : 0;
  std::fill_n(mixtures.finite, rows, std::uint8_t{1});
  alignas(kBufferAlignment) float sums[2 * kTileRows * kProductColumns];
  const TileScope tiles;
  for (Index t = 0; t < s.sizes.tiles(); ++t) {
    for (Index p = 0; p < kTileColumns; ++p) {  // features p and p + 16 of the tile
      const TileOperand summaries{s.tile(first, t, p), kTileColumns * kTilePairSize, s.step_stride,
                                  true};
      for (Index g = 0; g < rows; g += 2 * kTileRows) {
        const Index count = std::min(rows - g, 2 * kTileRows);
        const TileOperand coefficients{
            mixtures.coefficients + (g / kTileRows * mixtures.steps + first) * kTilePairSize,
            mixtures.steps * kTilePairSize, kTilePairSize, true};
        multiply_tiles(Start::kZero, sums, kProductColumns, coefficients, summaries,
                       ceil_div(count, kTileRows), 2, depth);
        for (Index r = 0; r < count; ++r) {
          const float* const row = sums + r * kProductColumns;
          Bf16x2* const high = mixtures.block(g + r) + t * kTilePairSize + p * kTileColumns;
          split_row(row, row + kTileColumns, high, high + kTileSize);
          if (!all_finite(row, kProductColumns)) mixtures.finite[g + r] = 0;
        }
      }
    }
  }
}

}  // namespace detail
}  // namespace MHLA_TARGET
}  // namespace mhla

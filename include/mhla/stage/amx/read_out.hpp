#pragma once

/// \file
/// Stage 5 of 5 on AMX: every query reads its block's mixture,
///
///     o_t = phi(q_t)^T S~_i / den_t     [E],   t in block i
///
/// Queries and mixtures are high + low, sums are fp32. Division and rounding are those of
/// read_out.hpp. A query or a mixture that is not finite is read out in fp32, element by element.
/// Cost: 3 * 2*N*D*E flops on the unit, two thirds of it if phi(q) are bfloat16 numbers.

#include <algorithm>

#include "mhla/core/arch.hpp"
#include "mhla/core/workspace.hpp"
#include "mhla/kernel/packet.hpp"
#include "mhla/stage/amx/bf16_split.hpp"
#include "mhla/stage/amx/mixing.hpp"
#include "mhla/stage/amx/product.hpp"
#include "mhla/stage/amx/tiles.hpp"
#include "mhla/stage/denominator.hpp"
#include "mhla/stage/read_out.hpp"
#include "mhla/tokens/strip.hpp"

namespace mhla {
inline namespace MHLA_TARGET {
namespace detail {

/// Packs rows [0, count) of phi(q).
/// \return 0 if all low parts are 0.
inline Bf16x2 pack_queries(Rows<float> queries, Index count, const AmxSizes& n, Bf16x2* packed) {
  Bf16x2 low = 0;
  for (Index s = 0; s < round_up(count, kTileRows); ++s) {
    for (Index f = 0; f < n.feature_steps(); ++f) {
      const Index d = f * kStepDepth;
      low |=
          pack_row(queries.row(std::min(s, count - 1)) + d,
                   s < count ? std::min(kStepDepth, n.features - d) : 0,
                   packed + (s / kTileRows * n.feature_steps() + f) * kTilePairSize, s % kTileRows);
    }
  }
  return low;
}

/// Writes one output row, with one chain over the features per number.           // [E]
inline void read_row(const float* query, const Bf16x2* mixture, const AmxSizes& n, float* output) {
  std::fill_n(output, n.values, 0.0f);
  for (Index d = 0; d < n.features; ++d) {
    for (Index e = 0; e < n.values; ++e) {
      const Index t = d / kStepDepth * n.value_tiles() + e / kTileColumns;
      const Bf16x2* const high =
          mixture + t * kTilePairSize + d % kTileColumns * kTileColumns + e % kTileColumns;
      const Float32x2 x = joined(high[0], high[kTileSize]);
      output[e] =
          multiply_add(query[d], d % kStepDepth < kTileColumns ? x.first : x.second, output[e]);
    }
  }
}

/// outputs = queries * S~ for mixture g of a group.                            // [count, E]
inline void read_mixture(Rows<float> queries, Index count, const AmxMixtures& mixtures, Index g,
                         Rows<float> outputs) {
  const AmxSizes& n = mixtures.sizes;
  if (mixtures.finite[g] != 0) {
    const Bf16x2 low = pack_queries(queries, count, n, mixtures.queries);
    const TileScope tiles;
    multiply_tiles(Start::kZero, outputs.data, outputs.stride,
                   {mixtures.queries, n.feature_steps() * kTilePairSize, kTilePairSize, low != 0},
                   {mixtures.block(g), kTilePairSize, n.value_tiles() * kTilePairSize, true},
                   ceil_div(count, kTileRows), n.value_tiles(), n.feature_steps());
  }
  for (Index s = 0; s < count; ++s) {
    if (mixtures.finite[g] != 0 && all_finite(queries.row(s), n.features)) continue;
    read_row(queries.row(s), mixtures.block(g), n, outputs.row(s));
  }
}

/// Writes rows tokens[0..count) of out = queries * S~ / denominators. Outputs in `scratch` are
/// padded to whole tiles.
inline void write_mixture(const QueryScratch<float>& scratch, const Index* tokens, Index count,
                          const AmxMixtures& mixtures, Index g, Prefetch& next,
                          MatrixView<Eigen::bfloat16> out) {
  next.finish();
  read_mixture(scratch.queries, count, mixtures, g, scratch.outputs);
  divide_rows(scratch.outputs, count, out.cols, scratch.denominators, scratch.factors);
  scatter(scratch.outputs, tokens, count, out);
}

}  // namespace detail
}  // namespace MHLA_TARGET
}  // namespace mhla

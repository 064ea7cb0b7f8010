#pragma once

/// \file
/// Stage 3 of 5 on AMX: the summaries of bfloat16 values,
///
///     S_b = sum_{t in b} phi(k_t) v_t^T     [D,E]
///
/// phi(k) is high + low, v exact, sums are fp32. Key sums are those of summary.hpp. D and E are
/// padded with zeros to whole products of 32. Summaries are kept as high + low, packed as the right
/// operand of mixing. A tile has 32 blocks and 16 columns: the values e..e+15 of one feature.
/// Cost: 2*N*D*E flops on the unit per part of phi(k), M*D*E*4 bytes written.

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "mhla/core/arch.hpp"
#include "mhla/core/workspace.hpp"
#include "mhla/kernel/prefetch.hpp"
#include "mhla/kernel/transpose.hpp"
#include "mhla/stage/amx/bf16_split.hpp"
#include "mhla/stage/amx/product.hpp"
#include "mhla/stage/amx/tiles.hpp"
#include "mhla/stage/summary.hpp"
#include "mhla/tokens/gather.hpp"
#include "mhla/tokens/strip.hpp"

namespace mhla {
inline namespace MHLA_TARGET {
namespace detail {

/// The tiles of a summary or a mixture [D,E]: tile (f, j), number f * value_tiles + j, has features
/// 32f..32f+31 and values 16j..16j+15.
struct AmxSizes {
  Index features;  ///< D
  Index values;    ///< E

  Index feature_steps() const { return ceil_div(features, kStepDepth); }
  Index value_tiles() const { return round_up(values, kProductColumns) / kTileColumns; }
  Index tiles() const { return feature_steps() * value_tiles(); }
  Index padded_features() const { return feature_steps() * kStepDepth; }
  Index padded_values() const { return value_tiles() * kTileColumns; }
};

/// Steps of the depth multiplied at once: 256 tokens. Most blocks then store their sums once, and
/// the operands stay in L2.
inline constexpr Index kChunkSteps = 8;
inline constexpr Index kStripSteps = kStripTokens / kStepDepth;
static_assert(kChunkSteps % kStripSteps == 0 && kStripTokens % kStepDepth == 0);

/// Scratch of one worker that reads keys and values.
struct AmxKeyScratch {
  KeyScratch<float> rows;    ///< without values
  Rows<float> transposed;    ///< [padded D, strip]
  Bf16x2* keys = nullptr;    ///< tile pairs [padded D / 16, kChunkSteps], features by tokens
  Bf16x2* values = nullptr;  ///< tiles [kChunkSteps, value_tiles], tokens by values
  float* sums[2] = {};       ///< two S_b [padded D, padded E]

  AmxKeyScratch() = default;
  /// \param d  features of the keys, or of the denominator's separate keys if more
  AmxKeyScratch(const char* function, Arena& arena, Index raw_size, Index d, Index e)
      : AmxKeyScratch(function, arena, raw_size, d, AmxSizes{d, e}) {}

 private:
  AmxKeyScratch(const char* function, Arena& arena, Index raw_size, Index d, const AmxSizes& n)
      : rows(function, arena, raw_size, d, 0),
        transposed(function, arena, n.padded_features(), kStripTokens),
        keys(arena.take<Bf16x2>(function,
                                {n.padded_features() / kTileRows, kChunkSteps, kTilePairSize})),
        values(arena.take<Bf16x2>(function, {kChunkSteps, n.value_tiles(), kTileSize})) {
    for (float*& s : sums) {
      s = arena.take<float>(function, {n.padded_features(), n.padded_values()});
    }
  }
};

/// All S_b of one head, as right operand of mixing: tile pairs [M/32, tile, feature of the tile].
/// Element p of a tile's column holds blocks p and p + 16, so blocks are summarised in pairs.
struct AmxSummaries {
  Index blocks;  ///< M
  AmxSizes sizes;
  Index step_stride;  ///< from 32 blocks to the next 32
  Bf16x2* tiles;

  AmxSummaries(const char* function, Arena& arena, Index m, Index d, Index e)
      : blocks(m),
        sizes{d, e},
        step_stride(unaliased_stride<Bf16x2>(
            checked_product(function, "workspace", {sizes.tiles(), kStepDepth, kTilePairSize}))),
        tiles(arena.take<Bf16x2>(function, {steps(), step_stride})) {}

  Index steps() const { return ceil_div(blocks, kStepDepth); }
  Index block_pairs() const { return steps() * kTileColumns; }
  static Index first_block(Index pair) {
    return pair / kTileColumns * kStepDepth + pair % kTileColumns;
  }
  static Index second_block(Index pair) { return first_block(pair) + kTileColumns; }
  /// Feature d, 0 <= d < 32, of tile t, for 32 blocks from 32 * step on.
  Bf16x2* tile(Index step, Index t, Index d) const {
    return tiles + step * step_stride + (t * kStepDepth + d) * kTilePairSize;
  }
};

/// Packs phi of a strip's keys in scratch as steps [step, ...) of the left operand.
/// \return 0 if all low parts are 0.
inline Bf16x2 pack_keys(const AmxKeyScratch& scratch, Index count, const AmxSizes& n, Index step) {
  const Index steps = ceil_div(count, kStepDepth);
  const Rows<float>& keys = scratch.rows.keys;
  for (Index s = count; s < steps * kStepDepth; ++s) std::fill_n(keys.row(s), n.features, 0.0f);
  transpose_scaled(1.0f, keys.data, keys.stride, steps * kStepDepth, n.features,
                   scratch.transposed.data, scratch.transposed.stride);
  Bf16x2 low = 0;
  for (Index d = 0; d < n.padded_features(); ++d) {
    Bf16x2* const tiles = scratch.keys + (d / kTileRows * kChunkSteps + step) * kTilePairSize;
    for (Index k = 0; k < steps; ++k) {
      low |= pack_row(scratch.transposed.row(d) + k * kStepDepth, d < n.features ? kStepDepth : 0,
                      tiles + k * kTilePairSize, d % kTileRows);
    }
  }
  return low;
}

/// Packs the values of a strip as steps [step, ...) of the right operand.
inline void pack_values(MatrixView<const Eigen::bfloat16> v, const Index* tokens, Index count,
                        const AmxSizes& n, Index step, Bf16x2* values) {
  const auto bits = [&](Index s, Index e) -> Bf16x2 {  // 0 after the last token and value
    return s < count && e < n.values ? v(tokens[s], e).value : Bf16x2{0};
  };
  for (Index s = 0; s < count; s += kStepDepth, ++step) {
    for (Index p = 0; p < kTileColumns; ++p) {
      for (Index j = 0; j < n.value_tiles(); ++j) {
        Bf16x2* const row = values + (step * n.value_tiles() + j) * kTileSize + p * kTileColumns;
        const Index e = j * kTileColumns;
        if (v.col_stride == 1 && e + kTileColumns <= n.values && s + p + kTileColumns < count) {
          const Eigen::bfloat16* const first = v.row(tokens[s + p]) + e;
          const Eigen::bfloat16* const second = v.row(tokens[s + p + kTileColumns]) + e;
          for (Index i = 0; i < kTileColumns; ++i) {
            row[i] = static_cast<Bf16x2>(first[i].value) | static_cast<Bf16x2>(second[i].value)
                                                               << 16;
          }
        } else {
          for (Index i = 0; i < kTileColumns; ++i) {
            row[i] = bits(s + p, e + i) | bits(s + p + kTileColumns, e + i) << 16;
          }
        }
      }
    }
  }
}

/// S (+)= keys^T values for `steps` packed steps.                  // [padded D, padded E]
inline void accumulate_summary(Start start, const AmxKeyScratch& scratch, bool low, Index steps,
                               const AmxSizes& n, float* summary) {
  const TileScope tiles;
  multiply_tiles(start, summary, n.padded_values(),
                 {scratch.keys, kChunkSteps * kTilePairSize, kTilePairSize, low},
                 {scratch.values, kTileSize, n.value_tiles() * kTileSize, false},
                 n.padded_features() / kTileRows, n.value_tiles(), steps);
}

/// Writes S_b of block b, and z_b of the same keys unless `key_sum` is null.
/// \param summary  [padded D, padded E], zero in the padding
template <Partition P, class Map>
void summarize(MatrixView<const Eigen::bfloat16> k, MatrixView<const Eigen::bfloat16> v,
               const P& blocks, Index b, Mask mask, const Map& map, const AmxKeyScratch& scratch,
               float* summary, float* key_sum) {
  const AmxSizes n{map.features(k.cols), v.cols};
  const Rows<float>& keys = scratch.rows.keys;
  Start start = Start::kZero;
  if (key_sum != nullptr) std::fill_n(key_sum, n.features, 0.0f);
  StripCursor strip(blocks, b, mask);
  bool more = strip.next() > 0;
  do {  // at least once: a block without tokens gets zeros
    Index steps = 0;
    Bf16x2 low = 0;
    while (more && steps < kChunkSteps) {
      Prefetch(1, strip.ahead().tokens, strip.ahead().count, k, v).finish();
      gather_features(k, strip.tokens(), strip.count(), map, scratch.rows.raw, keys);
      if (key_sum != nullptr) accumulate_key_sum(keys, strip.count(), n.features, key_sum);
      low |= pack_keys(scratch, strip.count(), n, steps);
      pack_values(v, strip.tokens(), strip.count(), n, steps, scratch.values);
      steps += ceil_div(strip.count(), kStepDepth);
      more = strip.next() > 0;
    }
    accumulate_summary(start, scratch, low != 0, steps, n, summary);
    start = Start::kTarget;
  } while (more);
}

/// Stores the summaries of two blocks; null for a block past the end.
inline void store_summaries(const float* first, const float* second, Index pair,
                            const AmxSummaries& s) {
  constexpr float kNothing[kTileColumns] = {};
  const Index e = s.sizes.padded_values();
  for (Index d = 0; d < s.sizes.padded_features(); ++d) {
    for (Index j = 0; j < s.sizes.value_tiles(); ++j) {
      const Index t = d / kStepDepth * s.sizes.value_tiles() + j, at = d * e + j * kTileColumns;
      Bf16x2* const row =
          s.tile(pair / kTileColumns, t, d % kStepDepth) + pair % kTileColumns * kTileColumns;
      split_row(first == nullptr ? kNothing : first + at,
                second == nullptr ? kNothing : second + at, row, row + kTileSize);
    }
  }
}

/// Number of summary tasks of one head, of two blocks each.
inline Index summary_tasks(const AmxSummaries& s, const BlockShare& /*whole*/) {
  return s.block_pairs();
}
/// Calls f(b, memory for S_b) for two blocks, and packs both summaries.
template <class F>
void for_each_summary(const AmxSummaries& s, const BlockShare& /*whole*/, Index pair,
                      const AmxKeyScratch& scratch, F&& f) {
  const Index blocks[] = {s.first_block(pair), s.second_block(pair)};
  const float* sums[] = {nullptr, nullptr};
  for (int i = 0; i < 2; ++i) {
    if (blocks[i] >= s.blocks) continue;
    f(blocks[i], scratch.sums[i]);
    sums[i] = scratch.sums[i];
  }
  store_summaries(sums[0], sums[1], pair, s);
}
inline const KeyScratch<float>& row_scratch(const AmxKeyScratch& scratch) { return scratch.rows; }

}  // namespace detail
}  // namespace MHLA_TARGET
}  // namespace mhla

#pragma once

/// \file
/// Stage 3 of 5 on AMX: the summaries of bfloat16 values,
///
///     S_b = sum_{t in b} phi(k_t) v_t^T     [D,E]
///
/// phi(k) as high + low, v exact, sums in fp32; key sums are those of summary.hpp. D and E are
/// padded with zeros to whole products of 32. Summaries are kept as high + low, as right operand of
/// mixing: a tile of it has 32 blocks and 16 columns, the values e..e+15 of one feature.
/// Cost: 2*N*D*E flops on the unit for each part of phi(k), M*D*E*4 bytes written.

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "mhla/core/arch.hpp"
#include "mhla/core/workspace.hpp"
#include "mhla/kernel/prefetch.hpp"
#include "mhla/kernel/transpose.hpp"
#include "mhla/stage/amx/bfloat16_pair.hpp"
#include "mhla/stage/amx/product.hpp"
#include "mhla/stage/amx/tiles.hpp"
#include "mhla/stage/summary.hpp"
#include "mhla/tokens/gather.hpp"
#include "mhla/tokens/strip.hpp"

namespace mhla {
inline namespace MHLA_TARGET {
namespace detail {

/// How a summary or a mixture [D,E] is cut: tile (f, j) has features 32f..32f+31 and values
/// 16j..16j+15; tiles are numbered f * value_tiles + j.
struct TiledSizes {
  Index features;  ///< D
  Index values;    ///< E

  Index feature_steps() const { return (features + kUnitDepth - 1) / kUnitDepth; }
  Index value_tiles() const { return round_up(values, kUnitColumns) / kPairs; }
  Index tiles() const { return feature_steps() * value_tiles(); }
  Index padded_features() const { return feature_steps() * kUnitDepth; }
  Index padded_values() const { return value_tiles() * kPairs; }
};

/// Steps of the depth that are multiplied at once: 256 tokens, so that the sums of most blocks are
/// stored once, and the operands stay in L2.
inline constexpr Index kPanelSteps = 8;
inline constexpr Index kStripSteps = kStripTokens / kUnitDepth;
static_assert(kPanelSteps % kStripSteps == 0 && kStripTokens % kUnitDepth == 0);

/// Scratch of one worker that reads keys and values.
struct TiledKeyScratch {
  KeyScratch<float> rows;  ///< no room for values
  Rows<float> transposed;  ///< [padded D, strip]
  Pair* keys = nullptr;    ///< split tiles [padded D / 16, kPanelSteps], features by tokens
  Pair* values = nullptr;  ///< tiles [kPanelSteps, value_tiles], tokens by values
  float* sums[2] = {};     ///< two S_b [padded D, padded E]

  TiledKeyScratch() = default;
  /// \param d  features of the keys, or of the denominator's own where these are more
  TiledKeyScratch(const char* function, Arena& arena, Index raw_size, Index d, Index e)
      : TiledKeyScratch(function, arena, raw_size, d, TiledSizes{d, e}) {}

 private:
  TiledKeyScratch(const char* function, Arena& arena, Index raw_size, Index d, const TiledSizes& n)
      : rows(function, arena, raw_size, d, 0),
        transposed(function, arena, n.padded_features(), kStripTokens),
        keys(arena.take<Pair>(function,
                              {n.padded_features() / kUnitRows, kPanelSteps, kSplitPairs})),
        values(arena.take<Pair>(function, {kPanelSteps, n.value_tiles(), kTilePairs})) {
    for (float*& s : sums) {
      s = arena.take<float>(function, {n.padded_features(), n.padded_values()});
    }
  }
};

/// All S_b of one head, as right operand of mixing: split tiles [M/32, tile, feature of the tile].
/// Pair p of a tile's column has blocks p and p + 16; blocks are summarised by such pairs.
struct TiledSummaries {
  Index blocks;  ///< M
  TiledSizes sizes;
  Index step_stride;  ///< from one 32 blocks to the next
  Pair* tiles;

  TiledSummaries(const char* function, Arena& arena, Index m, Index d, Index e)
      : blocks(m),
        sizes{d, e},
        step_stride(unaliased_stride<Pair>(
            checked_product(function, "workspace", {sizes.tiles(), kUnitDepth, kSplitPairs}))),
        tiles(arena.take<Pair>(function, {steps(), step_stride})) {}

  Index steps() const { return (blocks + kUnitDepth - 1) / kUnitDepth; }
  Index pairs() const { return steps() * kPairs; }
  static Index first_block(Index pair) { return pair / kPairs * kUnitDepth + pair % kPairs; }
  static Index second_block(Index pair) { return first_block(pair) + kPairs; }
  /// Feature d, 0 <= d < 32, of tile t of blocks 32 * step and on.
  Pair* tile(Index step, Index t, Index d) const {
    return tiles + step * step_stride + (t * kUnitDepth + d) * kSplitPairs;
  }
};

/// Packs phi of a strip's keys, which lie in scratch, as steps [step, ...) of the left operand.
/// \return 0 if all low parts are 0.
inline Pair pack_keys(const TiledKeyScratch& scratch, Index count, const TiledSizes& n,
                      Index step) {
  const Index steps = (count + kUnitDepth - 1) / kUnitDepth;
  const Rows<float>& keys = scratch.rows.keys;
  for (Index s = count; s < steps * kUnitDepth; ++s) std::fill_n(keys.row(s), n.features, 0.0f);
  transpose_scaled(1.0f, keys.data, keys.stride, steps * kUnitDepth, n.features,
                   scratch.transposed.data, scratch.transposed.stride);
  Pair low = 0;
  for (Index d = 0; d < n.padded_features(); ++d) {
    Pair* const tiles = scratch.keys + (d / kUnitRows * kPanelSteps + step) * kSplitPairs;
    for (Index k = 0; k < steps; ++k) {
      low |= pack_row(scratch.transposed.row(d) + k * kUnitDepth, d < n.features ? kUnitDepth : 0,
                      tiles + k * kSplitPairs, d % kUnitRows);
    }
  }
  return low;
}

/// Packs the values of a strip as steps [step, ...) of the right operand.
inline void pack_values(MatrixView<const Eigen::bfloat16> v, const Index* tokens, Index count,
                        const TiledSizes& n, Index step, Pair* values) {
  const auto bits = [&](Index s, Index e) -> Pair {  // 0 behind the last token and the last value
    return s < count && e < n.values ? v(tokens[s], e).value : Pair{0};
  };
  for (Index s = 0; s < count; s += kUnitDepth, ++step) {
    for (Index p = 0; p < kPairs; ++p) {
      for (Index j = 0; j < n.value_tiles(); ++j) {
        Pair* const row = values + (step * n.value_tiles() + j) * kTilePairs + p * kPairs;
        const Index e = j * kPairs;
        if (v.col_stride == 1 && e + kPairs <= n.values && s + p + kPairs < count) {
          const Eigen::bfloat16* const first = v.row(tokens[s + p]) + e;
          const Eigen::bfloat16* const second = v.row(tokens[s + p + kPairs]) + e;
          for (Index i = 0; i < kPairs; ++i) {
            row[i] = static_cast<Pair>(first[i].value) | static_cast<Pair>(second[i].value) << 16;
          }
        } else {
          for (Index i = 0; i < kPairs; ++i) {
            row[i] = bits(s + p, e + i) | bits(s + p + kPairs, e + i) << 16;
          }
        }
      }
    }
  }
}

/// S (+)= keys^T values for `steps` packed steps.                  // [padded D, padded E]
inline void accumulate_summary(Start start, const TiledKeyScratch& scratch, bool low, Index steps,
                               const TiledSizes& n, float* summary) {
  const TileScope tiles;
  multiply_tiles(start, summary, n.padded_values(),
                 {scratch.keys, kPanelSteps * kSplitPairs, kSplitPairs, low},
                 {scratch.values, kTilePairs, n.value_tiles() * kTilePairs, false},
                 n.padded_features() / kUnitRows, n.value_tiles(), steps);
}

/// Writes S_b of block b, and z_b of the same keys unless `key_sum` is null.
/// \param summary  [padded D, padded E], zero where it is padded
template <Partition P, class Map>
void summarize(MatrixView<const Eigen::bfloat16> k, MatrixView<const Eigen::bfloat16> v,
               const P& blocks, Index b, Mask mask, const Map& map, const TiledKeyScratch& scratch,
               float* summary, float* key_sum) {
  const TiledSizes n{map.features(k.cols), v.cols};
  const Rows<float>& keys = scratch.rows.keys;
  Start start = Start::kZero;
  if (key_sum != nullptr) std::fill_n(key_sum, n.features, 0.0f);
  StripCursor strip(blocks, b, mask);
  bool more = strip.next() > 0;
  do {  // at least once: a block without tokens has the summary 0
    Index steps = 0;
    Pair low = 0;
    while (more && steps < kPanelSteps) {
      Prefetch(strip.ahead().tokens, strip.ahead().count, k, v).finish();
      gather_features(k, strip.tokens(), strip.count(), map, scratch.rows.raw, keys);
      if (key_sum != nullptr) accumulate_key_sum(keys, strip.count(), n.features, key_sum);
      low |= pack_keys(scratch, strip.count(), n, steps);
      pack_values(v, strip.tokens(), strip.count(), n, steps, scratch.values);
      steps += (strip.count() + kUnitDepth - 1) / kUnitDepth;
      more = strip.next() > 0;
    }
    accumulate_summary(start, scratch, low != 0, steps, n, summary);
    start = Start::kTarget;
  } while (more);
}

/// Stores the summaries of a pair of blocks; null for a block that is not there.
inline void store_summaries(const float* first, const float* second, Index pair,
                            const TiledSummaries& s) {
  constexpr float kNothing[kPairs] = {};
  const Index e = s.sizes.padded_values();
  for (Index d = 0; d < s.sizes.padded_features(); ++d) {
    for (Index j = 0; j < s.sizes.value_tiles(); ++j) {
      const Index t = d / kUnitDepth * s.sizes.value_tiles() + j, at = d * e + j * kPairs;
      Pair* const row = s.tile(pair / kPairs, t, d % kUnitDepth) + pair % kPairs * kPairs;
      split_pairs(first == nullptr ? kNothing : first + at,
                  second == nullptr ? kNothing : second + at, row, row + kTilePairs);
    }
  }
}

/// Pieces of work that the summaries of one head consist of: pairs of blocks.
inline Index summary_tasks(const TiledSummaries& s) { return s.pairs(); }
/// Calls f(b, where S_b is written) for the blocks of a pair, and packs what it wrote.
template <class F>
void for_each_summary(const TiledSummaries& s, Index pair, const TiledKeyScratch& scratch, F&& f) {
  const Index blocks[] = {s.first_block(pair), s.second_block(pair)};
  const float* sums[] = {nullptr, nullptr};
  for (int i = 0; i < 2; ++i) {
    if (blocks[i] >= s.blocks) continue;
    f(blocks[i], scratch.sums[i]);
    sums[i] = scratch.sums[i];
  }
  store_summaries(sums[0], sums[1], pair, s);
}
inline const KeyScratch<float>& row_scratch(const TiledKeyScratch& scratch) { return scratch.rows; }

}  // namespace detail
}  // namespace MHLA_TARGET
}  // namespace mhla

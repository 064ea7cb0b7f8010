#pragma once

/// \file
/// One head of the bidirectional form on the matrix unit (matrix_unit.hpp): its summaries, and the
/// scratch of its workers. What bidirectional.hpp needs beside the parts of the float form.
///
/// Taken for bfloat16 tensors where all of this holds, and the float form otherwise:
/// - the library is compiled for such a unit, and the system grants its tiles at run time;
/// - D >= 16 and E >= 16: less would be mostly padding, to 32 of each;
/// - all coefficients of the mixing matrix and all summaries are finite. So an infinity or a NaN of
///   a kept token, or an overflow of a summary, gives what the float form gives of it.
/// Which one it is depends on the data of one head alone, never on threads or on the batch.
///
/// Error of the numerator, with A = sum_j |w_j| |v_j| and m = 54 + the steps of the three products,
///
///     (s_1 + s_2 + s_3 + gamma_m (1 + 2^-5)) A + dA   s_1 = 2^-17, s_2 = s_3 = 2^-15, (1 + 2^-7)
///     each
///
/// of summary, mixing and read-out as derived in matrix_unit.hpp. The s are 2^-13.8 together; the
/// output itself is rounded by 2^-8. dA is what is dropped as subnormal: 2^-126 for every number
/// and sum of the three products, times the factors it still meets. Denominators are those of the
/// float form, bit by bit.
///
/// Memory: as the float form with D and E padded to 32, key blocks to 32 and groups to 16.

#include <algorithm>

#include "mhla/attention/head_summaries.hpp"
#include "mhla/attention/operator.hpp"
#include "mhla/core/arch.hpp"
#include "mhla/core/matrix_unit.hpp"
#include "mhla/core/workspace.hpp"
#include "mhla/stage/mixing.hpp"
#include "mhla/stage/normalizer.hpp"
#include "mhla/stage/read_out.hpp"
#include "mhla/stage/tiled_mixing.hpp"
#include "mhla/stage/tiled_read_out.hpp"
#include "mhla/stage/tiled_summary.hpp"

namespace mhla::inline MHLA_TARGET::detail {

/// Smallest D and E that are tiled.
inline constexpr Index kLeastTiled = kPairs;

/// Tensors that the matrix unit may serve.
template <Scalar T>
inline constexpr bool kMayTile = kMatrixUnit&& std::same_as<T, Eigen::bfloat16>;

inline TiledSizes tiled_sizes(const HeadSizes& n) { return {n.features, n.values}; }

/// True if heads of these sizes are tiled where the system grants the tiles.
inline bool worth_tiling(const HeadSizes& n) {
  return n.features >= kLeastTiled && n.values >= kLeastTiled;
}

/// Split tiles of S [M,D,E], and z [M, D or Dz], of one head.
template <Scalar T, class Op>
class TiledHeadSummaries {
  static constexpr bool kKeySums = kUsesKeySums<normalizer_t<Op>>;

 public:
  TiledHeadSummaries(const char* function, Arena& arena, const HeadSizes& sizes, Index blocks)
      : sizes_(sizes),
        tiled_(function, arena, blocks, tiled_sizes(sizes)),
        key_sums_(arena.take<float>(function, {blocks, key_sum_features(sizes)})) {}

  Index blocks() const { return tiled_.blocks; }
  const TiledSummaries& tiled() const { return tiled_; }
  float* key_sum(Index b) const { return key_sums_ + b * key_sum_features(sizes_); }

  /// Writes S_b and z_b of a pair of blocks (TiledSummaries).
  template <Partition P>
  void summarize_pair(const Inputs<T>& in, const P& blocks, Index pair, const Op& op,
                      const TiledKeyScratch& scratch) const {
    const bool own_keys = sizes_.normalizer_features > 0;
    const auto summarized = [&](Index b, float* summary) -> const float* {
      if (b >= tiled_.blocks) return nullptr;
      summarize(in.k, in.v, blocks, b, in.key_mask, op.key_map, scratch, tiled_.sizes, summary,
                kKeySums && !own_keys ? key_sum(b) : nullptr);
      if (kKeySums && own_keys) {
        sum_keys(in.normalizer_k, blocks, b, in.key_mask, op.key_map, scratch.rows, key_sum(b));
      }
      return summary;
    };
    const float* const first = summarized(TiledSummaries::first_block(pair), scratch.sums[0]);
    const float* const second = summarized(TiledSummaries::second_block(pair), scratch.sums[1]);
    store_summaries(first, second, pair, tiled_);
  }

  /// Writes z~_i for the query blocks of a group, for KeySum.
  void mix_group(const MixingGroup<float>& group, const Mixtures<float>& mixtures) const {
    if constexpr (std::same_as<normalizer_t<Op>, KeySum>) {
      mix_key_sums(group, key_sums_, key_sum_features(sizes_), mixtures);
    }
  }

 private:
  HeadSizes sizes_;
  TiledSummaries tiled_;
  float* key_sums_;
};

/// Scratch of one worker.
struct TiledWorker {
  TiledKeyScratch keys;
  QueryScratch<float> queries;
  TiledQueries tiled_queries;
  Mixtures<float> mixtures;  // z~ alone
  TiledMixtures tiled_mixtures;
  float* slot_denominators = nullptr;  // [group, W] of CrossQuery

  TiledWorker(const char* function, Arena& arena, Index query_width, Index key_width,
              const HeadSizes& n, Index group, const TiledSummaries& s, Index slots)
      : keys(function, arena, key_width, std::max(n.features, n.normalizer_features), s.sizes),
        queries(function, arena, query_width, n.features, n.normalizer_features,
                s.sizes.padded_values()),
        tiled_queries(function, arena, s.sizes),
        mixtures(function, arena, group, s.blocks, std::max(n.features, n.normalizer_features), 0),
        tiled_mixtures(function, arena, group, s),
        slot_denominators(arena.take<float>(function, {group, slots})) {}
};

}  // namespace mhla::inline MHLA_TARGET::detail

#pragma once

/// \file
/// The summaries of one head as the forms use them: S_b, and the z_b its normaliser reads.
///
/// z_b is summed from the numerator's keys in the same pass as S_b, or from the denominator's own
/// keys where there are some; a form sees one set of key sums either way.

#include "mhla/attention/operator.hpp"
#include "mhla/core/arch.hpp"
#include "mhla/core/workspace.hpp"
#include "mhla/stage/mixing.hpp"
#include "mhla/stage/normalizer.hpp"
#include "mhla/stage/summary.hpp"

namespace mhla::inline MHLA_TARGET::detail {

/// Features whose sums the normaliser reads: its own keys' or the numerator's.
inline Index key_sum_features(const HeadSizes& n) {
  return n.normalizer_features > 0 ? n.normalizer_features : n.features;
}

/// S [D,M,E] and z [M, D or Dz] of one head.
template <Scalar T, class Op>
class HeadSummaries {
  using A = accumulator_t<T>;
  static constexpr bool kKeySums = kUsesKeySums<normalizer_t<Op>>;

 public:
  HeadSummaries(const char* function, Arena& arena, const HeadSizes& sizes, Index blocks)
      : sizes_(sizes),
        summaries_(function, arena, blocks, sizes.features, sizes.values),
        key_sums_(arena.take<A>(function, {blocks, key_sum_features(sizes)})) {}

  Index blocks() const { return summaries_.blocks; }
  SummaryBlock<A> block(Index b) const { return summaries_.block(b); }
  A* key_sum(Index b) const { return key_sums_ + b * key_sum_features(sizes_); }
  const Summaries<A>& values() const { return summaries_; }  ///< all S_b
  /// All z_b, as rows.
  RightOperand<A> key_sums() const { return {key_sums_, key_sum_features(sizes_)}; }

  /// Writes S_b and z_b.
  template <Partition P>
  void summarize_block(const Inputs<T>& in, const P& blocks, Index b, const Op& op,
                       const KeyScratch<A>& scratch) const {
    summarize_block(in, blocks, b, op, scratch, b);
  }
  /// Writes them to the given place instead of b.
  template <Partition P>
  void summarize_block(const Inputs<T>& in, const P& blocks, Index b, const Op& op,
                       const KeyScratch<A>& scratch, Index place) const {
    const bool own_keys = sizes_.normalizer_features > 0;
    summarize(in.k, in.v, blocks, b, in.key_mask, op.key_map, scratch, block(place),
              kKeySums && !own_keys ? key_sum(place) : nullptr);
    if (kKeySums && own_keys) {
      sum_keys(in.normalizer_k, blocks, b, in.key_mask, op.key_map, scratch, key_sum(place));
    }
  }

  /// Writes S~_i and, for KeySum, z~_i for the query blocks of a group.
  void mix_group(const MixingGroup<A>& group, const Mixtures<A>& mixtures) const {
    mix_values(group, summaries_, mixtures);
    if constexpr (std::same_as<normalizer_t<Op>, KeySum>) {
      mix_key_sums(group, key_sums_, key_sum_features(sizes_), mixtures);
    }
  }

 private:
  HeadSizes sizes_;
  Summaries<A> summaries_;
  A* key_sums_;
};

/// Bytes of the summaries of one head, where a form keeps them.
template <Scalar T, class Op>
std::size_t head_summaries_bytes(const char* function, const Inputs<T>& in, Index blocks,
                                 const Op& op) {
  Arena counting;
  HeadSummaries<T, Op>(function, counting, head_sizes(in, op), blocks);
  return counting.bytes();
}

}  // namespace mhla::inline MHLA_TARGET::detail

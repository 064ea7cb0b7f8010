#pragma once

/// \file
/// Sums that the strips of one causal block read of each other, for its gradient. Queries read sums
/// of earlier keys and values; keys read sums of later queries and gradients.

#include <algorithm>

#include "mhla/attention/causal_block.hpp"
#include "mhla/attention/operator.hpp"
#include "mhla/core/arch.hpp"
#include "mhla/core/workspace.hpp"
#include "mhla/stage/summary.hpp"
#include "mhla/tokens/gather.hpp"
#include "mhla/tokens/strip.hpp"

namespace mhla {
inline namespace MHLA_TARGET {
namespace detail {

/// Sums over strips of 64 kept keys, in memory of one worker: (W/64 - 1)*D*(E+1) numbers.
template <class A>
class StripSums {
 public:
  /// \param longest  tokens of the longest block
  StripSums(const char* function, Arena& arena, const HeadSizes& n, Index longest)
      : n_(n),
        matrices_(function, arena, most(longest) - 1, n.features * n.values),
        key_sums_(function, arena, most(longest) - 1, n.sum_features()),
        ends_(arena.take<Index>(function, most(longest))),
        running_(arena.take<A>(function, {padded(), n.values})),
        running_key_sum_(arena.take<A>(function, n.sum_features())),
        later_(arena.take<A>(function, {padded(), n.values})) {}

  /// Adds up the keys and values before every strip of a block but the first.
  /// \return the number of strips, at least 1
  template <Scalar T, Partition P, class Op>
  Index add_up(const Inputs<T>& in, const P& blocks, Index block, const Op& op,
               const KeyScratch<A>& scratch) const {
    Index s = 0;
    for (StripCursor strip(blocks, block, in.key_mask); strip.next() > 0 && strip.more(); ++s) {
      const Index count = strip.count();
      A* const key_sum = key_sums_.row(s);
      ends_[s] = strip.ahead().places[0];
      if (s == 0) {
        std::fill_n(key_sum, n_.sum_features(), A(0));
      } else {
        std::copy_n(key_sums_.row(s - 1), n_.sum_features(), key_sum);
        std::copy_n(matrices_.row(s - 1), n_.features * n_.values, matrices_.row(s));
      }
      const auto gather_strip = [&](MatrixView<const T> k) {
        gather_features(k, strip.tokens(), count, op.key_map, scratch.raw, scratch.keys);
      };
      if (n_.separate_normalizer()) {
        gather_strip(in.normalizer_k);
        accumulate_key_sum(scratch.keys, count, n_.sum_features(), key_sum);
      }
      gather_strip(in.k);
      if (!n_.separate_normalizer()) {
        accumulate_key_sum(scratch.keys, count, n_.sum_features(), key_sum);
      }
      gather(in.v, strip.tokens(), count, scratch.values);
      accumulate_summary<A>(s == 0 ? Start::kZero : Start::kTarget, scratch.keys, scratch.values,
                            count, n_.features, n_.values, by_slabs(matrices_.row(s)));
    }
    ends_[s] = blocks.block_size(block);
    return s + 1;
  }

  /// Slots [begin, end) of strip s.
  Index begin(Index s) const { return s == 0 ? 0 : ends_[s - 1]; }
  Index end(Index s) const { return ends_[s]; }

  /// Sums of earlier tokens that the queries of strip s read; strip 0 reads `first`.
  CausalSums<A> before(Index s, const CausalSums<A>& first) const {
    if (s == 0) return first;
    const Index size = n_.features * n_.values;
    std::copy_n(first.matrix, size, running_);
    add_scaled<A>(first.weight, matrices_.row(s - 1), running_, size);
    std::copy_n(first.key_sum, n_.sum_features(), running_key_sum_);
    add_scaled<A>(first.weight, key_sums_.row(s - 1), running_key_sum_, n_.sum_features());
    return {first.weight, running_, running_key_sum_};
  }

  /// sum phi(q) dn^T of the queries of later strips [D,E], readable up to padded rows.
  const A* later() const { return later_; }
  Rows<A> later_by_slabs() const { return by_slabs(later_); }
  void copy_later(Rows<A> summary) const {
    for (Index slab = 0, row = 0; row < n_.features; ++slab, row += kTile.slab) {
      std::copy_n(later_by_slabs().row(slab), std::min(kTile.slab, n_.features - row) * n_.values,
                  summary.row(slab));
    }
  }

 private:
  static Index most(Index tokens) { return std::max<Index>(1, ceil_div(tokens, kStripTokens)); }
  Index padded() const { return round_up(n_.features, kRowAlignment); }
  /// A matrix [D,E] as a summary.
  Rows<A> by_slabs(A* matrix) const { return {matrix, kTile.slab * n_.values}; }

  HeadSizes n_;
  Rows<A> matrices_;    // [strips - 1, D*E] of strips 1, 2, ..: sum phi(k) v^T of those before
  Rows<A> key_sums_;    // [strips - 1, Dz] and sum phi(k)
  Index* ends_;         // [strips]
  A* running_;          // R of a strip [D,E], readable up to padded rows
  A* running_key_sum_;  // [Dz]
  A* later_;            // [D,E]
};

}  // namespace detail
}  // namespace MHLA_TARGET
}  // namespace mhla

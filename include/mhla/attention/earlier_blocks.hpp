#pragma once

/// \file
/// What a stream keeps of the blocks before the open one, and how R of a block is mixed from it:
/// with a mixing matrix all summaries; with decaying terms (policy/decay_mixing.hpp) those of two
/// blocks and R running states, however many blocks there were.
///
/// R and z of block i are mixed in two steps: `mix` reads the blocks before i - 1 while block i - 1
/// arrives, `add_last` adds that block; both any numbers at a time.

#include <algorithm>
#include <limits>

#include "mhla/attention/head_summaries.hpp"
#include "mhla/attention/operator.hpp"
#include "mhla/core/arch.hpp"
#include "mhla/core/workspace.hpp"
#include "mhla/kernel/combination.hpp"
#include "mhla/kernel/packet.hpp"
#include "mhla/kernel/product.hpp"
#include "mhla/policy/decay_mixing.hpp"
#include "mhla/policy/mixing_matrix.hpp"
#include "mhla/stage/decay.hpp"
#include "mhla/stage/mixing.hpp"

namespace mhla {
inline namespace MHLA_TARGET {
namespace detail {

/// Calls f(slab, first number in it, begin, end) for the slabs' shares of the numbers [begin, end)
/// of D*E.
template <class F>
void for_each_slab(Index values, Index begin, Index end, F&& f) {
  const Index whole = kTile.slab * values;
  for (Index next; begin < end; begin = next) {
    const Index slab = begin / whole;
    next = std::min(end, (slab + 1) * whole);
    f(slab, begin - slab * whole, begin, next);
  }
}

/// \tparam Mixing  MixingView<const A> or DecayView<const A>
///
///     check(function, mixing)     throws what a stream refuses
///     most_tokens, terms          in blocks of w tokens; R, 0 without
///     own(i)                      m_ii
///     summary(i), key_sum(i)      where S_i and z_i are to be written
///     mix(i, begin, end, r)       writes the numbers [begin, end) of what R [D,E] of block i reads
///                                 of the blocks before i - 1; each number once a block
///     add_last(i, begin, end, r)  adds what they read of block i - 1
///     mix_sums, add_last_sums     the same for z [Dz]
template <class A, class Mixing>
class EarlierBlocks;

template <class A>
class EarlierBlocks<A, MixingView<const A>> {
  using View = MixingView<const A>;

 public:
  static void check(const char* function, const View& mixing) {
    expect_mixing(function, mixing, mixing.rows(), mixing.rows());
  }
  static Index most_tokens(const View& mixing, Index w) {
    return checked_product("Streaming", "capacity", {mixing.rows(), w});
  }
  static Index terms(const View& /*mixing*/) { return 0; }

  EarlierBlocks(const char* function, Arena& arena, const HeadSizes& sizes, const View& mixing)
      : n_(sizes), mixing_(mixing), summaries_(function, arena, sizes, mixing.rows()) {}

  A own(Index i) const { return mixing_(i, i); }
  Rows<A> summary(Index i) const { return summaries_.values().block(i); }
  A* key_sum(Index i) const { return summaries_.key_sum(i); }

  void mix(Index i, Index begin, Index end, A* r) const {
    mix(i, {read_by(i).begin, before_last(i)}, begin, end, Start::kZero, r);
  }
  void add_last(Index i, Index begin, Index end, A* r) const {
    mix(i, {before_last(i), read_by(i).end}, begin, end, Start::kTarget, r);
  }
  void mix_sums(Index i, Index begin, Index end, A* z) const {
    mix_rows(i, {read_by(i).begin, before_last(i)}, summaries_.key_sums().right_of(begin),
             end - begin, Start::kZero, z + begin);
  }
  void add_last_sums(Index i, Index begin, Index end, A* z) const {
    mix_rows(i, {before_last(i), read_by(i).end}, summaries_.key_sums().right_of(begin),
             end - begin, Start::kTarget, z + begin);
  }

 private:
  ColumnSpan read_by(Index i) const {
    if (mixing_.pattern().sparse()) return {0, i};
    return readable(mixing_.pattern(), i, Reach::kEarlier, mixing_.rows());
  }
  /// The end of those before i - 1.
  Index before_last(Index i) const {
    const ColumnSpan all = read_by(i);
    return std::clamp(i - 1, all.begin, all.end);
  }
  /// out [cols] (+)= sum of m_ib rows[b] over the blocks `of`.
  void mix_rows(Index i, ColumnSpan of, Rows<const A> rows, Index cols, Start start, A* out) const {
    if (mixing_.pattern().sparse()) {
      const PatternList list = mixing_.pattern().row(i).between(of.begin, of.end);
      const A* const values = mixing_.storage().data() + list.first;
      return combine_rows<A>({values, list.blocks, list.count}, rows, cols, start, out);
    }
    multiply<A>({.out = {out, 0},
                 .a = {mixing_.row_from_zero(i) + of.begin, 1, of.end - of.begin, 0},
                 .b = rows.below(of.begin),
                 .cols = cols,
                 .start = start});
  }
  void mix(Index i, ColumnSpan of, Index begin, Index end, Start start, A* r) const {
    for_each_slab(n_.values, begin, end, [&](Index slab, Index column, Index from, Index to) {
      mix_rows(i, of, summaries_.values().slab(slab).right_of(column), to - from, start, r + from);
    });
  }

  HeadSizes n_;
  View mixing_;
  HeadSummaries<A> summaries_;
};

template <class A>
class EarlierBlocks<A, DecayView<const A>> {
  using View = DecayView<const A>;

 public:
  static void check(const char* function, const View& mixing) { expect_decay(function, mixing); }
  static Index most_tokens(const View& /*mixing*/, Index /*w*/) {
    return std::numeric_limits<Index>::max();
  }
  static Index terms(const View& mixing) { return mixing.terms(); }

  EarlierBlocks(const char* function, Arena& arena, const HeadSizes& sizes, const View& mixing)
      : n_(sizes),
        mixing_(mixing),
        summaries_(function, arena, sizes, 2),
        states_(function, arena, mixing.terms(),
                checked_product(function, "state", {sizes.features, sizes.values})),
        key_states_(function, arena, mixing.terms(), sizes.sum_features()) {}

  A own(Index /*i*/) const { return decay_coefficient(mixing_, 0); }
  Rows<A> summary(Index i) const { return summaries_.values().block((i + 2) % 2); }
  A* key_sum(Index i) const { return summaries_.key_sum((i + 2) % 2); }

  // Before the first blocks come two of zeros, as memory begins with.
  void mix(Index i, Index begin, Index end, A* r) const {
    for_each_slab(n_.values, begin, end, [&](Index slab, Index column, Index from, Index to) {
      fold_and_mix<A>(mixing_, summary(i - 2).row(slab) + column, states_.right_of(from), to - from,
                      r + from);
    });
  }
  void add_last(Index i, Index begin, Index end, A* r) const {
    const A last = decay_coefficient(mixing_, 1);
    for_each_slab(n_.values, begin, end, [&](Index slab, Index column, Index from, Index to) {
      add_scaled<A>(last, summary(i - 1).row(slab) + column, r + from, to - from);
    });
  }
  void mix_sums(Index i, Index begin, Index end, A* z) const {
    fold_and_mix<A>(mixing_, key_sum(i - 2) + begin, key_states_.right_of(begin), end - begin,
                    z + begin);
  }
  void add_last_sums(Index i, Index begin, Index end, A* z) const {
    add_scaled<A>(decay_coefficient(mixing_, 1), key_sum(i - 1) + begin, z + begin, end - begin);
  }

 private:
  HeadSizes n_;
  View mixing_;
  HeadSummaries<A> summaries_;  // of blocks i - 1 and i - 2, whose place S_i takes
  Rows<A> states_;              // T [R, D*E]
  Rows<A> key_states_;          // T of z [R, Dz]
};

}  // namespace detail
}  // namespace MHLA_TARGET
}  // namespace mhla

#pragma once

/// \file
/// Memory of a stream: the blocks before the open one, and running matrices R and z of later
/// blocks. R and z are mixed while tokens arrive. A mixing matrix needs the summaries of all
/// blocks. Decaying terms (policy/decay_mixing.hpp) need two summaries and one running state per
/// term, for any number of blocks.
///
/// With a matrix, R of g blocks is mixed together. A long sequence has more summaries than a cache
/// holds, and one pass over them serves g blocks. While a group of g blocks arrives, R of the next
/// group takes the blocks that were complete when the group began. The g to 2 g - 2 blocks since
/// then are added to R of a block while the previous block arrives. The last block is added when R
/// is first read (add_last). A block then reads about i/g + 1.5 g summaries instead of i.
/// Every element of R is one chain of multiply-adds, b ascending, for any division of the work.

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
#include "mhla/stage/row_schedule.hpp"

namespace mhla {
inline namespace MHLA_TARGET {
namespace detail {

/// Numbers of R that are mixed together: a few cache lines of a summary.
inline constexpr Index kPiece = 64;

/// g of M blocks: a power of two near sqrt(M/3), where M/(2 g) + 1.5 g is smallest.
inline Index prepared_together(Index blocks) {
  Index g = 1;
  while (6 * g * g < blocks) g *= 2;
  return g;
}

/// \tparam Mixing  MixingView<const A> or DecayView<const A>
///
///     check(function, mixing)     throws what a stream refuses
///     most_tokens, terms          in blocks of w tokens; R, 0 without
///     diagonal(i)                      m_ii
///     summary(i), key_sum(i)      places for S_i and z_i
///     running(i)                  R [D,E] of block i, zeros at first
///     running_key_sum(i)          its z [Dz]
///     prepare(i, from, to, w)     mixes what is due after tokens [from, to) of block i of w: after
///                                 all of them R and z of block i + 1 lack block i alone
///     add_last(i, begin, end)     adds block i - 1 to the numbers [begin, end) of R of block i
///     add_last_sums(i)            the same for z
template <class A, class Mixing>
class EarlierBlocks;

template <class A>
class EarlierBlocks<A, MixingView<const A>> {
  using View = MixingView<const A>;

 public:
  static void check(const char* function, const View& mixing) {
    expect_stream_mixing(function, mixing);
  }
  static Index most_tokens(const View& mixing, Index w) {
    return checked_product("Streaming", "capacity", {mixing.rows(), w});
  }
  static Index terms(const View& /*mixing*/) { return 0; }

  EarlierBlocks(const char* function, Arena& arena, const HeadSizes& sizes, const View& mixing)
      : n_(sizes),
        mixing_(mixing),
        group_(prepared_together(mixing.rows())),
        summaries_(function, arena, sizes, mixing.rows()),
        running_(function, arena, 2 * group_,
                 checked_product(function, "state", {sizes.features, sizes.values})),
        running_key_sums_(function, arena, 2, sizes.sum_features()) {}

  A diagonal(Index i) const { return mixing_(i, i); }
  Rows<A> summary(Index i) const { return summaries_.values().block(i); }
  A* key_sum(Index i) const { return summaries_.key_sum(i); }
  A* running(Index i) const { return running_.row(i % (2 * group_)); }
  A* running_key_sum(Index i) const { return running_key_sums_.row(i % 2); }

  void prepare(Index i, Index from, Index to, Index w) const {
    const Index before = i % group_ * w;
    mix_group(i / group_ * group_ + group_, before + from, before + to, group_ * w);
    mix(i + 1, 1, {in_group(i + 1), before_last(i + 1)}, due(from, to, w, numbers(), kPiece),
        Start::kTarget);
    // Rows of z are short: some blocks a token, each row whole.
    const Index first = read_by(i + 1).begin;
    const ColumnSpan blocks = due(from, to, w, before_last(i + 1) - first, 1);
    mix_rows(i + 1, 1, {first + blocks.begin, first + blocks.end}, summaries_.key_sums(),
             n_.sum_features(), from == 0 ? Start::kZero : Start::kTarget,
             {running_key_sum(i + 1), 0});
  }
  void add_last(Index i, Index begin, Index end) const {
    mix(i, 1, {before_last(i), read_by(i).end}, {begin, end}, Start::kTarget);
  }
  void add_last_sums(Index i) const {
    mix_rows(i, 1, {before_last(i), read_by(i).end}, summaries_.key_sums(), n_.sum_features(),
             Start::kTarget, {running_key_sum(i), 0});
  }

 private:
  Index numbers() const { return n_.features * n_.values; }  // of R
  ColumnSpan read_by(Index i) const {
    if (mixing_.pattern().sparse()) return {0, i};
    return readable(mixing_.pattern(), i, Reach::kEarlier, mixing_.rows());
  }
  /// The end of those before i - 1.
  Index before_last(Index i) const {
    const ColumnSpan all = read_by(i);
    return std::clamp(i - 1, all.begin, all.end);
  }
  /// The end of those that R of block i takes with its group.
  Index in_group(Index i) const {
    return std::clamp(i / group_ * group_ - group_, read_by(i).begin, before_last(i));
  }
  /// Mixes earlier blocks into R of a group of blocks, in pieces of R: the share that is due after
  /// tokens [from, to) of the group before it. `prepare` adds a block's share of a piece later.
  void mix_group(Index first, Index from, Index to, Index tokens) const {
    const Index rows = std::min(group_, mixing_.rows() - first), blocks = first - group_;
    if (rows <= 0 || blocks == 0) return;
    const bool dense = !mixing_.pattern().sparse() && read_by(first + rows - 1).begin == 0;
    const Index together = dense ? rows : 1;
    ColumnSpan left = due(from, to, tokens, ceil_div(numbers(), kPiece) * blocks, 1);
    while (left.begin < left.end) {
      const Index piece = left.begin / blocks * kPiece, begin = left.begin % blocks;
      const Index end = std::min(blocks, begin + left.end - left.begin);
      for (Index i = first; i < first + rows; i += together) {
        ColumnSpan of =
            ColumnSpan::both(ColumnSpan{begin, end}, ColumnSpan{read_by(i).begin, in_group(i)});
        of.end = std::max(of.begin, of.end);
        mix(i, together, of, {piece, std::min(numbers(), piece + kPiece)},
            begin == 0 ? Start::kZero : Start::kTarget);
      }
      left.begin += end - begin;
    }
  }
  /// R [numbers] of `count` blocks from block i on (+)= their mixtures of the blocks `of`. If count
  /// is above 1, all rows of m hold the blocks `of` from column 0 on.
  void mix(Index i, Index count, ColumnSpan of, ColumnSpan numbers, Start start) const {
    if (of.begin == of.end && start == Start::kTarget) return;
    for_each_slab(n_.values, numbers, [&](Index slab, Index column, Index from, Index to) {
      mix_rows(i, count, of, summaries_.values().slab(slab).right_of(column), to - from, start,
               {running(i) + from, running_.stride});
    });
  }
  /// The same from rows [M,cols] to out [count,cols].
  void mix_rows(Index i, Index count, ColumnSpan of, Rows<const A> rows, Index cols, Start start,
                Rows<A> out) const {
    if (mixing_.pattern().sparse()) {
      const PatternList list = mixing_.pattern().row(i).between(of.begin, of.end);
      const A* const values = mixing_.storage().data() + list.first;
      return combine_rows<A>({values, list.blocks, list.count}, rows, cols, start, out.data);
    }
    multiply<A>({.out = out,
                 .a = {mixing_.row_from_zero(i) + of.begin, count, of.end - of.begin,
                       mixing_.pattern().width()},
                 .b = rows.below(of.begin),
                 .cols = cols,
                 .start = start});
  }

  HeadSizes n_;
  View mixing_;
  Index group_;  // g
  HeadSummaries<A> summaries_;
  Rows<A> running_;           // R [2 g, D*E], of the open group and of the next
  Rows<A> running_key_sums_;  // z [2, Dz]
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
        key_states_(function, arena, mixing.terms(), sizes.sum_features()),
        running_(function, arena, 2, states_.stride),
        running_key_sums_(function, arena, 2, sizes.sum_features()) {}

  A diagonal(Index /*i*/) const { return decay_coefficient(mixing_, 0); }
  Rows<A> summary(Index i) const { return summaries_.values().block((i + 2) % 2); }
  A* key_sum(Index i) const { return summaries_.key_sum((i + 2) % 2); }
  A* running(Index i) const { return running_.row(i % 2); }
  A* running_key_sum(Index i) const { return running_key_sums_.row(i % 2); }

  // Before the first blocks come two of zeros, as memory begins with.
  void prepare(Index i, Index from, Index to, Index w) const {
    const ColumnSpan numbers = due(from, to, w, n_.features * n_.values, kPiece);
    for_each_slab(n_.values, numbers, [&](Index slab, Index column, Index begin, Index end) {
      fold_and_mix<A>(mixing_, summary(i - 1).row(slab) + column, states_.right_of(begin),
                      end - begin, running(i + 1) + begin);
    });
    const ColumnSpan sums = due(from, to, w, n_.sum_features(), kRowAlignment);
    fold_and_mix<A>(mixing_, key_sum(i - 1) + sums.begin, key_states_.right_of(sums.begin),
                    sums.end - sums.begin, running_key_sum(i + 1) + sums.begin);
  }
  void add_last(Index i, Index begin, Index end) const {
    const A last = decay_coefficient(mixing_, 1);
    for_each_slab(n_.values, {begin, end}, [&](Index slab, Index column, Index from, Index to) {
      add_scaled<A>(last, summary(i - 1).row(slab) + column, running(i) + from, to - from);
    });
  }
  void add_last_sums(Index i) const {
    add_scaled<A>(decay_coefficient(mixing_, 1), key_sum(i - 1), running_key_sum(i),
                  n_.sum_features());
  }

 private:
  HeadSizes n_;
  View mixing_;
  HeadSummaries<A> summaries_;  // of blocks i - 1 and i - 2, whose place S_i takes
  Rows<A> states_;              // T [R, D*E]
  Rows<A> key_states_;          // T of z [R, Dz]
  Rows<A> running_;             // R [2, D*E]
  Rows<A> running_key_sums_;    // z [2, Dz]
};

}  // namespace detail
}  // namespace MHLA_TARGET
}  // namespace mhla

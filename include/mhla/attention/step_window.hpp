#pragma once

/// \file
/// Summaries that a stream of steps keeps (block_streaming.hpp), as rows of one place per block:
///
///     a dense or sparse matrix    all M blocks
///     a band of lower width L     up to 2 L + 4 n of the newest blocks, for steps of n blocks
///     R decaying terms            T_r = sum_{b < first} lambda_r^(first - b) S_b for every r, then
///                                 S_b of up to 2 n blocks from block `first` on
///
/// Blocks of a band move to the first places when all places are taken.
/// Blocks of one step more than the next one reads stay, so that the last step can be taken back.

#include <algorithm>
#include <limits>

#include "mhla/core/arch.hpp"
#include "mhla/core/workspace.hpp"
#include "mhla/kernel/rows.hpp"
#include "mhla/policy/decay_mixing.hpp"
#include "mhla/policy/mixing_view.hpp"
#include "mhla/policy/partition.hpp"
#include "mhla/stage/decay.hpp"

namespace mhla {
inline namespace MHLA_TARGET {
namespace detail {

/// \tparam Mixing  MixingView<const A> or DecayView<const A>
///
///     places()                         rows of summaries
///     most_blocks()                    that a stream can take
///     most_kept()                      blocks with a summary of their own
///     first_kept(i, first)             the first block that stays when a step at block i comes
///     first_read(i)                    the first block that a step at block i reads
///     queries(i, first)                its rows of coefficients
///     keys(i, first)                   its places
///     advance(rows, cols, i, from, to, scratch)    brings rows of blocks `from` on to `to` on
///     coefficients(i, first, scratch)  the mixing matrix of places for the rows of a step
template <class A, class Mixing>
class StepWindow;

/// Moves rows [from, from + count) to the rows from `to` on, before them.
template <class A>
void move_rows(Rows<A> rows, Index cols, Index from, Index to, Index count) {
  for (Index r = 0; from != to && r < count; ++r) {
    std::copy_n(rows.row(from + r), cols, rows.row(to + r));
  }
}

template <class A>
class StepWindow<A, MixingView<const A>> {
  using View = MixingView<const A>;

 public:
  static void check(const char* function, const View& mixing, Index step) {
    expect_stream_mixing(function, mixing);
    mixing.block_causal(step, function);
  }

  /// For arguments that have passed check. Lists have no later steps, so they stay as they are.
  StepWindow(const View& mixing, Index step)
      : mixing_(mixing.pattern().sparse() ? mixing : mixing.block_causal(step)), step_(step) {
    const Index blocks = mixing.rows();
    places_ = blocks;
    if (mixing.pattern().sparse()) return;
    upper_ = mixing.pattern().last(0) - 1;
    lower_ = blocks - 1 - mixing.pattern().first(blocks - 1);
    const Index kept = (ceil_div(lower_, step) + 1) * step;
    if (2 * kept >= blocks) return;
    kept_ = kept;
    places_ = 2 * kept;
  }

  Index places() const { return places_; }
  Index most_blocks() const { return mixing_.rows(); }
  Index most_kept() const { return places_; }
  Index first_kept(Index i, Index first) const {
    return i + step_ - first <= places_ ? first : i - kept_;
  }
  Index first_read(Index i) const { return kept_ == 0 ? 0 : std::max<Index>(0, i - lower_); }
  BlockShare queries(Index i, Index first) const { return {i - first, step_, places_}; }
  BlockShare keys(Index i, Index first) const { return queries(i, first); }
  Index numbers() const { return kept_ == 0 ? 0 : places_ * band().width(); }

  void advance(Rows<A> rows, Index cols, Index i, Index from, Index to, A* /*scratch*/) const {
    move_rows(rows, cols, to - from, 0, i - to);
  }
  View coefficients(Index i, Index first, A* scratch) const {
    if (kept_ == 0) return mixing_;
    const MixingView<A> window(scratch, band());
    for (Index r = i; r < i + step_; ++r) {
      mixing_.for_each_in_row(r, [&](Index b, A c) { window.at(r - first, b - first) = c; });
    }
    return window;
  }

 private:
  Pattern band() const { return Pattern(places_, places_, lower_, upper_).block_causal(step_); }

  View mixing_;
  Index step_;
  Index lower_ = 0, upper_ = 0;  // of a band
  Index kept_ = 0;               // blocks that stay when others are moved, 0: all
  Index places_ = 0;
};

template <class A>
class StepWindow<A, DecayView<const A>> {
  using View = DecayView<const A>;

 public:
  static void check(const char* function, const View& mixing, Index /*step*/) {
    expect_decay(function, mixing);
  }

  StepWindow(const View& mixing, Index step) : mixing_(mixing), step_(step) {}

  Index places() const { return terms() + 2 * step_; }
  Index most_blocks() const { return std::numeric_limits<Index>::max(); }
  Index most_kept() const { return 2 * step_; }
  Index first_kept(Index i, Index first) const { return std::max(first, i - step_); }
  Index first_read(Index i) const { return i; }
  BlockShare queries(Index /*i*/, Index /*first*/) const { return {0, step_, step_}; }
  BlockShare keys(Index i, Index first) const { return {terms() + i - first, step_, places()}; }
  /// Coefficients, or the mixture of a piece of columns.
  Index numbers() const { return std::max(step_ * places(), kDecayColumns); }

  void advance(Rows<A> rows, Index cols, Index i, Index from, Index to, A* scratch) const {
    for (Index b = from; b < to; ++b) {
      for_each_piece(cols, [&](Index begin, Index count) {
        fold_and_mix<A>(mixing_, rows.row(terms() + b - from) + begin, rows.right_of(begin), count,
                        scratch);
      });
    }
    move_rows(rows, cols, terms() + to - from, terms(), i - to);
  }
  MixingView<const A> coefficients(Index i, Index first, A* scratch) const {
    const MixingView<A> rows(scratch, Pattern(step_, places(), step_, terms() + i - first));
    for (Index r = 0; r < step_; ++r) {
      for (Index t = 0; t < terms(); ++t) {
        rows.at(r, t) = static_cast<A>(decay_term(mixing_, t, i + r - first));
      }
      for (Index b = first; b <= i + r; ++b) {
        rows.at(r, terms() + b - first) = static_cast<A>(decay_sum(mixing_, i + r - b));
      }
    }
    return rows;
  }

 private:
  Index terms() const { return mixing_.terms(); }
  /// Calls f(begin, count) for pieces of columns that fit the scratch.
  template <class F>
  void for_each_piece(Index cols, F&& f) const {
    for (Index begin = 0; begin < cols; begin += numbers()) {
      f(begin, std::min(numbers(), cols - begin));
    }
  }

  View mixing_;
  Index step_;
};

}  // namespace detail
}  // namespace MHLA_TARGET
}  // namespace mhla

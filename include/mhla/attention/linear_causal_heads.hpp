#pragma once

/// \file
/// Heads of causal linear attention: strip by strip, phi of keys and queries, denominators, then
/// the recurrence over the strip's tokens (stage/recurrence.hpp).
///
/// Heads whose rows lie side by side alternate after each strip. The rows of all of them are
/// prefetched for the next strip: memory gives whole rows twice as fast as the same lines per head.
/// On a Zen 3, 4 heads of 64 x 64 take 0.83 to 0.90 times as long.

#include <algorithm>
#include <array>
#include <type_traits>

#include "mhla/attention/heads.hpp"
#include "mhla/attention/operator.hpp"
#include "mhla/core/arch.hpp"
#include "mhla/core/executor.hpp"
#include "mhla/core/workspace.hpp"
#include "mhla/kernel/prefetch.hpp"
#include "mhla/stage/denominator.hpp"
#include "mhla/stage/read_out.hpp"
#include "mhla/stage/recurrence.hpp"
#include "mhla/tokens/gather.hpp"

namespace mhla {
inline namespace MHLA_TARGET {
namespace detail {

/// True if the heads of a token's query lie side by side.
template <Scalar T>
bool side_by_side(const BatchInputs<T>& in) {
  return in.q.strides[2] == in.q.width() && in.q.strides[3] == 1;
}
template <Scalar T>
bool side_by_side(const Inputs<T>& /*in*/) {
  return false;  // one head
}

/// Heads that take turns on a worker: as many as have their S in half of L2, where that leaves no
/// worker more to do than other numbers.
template <class In, class Op>
Index heads_together(const char* function, const In& in, const Op& op, Index workers) {
  const Index all = pairs(function, in);
  if (all <= 1 || !side_by_side(in)) return 1;
  const HeadSizes n = head_sizes(head_inputs(in, 0, 0), op);
  const Index state =
      checked_product(function, "workspace", {n.features, n.values, Index{sizeof(sum_of<In>)}});
  const Index most = std::min(heads(in), kL2Bytes / 2 / std::max<Index>(state, 1));
  Index together = 1, least = ceil_div(all, workers);
  for (Index count = 2; count <= most; ++count) {
    const Index rounds = ceil_div(sequences(in) * ceil_div(heads(in), count), workers);
    if (rounds * count > least) continue;
    together = count;
    least = rounds * count;
  }
  return together;
}

/// Scratch of one worker, and S and z of the heads that take turns on it.
template <Scalar T, class Op>
class LinearCausalHeads {
  using A = accumulator_t<T>;
  /// Tokens of a strip: whole steps on every target. Their features and a panel of S fit L1.
  static constexpr Index kStrip = 24;
  static_assert(kStrip % kTile.step_tokens == 0);

 public:
  /// \param in  any of the heads
  LinearCausalHeads(const char* function, Arena& arena, Index heads, const Inputs<T>& in,
                    const Op& op)
      : heads_(heads),
        op_(op),
        n_(head_sizes(in, op)),
        recurrence_(function, arena, heads, n_.features, n_.values),
        key_sums_(arena.take<A>(function, {heads, n_.sum_features()})),
        query_raw_(arena.take<A>(function, query_raw_size(in, op))),
        key_raw_(arena.take<A>(function, key_raw_size(in, op))),
        queries_(function, arena, kStrip, n_.widest()),
        keys_(function, arena, kStrip, n_.widest()),
        values_(function, arena, kStrip, recurrence_.padded(n_.values)),
        outputs_(function, arena, kStrip, recurrence_.padded(n_.values)),
        denominators_(arena.take<A>(function, kStrip)),
        factors_(arena.take<A>(function, kStrip)) {}

  /// Writes the outputs of heads [first, last) of sequence s.
  template <class In>
  void run(const In& in, const output_of<In>& out, Index s, Index first, Index last) const {
    recurrence_.clear();
    std::fill_n(key_sums_, heads_ * n_.sum_features(), A(0));
    std::fill_n(values_.data, kStrip * values_.stride, A(0));  // also after column E
    const Inputs<T> front = head_inputs(in, s, first), back = head_inputs(in, s, last - 1);
    const auto front_out = head_output(in, out, s, first),
               back_out = head_output(in, out, s, last - 1);
    const Index tokens = front.q.rows;
    for (Index begin = 0; begin < tokens; begin += kStrip) {
      const Index count = std::min(kStrip, tokens - begin), end = begin + count;
      for (Index h = first; h < last; ++h) {
        const Inputs<T> head = head_inputs(in, s, h);
        const MatrixView<T> head_out = head_output(in, out, s, h);
        Prefetch next(recurrence_.steps(count));
        const Turn turn{h - first, last - first, end, std::min(kStrip, tokens - end)};
        turn.prefetch(front.q, head.q, back.q, next);
        turn.prefetch(front.k, head.k, back.k, next);
        turn.prefetch(front.v, head.v, back.v, next);
        turn.prefetch(front_out, head_out, back_out, next);
        read_strip(h - first, middle_tokens(head, begin, count), next,
                   head_out.middle_rows(begin, count));
      }
    }
  }

 private:
  static constexpr std::array<Index, kStrip> kPlaces = [] {
    std::array<Index, kStrip> places{};
    for (std::size_t s = 0; s < places.size(); ++s) places[s] = static_cast<Index>(s);
    return places;
  }();

  /// The turn of one of some heads before the next strip, tokens [begin, begin + count).
  struct Turn {
    Index head, heads, begin, count;

    /// Adds a share of the rows of all heads if they lie side by side, else those of `own`.
    /// \param front, back  of the first and the last head
    template <class U>
    void prefetch(MatrixView<U> front, MatrixView<U> current, MatrixView<U> back,
                  Prefetch& next) const {
      if (front.col_stride != 1 || back.data != front.data + (heads - 1) * front.cols) {
        return next.add(nullptr, count, current.middle_rows(begin, 0));
      }
      const Index from = head * count / heads, to = (head + 1) * count / heads;
      front.cols *= heads;
      next.add(nullptr, to - from, front.middle_rows(begin + from, 0));
    }
  };

  /// \param head  whose S and z grow
  /// \param in    the tokens of a strip
  void read_strip(Index head, const Inputs<T>& in, Prefetch& next, MatrixView<T> out) const {
    const bool sums = n_.sums != WeightSums::kNone;
    if (n_.separate_normalizer()) {
      gather_strip(in, in.normalizer_q, in.normalizer_k);
      sum_weights(head, in.q.rows);
    }
    gather_strip(in, in.q, in.k);
    if (sums && !n_.separate_normalizer()) sum_weights(head, in.q.rows);
    if (sums) {
      const A* const r = denominators_;
      op_.normalizer.denominators(r, in.q.rows, denominators_);
      reciprocals(r, in.q.rows, factors_);
    }
    if constexpr (std::is_same_v<T, A>) {
      if (in_place(in, out)) {
        return advance(head, in.q.rows, {in.v.data, in.v.row_stride}, {out.data, out.row_stride},
                       next);
      }
    }
    for_each_run(in.key_mask, in.k.rows, values_, n_.values, [&](Index s, Index count) {
      gather(in.v.middle_rows(s, count), kPlaces.data(), count, values_.below(s));
    });
    advance(head, in.q.rows, values_, outputs_, next);
    clear_masked(Contiguous(out.rows, kStrip), 0, in.query_mask, out);
    for_each_run(in.query_mask, out.rows, {}, 0, [&](Index s, Index count) {
      scatter(outputs_.below(s), kPlaces.data(), count, out.middle_rows(s, count));
    });
  }

  /// True if values and outputs of all tokens can be read and written in place.
  bool in_place(const Inputs<T>& in, MatrixView<T> out) const {
    return in.query_mask.all() && in.key_mask.all() && in.v.col_stride == 1 &&
           out.col_stride == 1 && recurrence_.padded(n_.values) == n_.values;
  }

  void advance(Index head, Index count, Rows<const A> values, Rows<A> outputs,
               Prefetch& next) const {
    const bool sums = n_.sums != WeightSums::kNone;
    recurrence_.advance(head, {queries_, keys_, values, outputs, sums ? factors_ : nullptr, count},
                        next);
    next.finish();
    if (sums) divide_without_reciprocal(outputs, count, n_.values, denominators_, factors_);
  }

  /// Calls kept(s, count) for runs of tokens that a mask keeps. Zeroes `width` columns of the rows
  /// of the others: such a key adds nothing, such a query reads nothing.
  template <class F>
  static void for_each_run(Mask mask, Index tokens, Rows<A> rows, Index width, const F& kept) {
    for (Index s = 0, end; s < tokens; s = end) {
      for (end = s + 1; end < tokens && (mask.all() || mask[end] == mask[s]);) ++end;
      if (mask[s]) {
        kept(s, end - s);
        continue;
      }
      for (Index r = s; r < end && width > 0; ++r) std::fill_n(rows.row(r), width, A(0));
    }
  }

  void gather_strip(const Inputs<T>& in, MatrixView<const T> q, MatrixView<const T> k) const {
    const Index features = op_.query_map.features(q.cols);
    for_each_run(in.query_mask, q.rows, queries_, features, [&](Index s, Index count) {
      gather_queries(q.middle_rows(s, count), kPlaces.data(), count, op_.query_map,
                     static_cast<A>(op_.scale), query_raw_, queries_.below(s));
    });
    for_each_run(in.key_mask, k.rows, keys_, features, [&](Index s, Index count) {
      gather_features(k.middle_rows(s, count), kPlaces.data(), count, op_.key_map, key_raw_,
                      keys_.below(s));
    });
  }
  void sum_weights(Index head, Index count) const {
    const Index d = n_.sum_features();
    advance_key_sum<A>(queries_, keys_, count, d, key_sums_ + head * d, denominators_);
  }

  Index heads_;
  const Op& op_;
  HeadSizes n_;
  Recurrence<A> recurrence_;
  A* key_sums_;              // z [heads, Dz]
  A *query_raw_, *key_raw_;  // tokens before the feature maps
  Rows<A> queries_, keys_;   // phi of a strip [strip, D or Dz], of one stride
  Rows<A> values_;           // [strip, E]
  Rows<A> outputs_;          // [strip, E]
  A* denominators_;          // [strip]
  A* factors_;               // [strip] their reciprocals
};

/// All heads of a batch, which has some: as many together as heads_together says.
template <class In, class Op>
class LinearCausalBatch {
 public:
  LinearCausalBatch(const char* function, Arena& arena, const In& in, const Op& op, Index workers)
      : together_(heads_together(function, in, op, workers)),
        groups_(ceil_div(heads(in), together_)),
        tasks_(sequences(in) * groups_),
        workers_(function, arena, std::min(tasks_, workers), [&](Arena& worker_arena) {
          return LinearCausalHeads(function, worker_arena, together_, head_inputs(in, 0, 0), op);
        }) {}

  void run(const In& in, const output_of<In>& out, const ExecutorRef& executor) const {
    executor.for_each(tasks_, [&](Index task, Index w) {
      const Index first = task % groups_ * together_, last = std::min(first + together_, heads(in));
      workers_[tasks_ < executor.workers() ? task : w].run(in, out, task / groups_, first, last);
    });
  }

 private:
  Index together_, groups_, tasks_;
  Workers<LinearCausalHeads<scalar_of<In>, Op>> workers_;
};

}  // namespace detail
}  // namespace MHLA_TARGET
}  // namespace mhla

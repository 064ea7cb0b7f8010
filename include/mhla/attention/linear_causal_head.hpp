#pragma once

/// \file
/// One head of causal linear attention: strip by strip, phi of keys and queries, denominators, then
/// the recurrence over the strip's tokens (stage/recurrence.hpp).

#include <algorithm>
#include <array>
#include <type_traits>

#include "mhla/attention/operator.hpp"
#include "mhla/core/arch.hpp"
#include "mhla/core/workspace.hpp"
#include "mhla/kernel/prefetch.hpp"
#include "mhla/stage/denominator.hpp"
#include "mhla/stage/read_out.hpp"
#include "mhla/stage/recurrence.hpp"
#include "mhla/tokens/gather.hpp"

namespace mhla {
inline namespace MHLA_TARGET {
namespace detail {

template <Scalar T, class Op>
class LinearCausalHead {
  using A = accumulator_t<T>;
  /// Tokens of a strip: whole steps on every target. Their features and a panel of S fit L1.
  static constexpr Index kStrip = 24;
  static_assert(kStrip % kTile.step_tokens == 0);

 public:
  LinearCausalHead(const char* function, Arena& arena, const Inputs<T>& in, const Op& op)
      : in_(in),
        op_(op),
        n_(head_sizes(in, op)),
        recurrence_(function, arena, n_.features, n_.values),
        key_sum_(arena.take<A>(function, n_.sum_features())),
        query_raw_(arena.take<A>(function, query_raw_size(in, op))),
        key_raw_(arena.take<A>(function, key_raw_size(in, op))),
        queries_(function, arena, kStrip, n_.widest()),
        keys_(function, arena, kStrip, n_.widest()),
        values_(function, arena, kStrip, recurrence_.padded(n_.values)),
        outputs_(function, arena, kStrip, recurrence_.padded(n_.values)),
        denominators_(arena.take<A>(function, kStrip)),
        factors_(arena.take<A>(function, kStrip)) {}

  void run(MatrixView<T> out) const {
    recurrence_.clear();
    std::fill_n(key_sum_, n_.sum_features(), A(0));
    std::fill_n(values_.data, kStrip * values_.stride, A(0));  // also behind column E
    for (Index begin = 0; begin < in_.q.rows; begin += kStrip) {
      const Index count = std::min(kStrip, in_.q.rows - begin), end = begin + count;
      Prefetch next(recurrence_.steps(count), kPlaces.data(), std::min(kStrip, in_.q.rows - end),
                    in_.q.middle_rows(end, 0), in_.k.middle_rows(end, 0), in_.v.middle_rows(end, 0),
                    out.middle_rows(end, 0));
      read_strip(middle_tokens(in_, begin, count), next, out.middle_rows(begin, count));
    }
  }

 private:
  static constexpr std::array<Index, kStrip> kPlaces = [] {
    std::array<Index, kStrip> places{};
    for (std::size_t s = 0; s < places.size(); ++s) places[s] = static_cast<Index>(s);
    return places;
  }();

  /// \param in  the tokens of a strip
  void read_strip(const Inputs<T>& in, Prefetch& next, MatrixView<T> out) const {
    const bool sums = n_.sums != WeightSums::kNone;
    if (n_.own()) {
      gather_strip(in, in.normalizer_q, in.normalizer_k);
      sum_weights(in.q.rows);
    }
    gather_strip(in, in.q, in.k);
    if (sums && !n_.own()) sum_weights(in.q.rows);
    if (sums) {
      const A* const r = denominators_;
      op_.normalizer.denominators(r, in.q.rows, denominators_);
      reciprocals(r, in.q.rows, factors_);
    }
    if constexpr (std::is_same_v<T, A>) {
      if (in_place(in, out)) {
        return advance(in.q.rows, {in.v.data, in.v.row_stride}, {out.data, out.row_stride}, next);
      }
    }
    for_each_run(in.key_mask, in.k.rows, values_, n_.values, [&](Index s, Index count) {
      gather(in.v.middle_rows(s, count), kPlaces.data(), count, values_.below(s));
    });
    advance(in.q.rows, values_, outputs_, next);
    clear_masked(Contiguous(out.rows, kStrip), 0, in.query_mask, out);
    for_each_run(in.query_mask, out.rows, {}, 0, [&](Index s, Index count) {
      scatter(outputs_.below(s), kPlaces.data(), count, out.middle_rows(s, count));
    });
  }

  /// Whether values and outputs of all tokens can be read and written where they are.
  bool in_place(const Inputs<T>& in, MatrixView<T> out) const {
    return in.query_mask.all() && in.key_mask.all() && in.v.col_stride == 1 &&
           out.col_stride == 1 && recurrence_.padded(n_.values) == n_.values;
  }

  void advance(Index count, Rows<const A> values, Rows<A> outputs, Prefetch& next) const {
    const bool sums = n_.sums != WeightSums::kNone;
    recurrence_.advance({queries_, keys_, values, outputs, sums ? factors_ : nullptr, count}, next);
    next.finish();
    if (sums) divide_others(outputs, count, n_.values, denominators_, factors_);
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
  void sum_weights(Index count) const {
    advance_key_sum<A>(queries_, keys_, count, n_.sum_features(), key_sum_, denominators_);
  }

  const Inputs<T>& in_;
  const Op& op_;
  HeadSizes n_;
  Recurrence<A> recurrence_;
  A* key_sum_;               // z [Dz]
  A *query_raw_, *key_raw_;  // tokens before the feature maps
  Rows<A> queries_, keys_;   // phi of a strip [strip, D or Dz], of one stride
  Rows<A> values_;           // [strip, E]
  Rows<A> outputs_;          // [strip, E]
  A* denominators_;          // [strip]
  A* factors_;               // [strip] their reciprocals
};

}  // namespace detail
}  // namespace MHLA_TARGET
}  // namespace mhla

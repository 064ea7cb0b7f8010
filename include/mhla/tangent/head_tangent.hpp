#pragma once

/// \file
/// Common steps of the tangents of the bidirectional and the causal form: features, summaries and
/// mixtures of a head with their tangents, and the division. Formulas: summary.hpp, mixing.hpp,
/// read_out.hpp. A tangent that is not set is never computed.

#include <algorithm>
#include <span>

#include "mhla/attention/head_summaries.hpp"
#include "mhla/attention/operator.hpp"
#include "mhla/core/arch.hpp"
#include "mhla/core/workspace.hpp"
#include "mhla/kernel/prefetch.hpp"
#include "mhla/stage/denominator.hpp"
#include "mhla/stage/mixing.hpp"
#include "mhla/stage/read_out.hpp"
#include "mhla/stage/summary.hpp"
#include "mhla/tangent/tangents.hpp"
#include "mhla/tokens/gather.hpp"
#include "mhla/tokens/strip.hpp"

namespace mhla {
inline namespace MHLA_TARGET {

/// An Operator whose feature maps have tangents, and whose normaliser has slopes.
template <class Op, class T>
concept TangentOperatorOn =
    OperatorOn<Op, T> && TangentFeatureMap<detail::query_map_t<Op>, accumulator_t<T>> &&
    TangentFeatureMap<detail::key_map_t<Op>, accumulator_t<T>> &&
    DifferentiableNormalizer<detail::normalizer_t<Op>>;

namespace detail {

/// The tangents of a head that are set.
struct TangentParts {
  bool queries = false, keys = false;                        ///< features of the numerator
  bool normalizer_queries = false, normalizer_keys = false;  ///< features of the denominator
  bool values = false;
  bool mixing = false;

  bool summaries() const { return keys || values; }               ///< dS_b
  bool mixtures() const { return summaries() || mixing; }         ///< dS~_i
  bool key_sums() const { return normalizer_keys || mixing; }     ///< dz~_i
  bool sums() const { return normalizer_queries || key_sums(); }  ///< dr_t
};

/// Rows [begin, end) of m and of dm, and memory of a worker that mixes them.
template <class A>
struct TangentMixtures {
  WithTangent<Coefficients<A>> coefficients;
  WithTangent<Mixtures<A>> mixtures;
  WithTangent<Rows<A>> key_sums;  ///< z~, dz~ [group, Dz]

  TangentMixtures(const char* function, Arena& arena, Index group, Index blocks,
                  const Summaries<A>& s, Index sum_features)
      : coefficients{{function, arena, group, blocks}, {function, arena, group, blocks}},
        mixtures{{function, arena, group, s}, {function, arena, group, s}},
        key_sums{{function, arena, group, sum_features}, {function, arena, group, sum_features}} {}
};

/// One head: its tensors, their tangents, and the operator.
template <Scalar T, class Op>
class HeadTangent {
  using A = accumulator_t<T>;

 public:
  using Group = WithTangent<MixingGroup<A>>;

  HeadTangent(const Inputs<T>& in, const Op& op)
      : in_(in), op_(op), sizes_(head_sizes(in, op)), scale_(static_cast<A>(op.scale)) {}

  /// Sets the tangents; not needed to count bytes.
  void set(const Tangents<T>& tangents, const ParameterTangents<A>& parameters) {
    tangents_ = tangents;
    parameters_ = parameters;
    const bool query_map = !parameters.query_map.empty(), key_map = !parameters.key_map.empty();
    parts_.queries = !tangents.q.absent() || query_map;
    parts_.keys = !tangents.k.absent() || key_map;
    parts_.values = !tangents.v.absent();
    parts_.mixing = !parameters.mixing.absent();
    const bool separate = sizes_.separate_normalizer();
    parts_.normalizer_queries =
        separate ? !tangents.normalizer_q.absent() || query_map : parts_.queries;
    parts_.normalizer_keys = separate ? !tangents.normalizer_k.absent() || key_map : parts_.keys;
  }

  const HeadSizes& sizes() const { return sizes_; }
  const Tangents<T>& tangents() const { return tangents_; }
  const TangentParts& parts() const { return parts_; }

  WithTangent<KeyScratch<A>> key_scratch(const char* function, Arena& arena) const {
    return {{function, arena, 2 * key_raw_size(in_, op_), sizes_.widest(), sizes_.values},
            {function, arena, 0, sizes_.widest(), sizes_.values}};
  }
  /// \param more  columns after the features
  WithTangent<QueryScratch<A>> query_scratch(const char* function, Arena& arena,
                                             Index more = 0) const {
    const Index d = sizes_.features + more, dz = sizes_.normalizer_features, e = sizes_.values;
    return {{function, arena, 2 * query_raw_size(in_, op_), d, dz, e},
            {function, arena, 0, d, dz, e}};
  }

  // --- features of strips, and their tangents if set ---

  void gather_keys(const Index* tokens, Index count, const WithTangent<KeyScratch<A>>& w) const {
    gather_keys(in_.k, tangents_.k, parts_.keys, tokens, count, w);
  }
  void gather_normalizer_keys(const Index* tokens, Index count,
                              const WithTangent<KeyScratch<A>>& w) const {
    gather_keys(in_.normalizer_k, tangents_.normalizer_k, parts_.normalizer_keys, tokens, count, w);
  }
  void gather_queries(const Index* tokens, Index count,
                      const WithTangent<QueryScratch<A>>& w) const {
    gather_queries(in_.q, tangents_.q, parts_.queries, tokens, count, w.value.raw,
                   {w.value.queries, w.tangent.queries});
  }
  /// Gathers queries of the denominator, separate ones or those of the numerator.
  void gather_normalizer_queries(const Index* tokens, Index count,
                                 const WithTangent<QueryScratch<A>>& w) const {
    const bool separate = sizes_.separate_normalizer();
    gather_queries(separate ? in_.normalizer_q : in_.q,
                   separate ? tangents_.normalizer_q : tangents_.q, parts_.normalizer_queries,
                   tokens, count, w.value.raw,
                   {w.value.normalizer_queries, w.tangent.normalizer_queries});
  }

  // --- summaries ---

  /// S_b, z_b and their tangents.
  template <Partition P>
  void summarize(const P& blocks, Index b, const WithTangent<KeyScratch<A>>& w,
                 const WithTangent<HeadSummaries<A>>& summaries) const {
    const Index d = sizes_.features, e = sizes_.values;
    const Rows<A> s = summaries.value.values().block(b), ds = summaries.tangent.values().block(b);
    A* const z = summaries.value.key_sum(b);
    A* const dz = summaries.tangent.key_sum(b);
    const bool sums = sizes_.sum_features() > 0, separate = sizes_.separate_normalizer();
    std::fill_n(z, sizes_.sum_features(), A(0));
    std::fill_n(dz, sizes_.sum_features(), A(0));
    Start start = Start::kZero;
    StripCursor strip(blocks, b, in_.key_mask);
    strip.next();
    do {  // at least once: a block without tokens gets zeros
      const Index *const tokens = strip.tokens(), count = strip.count();
      Prefetch next(tiles_of<A>(d, e), strip.ahead().tokens, strip.ahead().count, in_.k, in_.v);
      gather_keys(tokens, count, w);
      const Rows<const A> values = gathered(in_.v, tokens, count, w.value.values);
      accumulate_summary(start, w.value.keys, values, count, d, e, s, &next);
      next.finish();
      if (parts_.keys) accumulate_summary(start, w.tangent.keys, values, count, d, e, ds);
      if (parts_.values) {
        accumulate_summary(parts_.keys ? Start::kTarget : start, w.value.keys,
                           gathered(tangents_.v, tokens, count, w.tangent.values), count, d, e, ds);
      }
      if (sums && !separate) add_key_sums(count, w, z, dz);
      start = Start::kTarget;
    } while (strip.next() > 0);
    if (!separate) return;
    StripCursor again(blocks, b, in_.key_mask);
    while (again.next() > 0) {
      gather_normalizer_keys(again.tokens(), again.count(), w);
      add_key_sums(again.count(), w, z, dz);
    }
  }

  // --- mixtures ---

  Group group(const MixingView<const A>& m, ColumnSpan of, Reach reach, Index blocks,
              const TangentMixtures<A>& w) const {
    const MixingGroup<A> value(m, of.begin, of.end, reach, blocks, w.coefficients.value);
    if (!parts_.mixing) return {value, value};
    return {value, {parameters_.mixing, of.begin, of.end, reach, blocks, w.coefficients.tangent}};
  }
  /// S~_i, dS~_i and, of a token's own sums, z~_i and dz~_i.
  void mix(const Group& group, const WithTangent<HeadSummaries<A>>& s,
           const TangentMixtures<A>& w) const {
    detail::mix(group.value, s.value.values(), w.mixtures.value);
    if (parts_.summaries()) detail::mix(group.value, s.tangent.values(), w.mixtures.tangent);
    if (parts_.mixing) {
      detail::mix(group.tangent, s.value.values(), w.mixtures.tangent,
                  parts_.summaries() ? Start::kTarget : Start::kZero);
    }
    if (sizes_.sums != WeightSums::kToken) return;
    mix_rows(group, {s.value.key_sums(), s.tangent.key_sums()}, parts_.normalizer_keys,
             sizes_.sum_features(), w.key_sums);
  }
  /// Mixes rows and, if set, their tangents, which begin with those of `rows`.
  void mix_rows(const Group& group, const WithTangent<Rows<A>>& rows, bool tangents, Index cols,
                const WithTangent<Rows<A>>& out) const {
    group.value.mix(out.value, rows.value, cols);
    if (tangents) group.value.mix(out.tangent, rows.tangent, cols);
    if (parts_.mixing) {
      group.tangent.mix(out.tangent, rows.value, cols, false,
                        tangents ? Start::kTarget : Start::kZero);
    }
  }

  // --- sums and division ---

  /// r_t = phi(q_t) . z and dr_t of the denominator's queries, if dr_t has a part that is set.
  void sum_weights(const WithTangent<QueryScratch<A>>& w, Index count, const A* z, const A* dz,
                   bool dz_set) const {
    const Index d = sizes_.sum_features();
    A* const dr = w.tangent.denominators;
    detail::sum_weights(w.value.normalizer_queries, count, d, z, w.value.denominators);
    if (parts_.normalizer_queries) {
      detail::sum_weights(w.tangent.normalizer_queries, count, d, z, dr);
    } else {
      std::fill_n(dr, count, A(0));
    }
    for (Index s = 0; dz_set && s < count; ++s) {
      dr[s] += dot<A>(w.value.normalizer_queries.row(s), dz, d);
    }
  }

  /// Turns r_t and dr_t into den_t, its reciprocal, and f'(r_t) dr_t.
  void divide(Index count, const WithTangent<QueryScratch<A>>& w) const {
    A *const r = w.value.denominators, *const dr = w.tangent.denominators;
    if (divides()) {
      write_slopes(op_.normalizer, static_cast<const A*>(r), count, w.tangent.factors);
      for (Index s = 0; s < count; ++s) dr[s] *= w.tangent.factors[s];
    }
    write_denominators(op_.normalizer, static_cast<const A*>(r), count, r);
    reciprocals(r, count, w.value.factors);
  }

  /// Writes outputs and tangents of a strip, from quotients o_t and tangents of numerators in
  /// scratch.
  void write(const Index* tokens, Index count, const WithTangent<QueryScratch<A>>& w,
             const WithTangent<MatrixView<T>>& out) const {
    const Index e = sizes_.values;
    const A *const den = w.value.denominators, *const factors = w.value.factors;
    divide_without_reciprocal(w.value.outputs, count, e, den, factors);
    read_out_tangent(w.value.outputs, count, e, den, divides() ? w.tangent.denominators : nullptr,
                     factors, w.tangent.outputs);
    scatter(w.value.outputs, tokens, count, out.value);
    scatter(w.tangent.outputs, tokens, count, out.tangent);
  }

 private:
  /// True if a denominator has a tangent.
  bool divides() const { return sizes_.sums != WeightSums::kNone && parts_.sums(); }

  void gather_keys(MatrixView<const T> k, MatrixView<const T> dk, bool tangent, const Index* tokens,
                   Index count, const WithTangent<KeyScratch<A>>& w) const {
    gather_features(k, tokens, count, op_.key_map, w.value.raw, w.value.keys);
    if (!tangent) return;
    gather_features_tangent(k, dk, tokens, count, op_.key_map, weights(parameters_.key_map),
                            w.value.keys, w.value.raw, w.tangent.keys);
  }
  void gather_queries(MatrixView<const T> q, MatrixView<const T> dq, bool tangent,
                      const Index* tokens, Index count, A* raw,
                      const WithTangent<Rows<A>>& rows) const {
    const Index d = op_.query_map.features(q.cols);
    gather_features(q, tokens, count, op_.query_map, raw, rows.value);
    if (tangent) {
      gather_features_tangent(q, dq, tokens, count, op_.query_map, weights(parameters_.query_map),
                              rows.value, raw, rows.tangent);
    }
    for (Index s = 0; scale_ != A(1) && s < count; ++s) {
      scale(scale_, rows.value.row(s), d);
      if (tangent) scale(scale_, rows.tangent.row(s), d);
    }
  }
  static const A* weights(std::span<const A> tangents) {
    return tangents.empty() ? nullptr : tangents.data();
  }
  void add_key_sums(Index count, const WithTangent<KeyScratch<A>>& w, A* z, A* dz) const {
    const Index d = sizes_.sum_features();
    accumulate_key_sum(w.value.keys, count, d, z);
    if (parts_.normalizer_keys) accumulate_key_sum(w.tangent.keys, count, d, dz);
  }

  const Inputs<T>& in_;
  const Op& op_;
  HeadSizes sizes_;
  A scale_;
  Tangents<T> tangents_{};
  ParameterTangents<A> parameters_{};
  TangentParts parts_;
};

}  // namespace detail
}  // namespace MHLA_TARGET
}  // namespace mhla

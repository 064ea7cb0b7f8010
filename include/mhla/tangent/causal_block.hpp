#pragma once

/// \file
/// One block of a causal tangent, in the strips of attention/causal_block.hpp. With K = m_ii phi(K)
/// of a strip, and primes for tangents:
///
///     K'  = m'_ii phi(K) + m_ii phi'(K)                   T' = tril(phi'(Q) K^T + phi(Q) K'^T)
///     dN  = [phi'(Q) T'] [R; V] + [phi(Q) T] [R'; V']     R' += K'^T V + K^T V'

#include <algorithm>

#include "mhla/attention/causal_block.hpp"
#include "mhla/attention/operator.hpp"
#include "mhla/core/arch.hpp"
#include "mhla/core/workspace.hpp"
#include "mhla/kernel/prefetch.hpp"
#include "mhla/kernel/product.hpp"
#include "mhla/stage/intra_block.hpp"
#include "mhla/tangent/head_tangent.hpp"
#include "mhla/tangent/tangents.hpp"
#include "mhla/tokens/gather.hpp"
#include "mhla/tokens/packed_keys.hpp"
#include "mhla/tokens/strip.hpp"

namespace mhla {
inline namespace MHLA_TARGET {
namespace detail {

/// Scratch of one worker.
template <class A>
struct CausalTangentScratch {
  WithTangent<KeyScratch<A>> keys;
  WithTangent<QueryScratch<A>> queries;  ///< phi(Q) and T [strip, D + strip]
  WithTangent<PackedKeys<A>> packed, normalizer_packed;
  WithTangent<Rows<A>> read;  ///< R, and V of a strip below it [D + strip, E]

  template <Scalar T, class Op>
  CausalTangentScratch(const char* function, Arena& arena, const HeadTangent<T, Op>& head)
      : keys(head.key_scratch(function, arena)),
        queries(head.query_scratch(function, arena, kStripTokens)) {
    const HeadSizes& n = head.sizes();
    const auto pack = [&](Index d) {
      return WithTangent<PackedKeys<A>>{{function, arena, kStripTokens, d, 0},
                                        {function, arena, kStripTokens, d, 0}};
    };
    const Index rows = n.features + kStripTokens;
    packed = pack(n.features);
    if (n.separate_normalizer()) normalizer_packed = pack(n.normalizer_features);
    read = {{function, arena, rows, n.values}, {function, arena, rows, n.values}};
  }
};

/// One block of a causal tangent, strip by strip.
template <Scalar T, Partition P, class Op>
class CausalBlockTangent {
  using A = accumulator_t<T>;

 public:
  /// \param sums  m_ii, S~_i and z~_i, and their tangents
  CausalBlockTangent(const HeadTangent<T, Op>& head, const Inputs<T>& in, const P& blocks, Index i,
                     const WithTangent<CausalSums<A>>& sums, const CausalTangentScratch<A>& scratch)
      : head_(head),
        in_(in),
        n_(head.sizes()),
        parts_(head.parts()),
        blocks_(blocks),
        block_(i),
        sums_(sums),
        w_(scratch),
        keys_(blocks, i, in.key_mask) {}

  /// Writes outputs and tangents.
  void read_out(const WithTangent<MatrixView<T>>& out) {
    clear_masked(blocks_, block_, in_.query_mask, out.value);
    clear_masked(blocks_, block_, in_.query_mask, out.tangent);
    const Index tokens = blocks_.block_size(block_);
    copy_matrix(sums_.value.matrix, w_.read.value);
    if (parts_.mixtures()) copy_matrix(sums_.tangent.matrix, w_.read.tangent);
    Strip queries;
    for (Index slot = 0; slot < tokens;) {
      keys_.next();
      gather_keys();
      const Index end = keys_.more() ? keys_.ahead().places[0] : tokens;
      while (slot < end) {
        slot = read_slots(blocks_, block_, in_.query_mask, slot, end, queries);
        if (queries.count > 0) read_strip(queries, out);
      }
      if (keys_.more()) add_strip();
    }
  }

 private:
  WithTangent<Rows<A>> values() const {
    return {w_.read.value.below(n_.features), w_.read.tangent.below(n_.features)};
  }
  void copy_matrix(const A* from, Rows<A> to) const {
    for (Index d = 0; d < n_.features; ++d) {
      std::copy_n(from + d * n_.values, n_.values, to.row(d));
    }
  }

  /// Gathers a strip of keys and values.
  void gather_keys() {
    const Index *const tokens = keys_.tokens(), count = keys_.count();
    head_.gather_keys(tokens, count, w_.keys);
    pack(n_.features, parts_.keys, w_.packed);
    if (n_.separate_normalizer()) {
      head_.gather_normalizer_keys(tokens, count, w_.keys);
      pack(n_.normalizer_features, parts_.normalizer_keys, w_.normalizer_packed);
    }
    gather(in_.v, tokens, count, values().value);
    if (parts_.values) gather(head_.tangents().v, tokens, count, values().tangent);
  }
  /// Packs K and, if it is not 0, K'.
  void pack(Index d, bool tangent, WithTangent<PackedKeys<A>>& to) {
    const Index *const places = keys_.places(), count = keys_.count();
    const Rows<A> keys = w_.keys.value.keys, dkeys = w_.keys.tangent.keys;
    const auto append = [&](Rows<A> rows, A weight, PackedKeys<A>& packed) {
      packed.clear();
      packed.append_keys(rows, places, count, weight);
    };
    append(keys, sums_.value.weight, to.value);
    if (!tangent) {
      if (parts_.mixing) append(keys, sums_.tangent.weight, to.tangent);
      return;
    }
    for (Index s = 0; s < count; ++s) {
      scale(sums_.value.weight, dkeys.row(s), d);
      if (parts_.mixing) add_scaled<A>(sums_.tangent.weight, keys.row(s), dkeys.row(s), d);
    }
    append(dkeys, A(1), to.tangent);
  }
  bool packed_keys() const { return parts_.keys || parts_.mixing; }  // K' is not 0

  /// Writes outputs and tangents of queries that see keys up to the strip's.
  void read_strip(const Strip& queries, const WithTangent<MatrixView<T>>& out) {
    const Index count = queries.count;
    const Strip& ahead = keys_.ahead();
    Prefetch next(tiles_of<A>(count, n_.values) + tiles_of<A>(count, kStripTokens), ahead.tokens,
                  ahead.count, in_.q, in_.k, in_.v);
    Index seen[kStripTokens]{};
    if (n_.separate_normalizer()) {
      head_.gather_normalizer_queries(queries.tokens, count, w_.queries);
      score(queries, {w_.queries.value.normalizer_queries, w_.queries.tangent.normalizer_queries},
            parts_.normalizer_queries, parts_.key_sums(), w_.normalizer_packed, true, seen,
            nullptr);
    }
    head_.gather_queries(queries.tokens, count, w_.queries);
    score(queries, {w_.queries.value.queries, w_.queries.tangent.queries}, parts_.queries,
          packed_keys(), w_.packed, n_.sum_features() > 0 && !n_.separate_normalizer(), seen,
          &next);
    head_.divide(count, w_.queries);
    multiply_sums(count, seen, next);
    next.finish();
    head_.write(queries.tokens, count, w_.queries, out);
  }

  /// Writes T and T', and r_t and dr_t if `sums`.
  /// \param dqueries, dkeys  whether phi'(Q) and K' are not 0
  void score(const Strip& queries, const WithTangent<Rows<A>>& rows, bool dqueries, bool dkeys,
             const WithTangent<PackedKeys<A>>& keys, bool sums, Index* seen, Prefetch* next) {
    const Index count = queries.count;
    A *const r = w_.queries.value.denominators, *const dr = w_.queries.tangent.denominators;
    if (sums) {
      head_.sum_weights(w_.queries, count, sums_.value.key_sum, sums_.tangent.key_sum,
                        parts_.key_sums());
    }
    const Rows<A> scores = w_.queries.value.queries.right_of(n_.features);
    const Rows<A> dscores = w_.queries.tangent.queries.right_of(n_.features);
    score_intra_block(rows.value, queries.places, count, keys.value, scores, seen,
                      sums ? r : nullptr, next);
    if (dqueries) keys.value.score(rows.tangent, seen, count, 0, dscores);
    if (dkeys) {
      keys.tangent.score(rows.value, seen, count, 0, dscores, nullptr,
                         dqueries ? Start::kTarget : Start::kZero);
    }
    for (Index s = 0; sums && (dqueries || dkeys) && s < count; ++s) {
      dr[s] += sum(dscores.row(s), seen[s]);
    }
  }

  /// o_t = [phi(Q) T] [R; V] / den_t, and dN.
  void multiply_sums(Index count, const Index* seen, Prefetch& next) {
    const QueryScratch<A>&value = w_.queries.value, &tangent = w_.queries.tangent;
    const Index d = n_.features;
    ColumnSpan both[kStripTokens], after[kStripTokens];  // of [phi(Q) T], of T
    for (Index s = 0; s < count; ++s) {
      both[s] = {0, d + seen[s]};
      after[s] = {0, seen[s]};
    }
    const Index columns = both[count - 1].end;
    multiply<A>({.out = value.outputs,
                 .a = value.queries.matrix(count, columns),
                 .b = w_.read.value,
                 .cols = n_.values,
                 .factors = value.factors,
                 .spans = both,
                 .next = &next});
    Start start = Start::kZero;
    const auto add = [&](MatrixView<A> a, Rows<A> b, const ColumnSpan* spans) {
      multiply<A>({.out = tangent.outputs,
                   .a = a,
                   .b = b,
                   .cols = n_.values,
                   .start = start,
                   .spans = spans});
      start = Start::kTarget;
    };
    if (parts_.queries) {
      add(tangent.queries.matrix(count, columns), w_.read.value, both);
    } else if (packed_keys()) {
      add(tangent.queries.right_of(d).matrix(count, columns - d), values().value, after);
    }
    if (parts_.values) {
      add(value.queries.matrix(count, columns), w_.read.tangent, both);
    } else if (parts_.mixtures()) {
      add(value.queries.matrix(count, d), w_.read.tangent, nullptr);
    }
    for (Index s = 0; start == Start::kZero && s < count; ++s) {
      std::fill_n(tangent.outputs.row(s), n_.values, A(0));
    }
  }

  /// Adds the strip's keys to R and z, and to their tangents.
  void add_strip() {
    add_product(w_.packed.value, values().value, w_.read.value);
    if (packed_keys()) add_product(w_.packed.tangent, values().value, w_.read.tangent);
    if (parts_.values) add_product(w_.packed.value, values().tangent, w_.read.tangent);
    const auto& sums = n_.separate_normalizer() ? w_.normalizer_packed : w_.packed;
    for (Index j = 0; j < n_.sum_features(); ++j) {
      const Index count = sums.value.count();
      sums_.value.key_sum[j] += sum(sums.value.keys(0).row(j), count);
      if (parts_.key_sums()) sums_.tangent.key_sum[j] += sum(sums.tangent.keys(0).row(j), count);
    }
  }
  void add_product(const PackedKeys<A>& keys, Rows<A> values, Rows<A> to) const {
    multiply<A>({.out = to,
                 .a = keys.keys(0).matrix(n_.features, keys.count()),
                 .b = values,
                 .cols = n_.values,
                 .start = Start::kTarget});
  }

  const HeadTangent<T, Op>& head_;
  const Inputs<T>& in_;
  const HeadSizes& n_;
  const TangentParts& parts_;
  const P& blocks_;
  Index block_;
  WithTangent<CausalSums<A>> sums_;
  CausalTangentScratch<A> w_;  // views of a worker's memory
  StripCursor<P> keys_;
};

}  // namespace detail
}  // namespace MHLA_TARGET
}  // namespace mhla

#pragma once

/// \file
/// One head of the tangent of bidirectional attention; formulas: tangent/bidirectional.hpp. The
/// steps are those of attention/bidirectional_head.hpp, each with its tangent.

#include <algorithm>

#include "mhla/attention/head_summaries.hpp"
#include "mhla/attention/operator.hpp"
#include "mhla/core/arch.hpp"
#include "mhla/core/executor.hpp"
#include "mhla/core/workspace.hpp"
#include "mhla/kernel/prefetch.hpp"
#include "mhla/kernel/product.hpp"
#include "mhla/stage/denominator.hpp"
#include "mhla/stage/mixing.hpp"
#include "mhla/tangent/head_tangent.hpp"
#include "mhla/tangent/tangents.hpp"
#include "mhla/tokens/gather.hpp"
#include "mhla/tokens/strip.hpp"

namespace mhla {
inline namespace MHLA_TARGET {
namespace detail {

template <Scalar T, Partition QueryBlocks, Partition KeyBlocks, class Op>
class BidirectionalTangent {
  using A = accumulator_t<T>;
  using Group = typename HeadTangent<T, Op>::Group;

  struct Worker {
    WithTangent<KeyScratch<A>> keys;
    WithTangent<QueryScratch<A>> queries;
    TangentMixtures<A> mixtures;
    WithTangent<Rows<A>> places;  // r, dr of CrossQuery [group, W]
  };

 public:
  BidirectionalTangent(const char* function, Arena& arena, const Inputs<T>& in,
                       const QueryBlocks& query_blocks, const KeyBlocks& key_blocks, const Op& op,
                       Index workers)
      : in_(in),
        query_blocks_(query_blocks),
        key_blocks_(key_blocks),
        head_(in, op),
        slots_(cross_query() ? largest_block(query_blocks) : 0),
        group_(group_blocks<A>(query_blocks.blocks(), sizes().features, sizes().values, workers)),
        summaries_{{function, arena, sizes(), key_blocks.blocks()},
                   {function, arena, sizes(), key_blocks.blocks()}},
        slot_sums_{{function, arena, key_blocks.blocks(), slots_},
                   {function, arena, key_blocks.blocks(), slots_}},
        workers_(function, arena, workers, [&](Arena& a) {
          return Worker{head_.key_scratch(function, a),
                        head_.query_scratch(function, a),
                        {function, a, group_, key_blocks.blocks(), summaries_.value.values(),
                         sizes().sum_features()},
                        {{function, a, group_, slots_}, {function, a, group_, slots_}}};
        }) {}

  void run(MixingView<const A> mixing, const Tangents<T>& tangents,
           const ParameterTangents<A>& parameters, const WithTangent<MatrixView<T>>& out,
           const ExecutorRef& executor) {
    head_.set(tangents, parameters);
    executor.for_each(key_blocks_.blocks(), [&](Index b, Index w) {
      head_.summarize(key_blocks_, b, workers_[w].keys, summaries_);
      if (cross_query()) sum_slots(b, workers_[w].queries);
    });
    executor.for_each(groups_of(query_blocks_.blocks(), group_), [&](Index g, Index worker) {
      const Worker& w = workers_[worker];
      const ColumnSpan of = group_blocks(whole(query_blocks_), group_, g);
      const Group group = head_.group(mixing, of, Reach::kAll, key_blocks_.blocks(), w.mixtures);
      head_.mix(group, summaries_, w.mixtures);
      if (cross_query()) {
        head_.mix_rows(group, {slot_sums_.value.rows(), slot_sums_.tangent.rows()},
                       parts().normalizer_queries || parts().normalizer_keys, slots_, w.places);
      }
      for (Index r = 0; r < of.end - of.begin; ++r) read_block(of.begin + r, r, w, out);
    });
  }

 private:
  const HeadSizes& sizes() const { return head_.sizes(); }
  const TangentParts& parts() const { return head_.parts(); }
  bool cross_query() const { return sizes().sums == WeightSums::kCrossQuery; }

  /// s_bw = phi(q_bw) . z_b and its tangent, for the slots of block b; 0 where the query is masked.
  void sum_slots(Index b, const WithTangent<QueryScratch<A>>& w) const {
    A *const sums = slot_sums_.value.block(b), *const dsums = slot_sums_.tangent.block(b);
    std::fill_n(sums, slots_, A(0));
    std::fill_n(dsums, slots_, A(0));
    StripCursor strip(query_blocks_, b, in_.query_mask);
    while (strip.next() > 0) {
      head_.gather_normalizer_queries(strip.tokens(), strip.count(), w);
      head_.sum_weights(w, strip.count(), summaries_.value.key_sum(b),
                        summaries_.tangent.key_sum(b), parts().normalizer_keys);
      for (Index s = 0; s < strip.count(); ++s) {
        sums[strip.places()[s]] = w.value.denominators[s];
        dsums[strip.places()[s]] = w.tangent.denominators[s];
      }
    }
  }

  /// Reads out query block i, the r-th of its group.
  void read_block(Index i, Index r, const Worker& w, const WithTangent<MatrixView<T>>& out) const {
    clear_masked(query_blocks_, i, in_.query_mask, out.value);
    clear_masked(query_blocks_, i, in_.query_mask, out.tangent);
    StripCursor strip(query_blocks_, i, in_.query_mask);
    while (strip.next() > 0) {
      const Index *const tokens = strip.tokens(), count = strip.count();
      Prefetch next(tiles_of<A>(count, sizes().values), strip.ahead().tokens, strip.ahead().count,
                    in_.q);
      head_.gather_queries(tokens, count, w.queries);
      write_sums(strip, r, w);
      head_.divide(count, w.queries);
      multiply_mixtures(count, r, w, next);
      next.finish();
      head_.write(tokens, count, w.queries, out);
    }
  }

  /// r_t and dr_t of the queries in scratch.
  void write_sums(const auto& strip, Index r, const Worker& w) const {
    const Index count = strip.count();
    if (sizes().sums == WeightSums::kToken) {
      if (sizes().separate_normalizer()) {
        head_.gather_normalizer_queries(strip.tokens(), count, w.queries);
      }
      head_.sum_weights(w.queries, count, w.mixtures.key_sums.value.row(r),
                        w.mixtures.key_sums.tangent.row(r), parts().key_sums());
    } else if (cross_query()) {
      for (Index s = 0; s < count; ++s) {
        const Index place = strip.places()[s];
        w.queries.value.denominators[s] = w.places.value.row(r)[place];
        w.queries.tangent.denominators[s] = w.places.tangent.row(r)[place];
      }
    }
  }

  /// o_t = phi(q_t)^T S~_i / den_t and dn_t = dphi(q_t)^T S~_i + phi(q_t)^T dS~_i.
  void multiply_mixtures(Index count, Index r, const Worker& w, Prefetch& next) const {
    const Index d = sizes().features, e = sizes().values;
    const Rows<A> mixture{w.mixtures.mixtures.value.kv.row(r), e}, dn = w.queries.tangent.outputs;
    multiply<A>({.out = w.queries.value.outputs,
                 .a = w.queries.value.queries.matrix(count, d),
                 .b = mixture,
                 .cols = e,
                 .factors = w.queries.value.factors,
                 .next = &next});
    Start start = Start::kZero;
    if (parts().queries) {
      multiply<A>(
          {.out = dn, .a = w.queries.tangent.queries.matrix(count, d), .b = mixture, .cols = e});
      start = Start::kTarget;
    }
    if (parts().mixtures()) {
      multiply<A>({.out = dn,
                   .a = w.queries.value.queries.matrix(count, d),
                   .b = {w.mixtures.mixtures.tangent.kv.row(r), e},
                   .cols = e,
                   .start = start});
    } else if (!parts().queries) {
      for (Index s = 0; s < count; ++s) std::fill_n(dn.row(s), e, A(0));
    }
  }

  const Inputs<T>& in_;
  const QueryBlocks& query_blocks_;
  const KeyBlocks& key_blocks_;
  HeadTangent<T, Op> head_;
  Index slots_;  // W of CrossQuery, 0 of the others
  Index group_;  // query blocks that are mixed together
  WithTangent<HeadSummaries<A>> summaries_;
  WithTangent<SlotSums<A>> slot_sums_;
  Workers<Worker> workers_;
};

}  // namespace detail
}  // namespace MHLA_TARGET
}  // namespace mhla

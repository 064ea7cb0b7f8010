#pragma once

/// \file
/// MHLA over a sequence where a token reads only itself and what came before, chunk by chunk.
///
///     S~_i = sum_{b<i} m_ib S_b                                   mixing.hpp
///     o_t  = (phi(q_t)^T S~_i + sum_{j<=t, j in i} m_ii phi(q_t).phi(k_j) v_j^T) / den_t
///                                                                 read_out.hpp, intra_block.hpp
///
/// Blocks are runs of consecutive tokens in order; the last one may be short. Of the mixing matrix
/// only the leading [M,M] part and of that the lower triangle is read. Equal to naive_attention
/// with `causal`. Cost: 4*N*D*E + M^2*D*E + about N*W*(D+E) flops; memory as bidirectional.
/// Source: arXiv:2601.07832, section 4.2 and appendix C.

#include <algorithm>
#include <utility>

#include "mhla/attention/head_summaries.hpp"
#include "mhla/attention/operator.hpp"
#include "mhla/core/arch.hpp"
#include "mhla/core/executor.hpp"
#include "mhla/core/workspace.hpp"
#include "mhla/stage/intra_block.hpp"
#include "mhla/stage/mixing.hpp"
#include "mhla/stage/read_out.hpp"

namespace mhla::inline MHLA_TARGET {

/// Writes the output of one head into `out` [N,E], which must not overlap the inputs.
/// \param blocks     blocks of consecutive tokens, in order: Contiguous or BlockSizes
/// \param mixing     at least [M,M]; the leading part is used
/// \param workspace  at least causal_workspace_bytes(...), or empty to allocate
/// \param executor   splits over blocks
/// \throws shape_error, option_error for anything that does not fit, before `out` is touched.
template <Scalar T, Partition Blocks, CausalOperatorOn<T> Op, Executor X = Sequential>
void causal(const Inputs<T>& in, const Blocks& blocks, const MixingMatrix<accumulator_t<T>>& mixing,
            const Op& op, std::type_identity_t<MatrixView<T>> out, Workspace workspace = {},
            X&& executor = {});

/// Bytes of workspace such a call needs; the data of `in` is not read.
template <Scalar T, Partition Blocks, CausalOperatorOn<T> Op, Executor X = Sequential>
std::size_t causal_workspace_bytes(const Inputs<T>& in, const Blocks& blocks, const Op& op,
                                   const X& executor = {});

/// Returns causal self-attention of Eigen matrices q [N,D], k [N,D], v [N,E], as [N,E].
template <EigenDense Q, EigenDense K, EigenDense V, Partition Blocks,
          CausalOperatorOn<typename Q::Scalar> Op = Operator<>>
auto causal(const Q& q, const K& k, const V& v, const Blocks& blocks,
            const MixingMatrix<accumulator_t<typename Q::Scalar>>& mixing, const Op& op = {})
    -> Matrix<typename Q::Scalar>;

// ------------------------------------------------------------------------------------------------

namespace detail {

/// Scratch of one worker that reads out a causal block.
template <class A>
struct CausalScratch {
  KeyScratch<A> keys;
  QueryScratch<A> queries;
  BlockKeys<A> block;
  BlockKeys<A> normalizer_block;  // of the denominator's own keys

  /// \param w  tokens of the longest block
  CausalScratch(const char* function, Arena& arena, Index query_width, Index key_width,
                const HeadSizes& n, Index w)
      : keys(function, arena, key_width, std::max(n.features, n.normalizer_features), n.values),
        queries(function, arena, query_width, n.features, n.normalizer_features, n.values),
        block(function, arena, w, n.features, n.values) {
    if (n.normalizer_features > 0) {
      normalizer_block = BlockKeys<A>(function, arena, w, n.normalizer_features, 0);
    }
  }
};

template <class A, Scalar T>
CausalScratch<A> make_causal_scratch(const char* function, Arena& arena, const Inputs<T>& in,
                                     const HeadSizes& sizes, Index w) {
  return {function,
          arena,
          std::max(in.q.cols, in.normalizer_q.cols),
          std::max(in.k.cols, in.normalizer_k.cols),
          sizes,
          w};
}

/// Loads the kept keys and values of block b, the keys times `weight`.
template <Scalar T, class A, Partition P, class Map>
void load_block(MatrixView<const T> k, MatrixView<const T> v, const P& blocks, Index b, Mask mask,
                const Map& map, A weight, KeyScratch<A>& scratch, BlockKeys<A>& block) {
  const Index d = map.features(k.cols);
  block.count = 0;
  StripCursor strip(blocks, b, mask);
  while (strip.next() > 0) {
    gather_features(k, strip.tokens(), strip.count(), map, scratch.raw, scratch.keys);
    gather(v, strip.tokens(), strip.count(), scratch.values);
    append_keys(scratch.keys, scratch.values, strip.slots(), strip.count(), d, v.cols, weight,
                block);
  }
}

/// Writes the outputs of block i, given the mixture of what came before and the weight m_ii of the
/// block itself. Leaves the block's keys and values in `scratch`.
template <Scalar T, class A, Partition P, class Op>
void read_causal_block(const Inputs<T>& in, const P& blocks, Index i, const Op& op, A weight,
                       const A* mixture, const A* mixed_key_sum, const HeadSizes& sizes,
                       CausalScratch<A>& scratch, MatrixView<T> out) {
  using Z = normalizer_t<Op>;
  const bool own_normalizer = sizes.normalizer_features > 0;
  const A factor = static_cast<A>(op.scale);
  load_block(in.k, in.v, blocks, i, in.key_mask, op.key_map, weight, scratch.keys, scratch.block);
  if (own_normalizer) {
    load_block(in.normalizer_k, MatrixView<const T>{nullptr, in.k.rows, 0, 0}, blocks, i,
               in.key_mask, op.key_map, weight, scratch.keys, scratch.normalizer_block);
  }
  const QueryScratch<A>& rows = scratch.queries;
  clear_masked(blocks, i, in.query_mask, out);
  StripCursor strip(blocks, i, in.query_mask);
  while (strip.next() > 0) {
    const Index count = strip.count();
    gather_queries(in.q, strip.tokens(), count, op.query_map, factor, rows.raw, rows.queries);
    read_mixture(rows.queries, count, sizes.features, mixture, sizes.values, rows.outputs);
    if constexpr (std::same_as<Z, KeySum>) {
      const Index dz = key_sum_features(sizes);
      if (own_normalizer) {
        gather_queries(in.normalizer_q, strip.tokens(), count, op.query_map, factor, rows.raw,
                       rows.normalizer_queries);
      }
      key_sum_denominators(rows.normalizer_queries, count, dz, mixed_key_sum,
                           static_cast<A>(op.normalizer.eps), rows.denominators);
    }
    A* const own_sums = kUsesKeySums<Z> ? rows.denominators : nullptr;
    add_intra_block(rows.queries, strip.slots(), count, sizes.features, sizes.values, scratch.block,
                    rows.outputs, own_normalizer ? nullptr : own_sums);
    if (own_normalizer && own_sums != nullptr) {
      add_intra_block(rows.normalizer_queries, strip.slots(), count, sizes.normalizer_features, 0,
                      scratch.normalizer_block, rows.outputs, own_sums);
    }
    if constexpr (kUsesKeySums<Z>) {
      divide_rows(rows.outputs, count, sizes.values, rows.denominators);
    }
    scatter(rows.outputs, strip.tokens(), count, out);
  }
}

/// Adds the block that `scratch` was left with to the sums that later tokens read:
/// R += m_ii phi(K)^T V [D,E], and the same of z unless `key_sum` is null.
template <class A>
void extend_running(const CausalScratch<A>& scratch, const HeadSizes& sizes, A* running,
                    A* key_sum) {
  const BlockKeys<A>& block = scratch.block;
  multiply<A>(Start::kTarget, {running, sizes.values}, {block.transposed, block.stride, 1},
              {block.values.data, block.values.stride}, sizes.features, sizes.values, block.count);
  if (key_sum == nullptr) return;
  const BlockKeys<A>& keys = sizes.normalizer_features > 0 ? scratch.normalizer_block : block;
  for (Index j = 0; j < key_sum_features(sizes); ++j)
    key_sum[j] += sum(keys.transposed + j * keys.stride, keys.count);
}

/// One head of the causal form.
template <Scalar T, Partition Blocks, class Op>
class CausalHead {
  using A = accumulator_t<T>;

  struct Worker {
    CausalScratch<A> scratch;
    Mixtures<A> mixtures;
  };

 public:
  CausalHead(const char* function, Arena& arena, const Inputs<T>& in, const Blocks& blocks,
             const Op& op, Index workers)
      : function_(function),
        in_(in),
        blocks_(blocks),
        op_(op),
        sizes_(head_sizes(in, op)),
        longest_(largest_block(blocks)),
        group_(group_blocks<A>(blocks.blocks(), sizes_.features, sizes_.values, workers)),
        summaries_(function, arena, sizes_, blocks.blocks()),
        workers_(function, arena, workers, [this](Arena& a) { return make_worker(a); }) {}

  template <class X>
  void run(const MixingMatrix<A>& mixing, MatrixView<T> out, X& executor) {
    const Index m = blocks_.blocks();
    executor.for_each(m - 1, [&](Index b, Index w) {  // nothing reads the summary of the last block
      auto scratch = worker(w).scratch.keys;
      summaries_.summarize_block(in_, blocks_, b, op_, scratch);
    });
    executor.for_each((m + group_ - 1) / group_, [&](Index g, Index w) {
      read_group(mixing, g * group_, std::min((g + 1) * group_, m), w, out);
    });
  }

 private:
  Worker make_worker(Arena& arena) const {
    auto scratch = make_causal_scratch<A>(function_, arena, in_, sizes_, longest_);
    return {scratch,
            Mixtures<A>(function_, arena, group_, blocks_.blocks(),
                        std::max(sizes_.features, sizes_.normalizer_features), sizes_.values)};
  }
  Worker worker(Index w) const {
    Arena arena(workers_.share(w));
    return make_worker(arena);
  }

  /// Mixes and reads out blocks [begin, end).
  void read_group(const MixingMatrix<A>& mixing, Index begin, Index end, Index w,
                  MatrixView<T> out) const {
    auto local = worker(w);
    const MixingGroup<A> group(mixing, begin, end, Reach::kEarlier, summaries_.blocks(),
                               local.mixtures.coefficients);
    summaries_.mix_group(group, local.mixtures);
    for (Index i = begin; i < end; ++i) {
      read_causal_block(in_, blocks_, i, op_, mixing(i, i), local.mixtures.block(i - begin),
                        local.mixtures.key_sum + (i - begin) * key_sum_features(sizes_), sizes_,
                        local.scratch, out);
    }
  }

  const char* function_;
  const Inputs<T>& in_;
  const Blocks& blocks_;
  const Op& op_;
  HeadSizes sizes_;
  Index longest_;
  Index group_;  // blocks that are mixed together
  HeadSummaries<T, Op> summaries_;
  Shares workers_;
};

/// Throws unless one head's arguments fit each other.
template <Scalar T, Partition Blocks, class Op>
void expect_causal(const char* function, const Inputs<T>& in, const Blocks& blocks,
                   const MixingMatrix<accumulator_t<T>>& mixing, const Op& op, MatrixView<T> out) {
  expect_inputs(function, in, op, out);
  expect_shape(function, "k", in.k, in.q.rows, -1);
  expect_partition(function, "blocks", blocks, in.q.rows);
  expect_ordered(function, "blocks", blocks);
  expect_leading_mixing(function, mixing, blocks.blocks(), blocks.blocks());
}

/// The form without the checks.
template <Scalar T, Partition Blocks, class Op, class X>
void run_causal(const Inputs<T>& in, const Blocks& blocks,
                const MixingMatrix<accumulator_t<T>>& mixing, const Op& op, MatrixView<T> out,
                Workspace workspace, X& executor) {
  constexpr const char* kName = "causal";
  Scratch scratch(kName, workspace, causal_workspace_bytes(in, blocks, op, executor));
  CausalHead<T, Blocks, Op>(kName, scratch.arena(), in, blocks, op, executor.workers())
      .run(mixing, out, executor);
}

}  // namespace detail

template <Scalar T, Partition Blocks, CausalOperatorOn<T> Op, Executor X>
std::size_t causal_workspace_bytes(const Inputs<T>& in, const Blocks& blocks, const Op& op,
                                   const X& executor) {
  detail::Arena counting;
  detail::CausalHead<T, Blocks, Op>("causal", counting, in, blocks, op, executor.workers());
  return counting.bytes();
}

template <Scalar T, Partition Blocks, CausalOperatorOn<T> Op, Executor X>
void causal(const Inputs<T>& in, const Blocks& blocks, const MixingMatrix<accumulator_t<T>>& mixing,
            const Op& op, std::type_identity_t<MatrixView<T>> out, Workspace workspace,
            X&& executor) {
  detail::expect_causal("causal", in, blocks, mixing, op, out);
  detail::run_causal(in, blocks, mixing, op, out, workspace, executor);
}

template <EigenDense Q, EigenDense K, EigenDense V, Partition Blocks,
          CausalOperatorOn<typename Q::Scalar> Op>
auto causal(const Q& q, const K& k, const V& v, const Blocks& blocks,
            const MixingMatrix<accumulator_t<typename Q::Scalar>>& mixing, const Op& op)
    -> Matrix<typename Q::Scalar> {
  using T = typename Q::Scalar;
  Matrix<T> out(q.rows(), v.cols());
  causal(Inputs<T>{.q = q, .k = k, .v = v}, blocks, mixing, op, out);
  return out;
}

}  // namespace mhla::inline MHLA_TARGET

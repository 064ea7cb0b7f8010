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
#include "mhla/stage/key_tiles.hpp"
#include "mhla/stage/mixing.hpp"
#include "mhla/stage/read_out.hpp"

namespace mhla::inline MHLA_TARGET {

/// Writes the output of one head into `out` [N,E], which must not overlap the inputs.
/// \param blocks     blocks of consecutive tokens, in order: Contiguous or BlockSizes
/// \param mixing     at least [M,M]; the leading part is used
/// \param workspace  at least causal_workspace_bytes(...), or empty to allocate
/// \param executor   splits over blocks
/// \param kept       where the summaries are left for causal_gradient, at least
///                   causal_kept_bytes(...); empty to keep nothing
/// \throws shape_error, option_error for anything that does not fit, before `out` is touched.
template <Scalar T, Partition Blocks, CausalOperatorOn<T> Op, Executor X = Sequential>
void causal(const Inputs<T>& in, const Blocks& blocks, const MixingMatrix<accumulator_t<T>>& mixing,
            const Op& op, std::type_identity_t<MatrixView<T>> out, Workspace workspace = {},
            X&& executor = {}, Workspace kept = {});

/// Bytes of workspace such a call needs; the data of `in` is not read.
template <Scalar T, Partition Blocks, CausalOperatorOn<T> Op, Executor X = Sequential>
std::size_t causal_workspace_bytes(const Inputs<T>& in, const Blocks& blocks, const Op& op,
                                   const X& executor = {});

/// Bytes of the summaries that such a call may keep; the data of `in` is not read.
template <Scalar T, Partition Blocks, CausalOperatorOn<T> Op>
std::size_t causal_kept_bytes(const Inputs<T>& in, const Blocks& blocks, const Op& op);

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
  Rows<A> scores;                // [strip, strip]
  KeyTiles<A> block;             // m_ii phi(K) and V of the block, as far as they were needed
  KeyTiles<A> normalizer_block;  // of the denominator's own keys

  /// \param w  tokens of the longest block
  CausalScratch(const char* function, Arena& arena, Index query_width, Index key_width,
                const HeadSizes& n, Index w)
      : keys(function, arena, key_width, std::max(n.features, n.normalizer_features), n.values),
        queries(function, arena, query_width, n.features, n.normalizer_features, n.values),
        scores(function, arena, kStripTokens, kStripTokens),
        block(function, arena, w, n.features, n.values) {
    if (n.normalizer_features > 0) {
      normalizer_block = KeyTiles<A>(function, arena, w, n.normalizer_features, 0);
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

/// One block of the causal form: its keys are brought in as its queries come to see them.
template <Scalar T, Partition P, class Op>
class CausalBlock {
  using A = accumulator_t<T>;
  using Z = normalizer_t<Op>;

 public:
  /// \param weight  m_ii
  CausalBlock(const Inputs<T>& in, const P& blocks, Index i, const Op& op, A weight,
              const HeadSizes& sizes, CausalScratch<A>& scratch)
      : in_(in),
        op_(op),
        weight_(weight),
        sizes_(sizes),
        scratch_(scratch),
        keys_(blocks, i, in.key_mask),
        queries_(blocks, i, in.query_mask) {
    scratch.block.clear();
    scratch.normalizer_block.clear();
    last_slot_ = blocks.block_size(i) - 1;
  }

  /// Writes the outputs, given the mixture of what came before. Leaves all keys of the block in
  /// scratch.
  void read_out(const A* mixture, const A* mixed_key_sum, MatrixView<T> out) {
    while (queries_.next() > 0) {
      const Index count = queries_.count();
      append_keys(queries_.slots()[count - 1]);
      read_strip(mixture, out);
      write_denominators(mixed_key_sum);
      A* const denominators = kUsesKeySums<Z> ? rows().denominators : nullptr;
      add_intra_block(rows().queries, queries_.slots(), count, scratch_.block, scratch_.scores,
                      rows().outputs, own_normalizer() ? nullptr : denominators);
      if (own_normalizer() && denominators != nullptr) {
        add_intra_block(rows().normalizer_queries, queries_.slots(), count,
                        scratch_.normalizer_block, scratch_.scores, rows().outputs, denominators);
      }
      if constexpr (kUsesKeySums<Z>) {
        divide_rows(rows().outputs, count, sizes_.values, denominators);
      }
      scatter(rows().outputs, queries_.tokens(), count, out);
    }
    append_keys(last_slot_);
  }

 private:
  const QueryScratch<A>& rows() const { return scratch_.queries; }
  bool own_normalizer() const { return sizes_.normalizer_features > 0; }

  /// Brings in the keys in slots 0..slot, in whole strips.
  void append_keys(Index slot) {
    while (keys_.more() && keys_.ahead().slots[0] <= slot) {
      keys_.next();
      append_strip(in_.k, in_.v, scratch_.block);
      if (!own_normalizer()) continue;
      append_strip(in_.normalizer_k, {nullptr, in_.k.rows, 0, 0}, scratch_.normalizer_block);
    }
  }
  void append_strip(MatrixView<const T> k, MatrixView<const T> v, KeyTiles<A>& tiles) {
    gather_features(k, keys_.tokens(), keys_.count(), op_.key_map, scratch_.keys.raw,
                    scratch_.keys.keys);
    tiles.append(scratch_.keys.keys, v, keys_.tokens(), keys_.slots(), keys_.count(), weight_);
  }

  /// outputs = phi(Q) S~ for a strip of queries; asks for what the next strips need.
  void read_strip(const A* mixture, MatrixView<T> out) {
    const Index count = queries_.count();
    Lookahead lookahead(queries_.ahead(), in_.q, out);
    lookahead.add(keys_.ahead(), in_.k);
    lookahead.add(keys_.ahead(), in_.v);
    gather_queries(in_.q, queries_.tokens(), count, op_.query_map, static_cast<A>(op_.scale),
                   rows().raw, rows().queries);
    Index column = 0;
    for (Index r = 0; r < count; r += kTileRows, column += panels<A>(sizes_.values)) {
      read_mixture(rows().queries.below(r), std::min<Index>(kTileRows, count - r), sizes_.features,
                   mixture, sizes_.values, rows().outputs.below(r), lookahead, column);
    }
  }

  /// den_t of a strip of queries as far as the blocks before are concerned, and eps.
  void write_denominators(const A* mixed_key_sum) {
    if constexpr (std::same_as<Z, KeySum>) {
      if (own_normalizer()) {
        gather_queries(in_.normalizer_q, queries_.tokens(), queries_.count(), op_.query_map,
                       static_cast<A>(op_.scale), rows().raw, rows().normalizer_queries);
      }
      key_sum_denominators(rows().normalizer_queries, queries_.count(), key_sum_features(sizes_),
                           mixed_key_sum, static_cast<A>(op_.normalizer.eps), rows().denominators);
    }
  }

  const Inputs<T>& in_;
  const Op& op_;
  A weight_;
  const HeadSizes& sizes_;
  CausalScratch<A>& scratch_;
  StripCursor<P> keys_, queries_;
  Index last_slot_;
};

/// Writes the outputs of block i, given the mixture of what came before and the weight m_ii of the
/// block itself. Leaves the block's keys and values in `scratch`.
template <Scalar T, class A, Partition P, class Op>
void read_causal_block(const Inputs<T>& in, const P& blocks, Index i, const Op& op, A weight,
                       const A* mixture, const A* mixed_key_sum, const HeadSizes& sizes,
                       CausalScratch<A>& scratch, MatrixView<T> out) {
  clear_masked(blocks, i, in.query_mask, out);
  CausalBlock<T, P, Op>(in, blocks, i, op, weight, sizes, scratch)
      .read_out(mixture, mixed_key_sum, out);
}

/// Adds the block that `scratch` was left with to the sums that later tokens read:
/// R += m_ii phi(K)^T V [D,E], and the same of z unless `key_sum` is null.
template <class A>
void extend_running(const CausalScratch<A>& scratch, const HeadSizes& sizes, A* running,
                    A* key_sum) {
  const KeyTiles<A>& block = scratch.block;
  const KeyTiles<A>& keys = sizes.normalizer_features > 0 ? scratch.normalizer_block : block;
  for (Index t = 0; t < block.tiles(); ++t) {
    const RightOperand<A> k = block.keys(t);
    const Rows<A> v = block.values(t);
    multiply(Start::kTarget, Target<A>{running, sizes.values}, LeftRows<A>{k.data, k.depth_stride},
             RightOperand<A>{v.data, v.stride}, sizes.features, sizes.values, block.size(t));
    if (key_sum == nullptr) continue;
    for (Index j = 0; j < key_sum_features(sizes); ++j) {
      key_sum[j] += sum(keys.keys(t).row(j), keys.size(t));
    }
  }
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
  /// \param kept  where the summaries lie; null for the arena
  CausalHead(const char* function, Arena& arena, Arena* kept, const Inputs<T>& in,
             const Blocks& blocks, const Op& op, Index workers)
      : function_(function),
        in_(in),
        blocks_(blocks),
        op_(op),
        sizes_(head_sizes(in, op)),
        longest_(largest_block(blocks)),
        group_(group_blocks<A>(blocks.blocks(), sizes_.features, sizes_.values, workers)),
        summaries_(function, kept == nullptr ? arena : *kept, sizes_, blocks.blocks()),
        workers_(function, arena, workers, [this](Arena& a) { return make_worker(a); }) {}

  template <class X>
  void run(const MixingMatrix<A>& mixing, MatrixView<T> out, X& executor) {
    const Index m = blocks_.blocks();
    executor.for_each(m - 1, [&](Index b, Index w) {  // nothing reads the summary of the last block
      summaries_.summarize_block(in_, blocks_, b, op_, workers_[w].scratch.keys);
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

  /// Mixes and reads out blocks [begin, end).
  void read_group(const MixingMatrix<A>& mixing, Index begin, Index end, Index w,
                  MatrixView<T> out) const {
    Worker local = workers_[w];
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
  Workers<Worker> workers_;
};

/// Throws unless one head's arguments fit each other.
template <Scalar T, Partition Blocks, class Op>
void expect_causal(const char* function, const Inputs<T>& in, const Blocks& blocks,
                   const MixingMatrix<accumulator_t<T>>& mixing, const Op& op,
                   std::type_identity_t<MatrixView<const T>> out, const char* argument = "out") {
  expect_inputs(function, in, op, out, argument);
  expect_shape(function, "k", in.k, in.q.rows, -1);
  expect_partition(function, "blocks", blocks, in.q.rows);
  expect_ordered(function, "blocks", blocks);
  expect_leading_mixing(function, mixing, blocks.blocks(), blocks.blocks());
}

/// The form without the checks.
template <Scalar T, Partition Blocks, class Op, class X>
void run_causal(const Inputs<T>& in, const Blocks& blocks,
                const MixingMatrix<accumulator_t<T>>& mixing, const Op& op, MatrixView<T> out,
                Workspace workspace, X& executor, Workspace kept = {}) {
  constexpr const char* kName = "causal";
  Scratch scratch(kName, workspace, causal_workspace_bytes(in, blocks, op, executor));
  Arena kept_arena(kept.data());
  CausalHead<T, Blocks, Op>(kName, scratch.arena(), kept.empty() ? nullptr : &kept_arena, in,
                            blocks, op, executor.workers())
      .run(mixing, out, executor);
}

}  // namespace detail

template <Scalar T, Partition Blocks, CausalOperatorOn<T> Op, Executor X>
std::size_t causal_workspace_bytes(const Inputs<T>& in, const Blocks& blocks, const Op& op,
                                   const X& executor) {
  detail::Arena counting;
  detail::CausalHead<T, Blocks, Op>("causal", counting, nullptr, in, blocks, op,
                                    executor.workers());
  return counting.bytes();
}

template <Scalar T, Partition Blocks, CausalOperatorOn<T> Op, Executor X>
void causal(const Inputs<T>& in, const Blocks& blocks, const MixingMatrix<accumulator_t<T>>& mixing,
            const Op& op, std::type_identity_t<MatrixView<T>> out, Workspace workspace,
            X&& executor, Workspace kept) {
  detail::expect_causal("causal", in, blocks, mixing, op, out);
  detail::expect_kept("causal", kept, causal_kept_bytes(in, blocks, op));
  detail::run_causal(in, blocks, mixing, op, out, workspace, executor, kept);
}

template <Scalar T, Partition Blocks, CausalOperatorOn<T> Op>
std::size_t causal_kept_bytes(const Inputs<T>& in, const Blocks& blocks, const Op& op) {
  return detail::head_summaries_bytes("causal", in, blocks.blocks(), op);
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

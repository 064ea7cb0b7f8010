#pragma once

/// \file
/// MHLA for sequences: query t reads keys 0..t, chunk by chunk.
///
///     S~_i = sum_{b < i} m_ib S_b                                      mixing.hpp
///     o_t  = (phi(q_t)^T S~_i + m_ii sum_{j <= t in i} (phi(q_t) . phi(k_j)) v_j^T) / den_t
///
/// Blocks are chunks of consecutive tokens. Strips of 64 tokens of a block join S~_i one after
/// another. A query reads S~_i in one read-out, and the keys of its strip in a small masked product
/// (causal_block.hpp). The form reads only the lower triangle of the mixing matrix. A later token
/// enters no sum, not even multiplied by zero. Equal to naive_attention.
/// Cost: 4*N*D*E + M^2*D*E + N*min(W,64)*(D+E) flops, up to 2*N*D*E more where W > 64; memory
/// M*D*(E+1) numbers for summaries, and per worker as many as the bidirectional form.
/// Source: arXiv:2601.07832, section 4.2 and, inside a block, the chunks of arXiv:2312.06635.

#include <algorithm>

#include "mhla/attention/call_diagnostics.hpp"
#include "mhla/attention/causal_block.hpp"
#include "mhla/attention/form.hpp"
#include "mhla/attention/head_summaries.hpp"
#include "mhla/attention/matrix_calls.hpp"
#include "mhla/attention/operator.hpp"
#include "mhla/core/arch.hpp"
#include "mhla/core/executor.hpp"
#include "mhla/core/workspace.hpp"
#include "mhla/stage/mixing.hpp"

namespace mhla {
inline namespace MHLA_TARGET {

/// Writes the output of one head, or of every head of a batch, into `out`. Eigen matrices q, k, v
/// stand for inputs(q, k, v) in every call (matrix_calls.hpp).
/// \param in      Inputs: one head; BatchInputs: a batch
/// \param blocks  consecutive tokens, in order; for a batch also a function of the sequence length
/// \param mixing  at least [M,M], of which the leading part is used; or one per head
///                [H,M,M], or per sequence and head [B,H,M,M]
/// \param out     [N,E], of a batch [B,N,H,E]; overlaps no input, but may be q itself
/// \throws shape_error, option_error for anything that does not fit, before `out` is touched.
template <AttentionInputs In, BlocksOf Blocks, CausalOperatorOn<detail::scalar_of<In>> Op>
void causal(const In& in, const Blocks& blocks, const detail::mixing_of<In>& mixing, const Op& op,
            const std::type_identity_t<detail::output_of<In>>& out, const Call& call = {});
/// The same with the paper's operator.
template <AttentionInputs In, BlocksOf Blocks>
void causal(const In& in, const Blocks& blocks, const detail::mixing_of<In>& mixing,
            const std::type_identity_t<detail::output_of<In>>& out, const Call& call = {});

/// Returns the output: a Matrix [N,E] of one head, a Tensor [B,N,H,E] of a batch.
template <AttentionInputs In, BlocksOf Blocks,
          CausalOperatorOn<detail::scalar_of<In>> Op = Operator<>>
typename detail::InputTraits<In>::Owner causal(const In& in, const Blocks& blocks,
                                               const detail::mixing_of<In>& mixing,
                                               const Op& op = {}, const Call& call = {});
template <AttentionInputs In, BlocksOf Blocks>
typename detail::InputTraits<In>::Owner causal(const In& in, const Blocks& blocks,
                                               const detail::mixing_of<In>& mixing,
                                               const Call& call) {
  return causal(in, blocks, mixing, Operator<>{}, call);
}

/// Refuses, in a sentence, a normaliser that reads later queries.
template <AttentionInputs In, class Blocks, class M, OperatorOn<detail::scalar_of<In>> Op,
          class... X>
requires(!CausalOperator<Op>)
    detail::Refused<detail::Mistake::kCrossing, In, Blocks, M, Op, X...> causal(const In&,
                                                                                const Blocks&,
                                                                                const M&, const Op&,
                                                                                const X&...);
template <EigenDense Q, class K, class V, class Blocks, class M, OperatorOn<typename Q::Scalar> Op,
          class... X>
requires(!CausalOperator<Op>)
    detail::Refused<detail::Mistake::kCrossing, Q, K, V, Blocks, M, Op, X...> causal(
        const Q&, const K&, const V&, const Blocks&, const M&, const Op&, const X&...);
/// Refuses, in a sentence, what is no call.
template <class... X>
requires(detail::kMistake<X...> !=
         detail::Mistake::kNone) detail::Refused<detail::kMistake<X...>, X...> causal(const X&...);

/// Bytes of workspace for these arguments; reads no data.
template <AttentionInputs In, BlocksOf Blocks,
          CausalOperatorOn<detail::scalar_of<In>> Op = Operator<>>
std::size_t causal_workspace_bytes(const In& in, const Blocks& blocks, const Op& op = {},
                                   const ExecutorRef& executor = {});
/// Bytes of kept summaries for these arguments; reads no data.
template <AttentionInputs In, BlocksOf Blocks,
          CausalOperatorOn<detail::scalar_of<In>> Op = Operator<>>
std::size_t causal_kept_bytes(const In& in, const Blocks& blocks, const Op& op = {});

// ------------------------------------------------------------------------------------------------

namespace detail {

template <Scalar T, Partition Blocks, class Op>
class CausalHead {
  using A = accumulator_t<T>;

  struct Worker {
    CausalScratch<A> scratch;
    Coefficients<A> coefficients;
    Mixtures<A> mixtures;
    Rows<A> key_sums;  // z~ [group, Dz]
  };

 public:
  /// \param kept  memory of the summaries; null: the arena
  CausalHead(const char* function, Arena& arena, Arena* kept, const Inputs<T>& in,
             const Blocks& blocks, const Op& op, Index workers, const BlockShare& share)
      : in_(in),
        blocks_(blocks),
        op_(op),
        n_(head_sizes(in, op)),
        share_(share),
        group_(group_blocks<A>(blocks.blocks(), n_.features, n_.values, workers)),
        summaries_(function, kept == nullptr ? arena : *kept, n_, share),
        workers_(function, arena, workers, [&](Arena& a) {
          return Worker{{function, a, in, op, n_},
                        {function, a, group_, share.all},
                        {function, a, group_, summaries_.values()},
                        {function, a, group_, n_.sum_features()}};
        }) {}

  void run(MixingView<const A> mixing, MatrixView<T> out, const ExecutorRef& executor) {
    summarize(executor);
    read(mixing, out, executor);
  }
  /// Writes the summaries.
  void summarize(const ExecutorRef& executor) const {
    executor.for_each(tasks(), [&](Index b, Index w) { summarize_block(b, w); });
  }
  /// Writes the outputs from the summaries of all earlier blocks.
  void read(MixingView<const A> mixing, MatrixView<T> out, const ExecutorRef& executor) const {
    executor.for_each(groups(), [&](Index g, Index w) {
      const MixingGroup<A> coefficients = group(mixing, g, w);
      mix(coefficients, values(), mixtures(w));
      mix_sums(coefficients, w);
      for (Index r = 0; r < coefficients.rows(); ++r) read_block(coefficients, r, w, out);
    });
  }

  // The pieces of both steps, by worker w, as in bidirectional_head.hpp.

  Index tasks() const { return summaries_.tasks_before_last(); }
  void summarize_block(Index b, Index w) const {
    summaries_.summarize(in_, blocks_, b, op_, workers_[w].scratch.keys);
  }
  template <class F>
  void for_each_array(F&& f) const {
    summaries_.for_each_array(f);
  }
  Index groups() const { return groups_of(blocks_.blocks(), group_); }
  MixingGroup<A> group(MixingView<const A> mixing, Index g, Index w) const {
    const ColumnSpan span = group_blocks(share_, group_, g);
    return MixingGroup<A>(mixing, span.begin, span.end, Reach::kEarlier, share_.all,
                          workers_[w].coefficients);
  }
  const auto& values() const { return summaries_.values(); }
  const auto& mixtures(Index w) const { return workers_[w].mixtures; }
  void mix_sums(const MixingGroup<A>& coefficients, Index w) const {
    coefficients.mix(workers_[w].key_sums, summaries_.key_sums(), n_.sum_features());
  }
  void read_block(const MixingGroup<A>& coefficients, Index r, Index worker,
                  MatrixView<T> out) const {
    const Worker& w = workers_[worker];
    const Index i = coefficients.begin() + r;  // of all blocks
    read_causal_block(in_, blocks_, i - share_.first, op_, n_,
                      CausalSums<A>{coefficients.matrix()(i, i), w.mixtures.kv.row(r),
                                    w.key_sums.row(r), w.mixtures.behind(r, coefficients.rows())},
                      w.scratch, out);
  }

 private:
  const Inputs<T>& in_;
  const Blocks& blocks_;
  const Op& op_;
  HeadSizes n_;
  BlockShare share_;
  Index group_;  // blocks that are mixed together
  HeadSummaries<A> summaries_;
  Workers<Worker> workers_;
};

/// The work of one head, by its mixing; that of decaying matrices is in causal_decay.hpp.
template <class A, Scalar T, Partition Blocks, class Op>
auto causal_head(const char* function, Arena& arena, Arena* kept, const MixingView<const A>&,
                 const Inputs<T>& in, const Blocks& blocks, const Op& op, Index workers) {
  return CausalHead(function, arena, kept, in, blocks, op, workers, whole(blocks));
}
/// \tparam Mixing  MixingView<const A> or DecayView<const A>
template <class A, BlocksOf Blocks, class Op, class Mixing = MixingView<const A>>
struct CausalForm {
  static constexpr unsigned kKeeps = 2;  // the last summary is not written

  const char* name;
  const Blocks& blocks;
  Mixing mixing;  ///< a MixingView may be absent while bytes are counted
  const Op& op;

  template <Scalar T>
  void check(const Inputs<T>& in, std::type_identity_t<MatrixView<const T>> out,
             const char* argument) const {
    expect_causal_normalizer(name, op);
    expect_inputs(name, in, op, out, argument);
    expect_shape(name, "k", in.k, in.q.rows, -1);
    const auto& partition = blocks_of(blocks, in.q.rows);
    expect_partition(name, "blocks", partition, in.q.rows);
    expect_ordered(name, "blocks", partition);
    expect_causal_mixing(*this, mixing, partition.blocks());
  }
  template <Scalar T>
  std::size_t bytes(const Inputs<T>& in, Index workers) const {
    const auto& partition = blocks_of(blocks, in.q.rows);
    return counted_bytes([&](Arena& arena) {
      return causal_head(name, arena, nullptr, mixing, in, partition, op, workers);
    });
  }
  template <Scalar T>
  std::size_t kept_bytes(const Inputs<T>& in) const {
    return counted_bytes([&](Arena& arena) {
      return HeadSummaries<A>(name, arena, head_sizes(in, op),
                              blocks_of(blocks, in.q.rows).blocks());
    });
  }
  template <Scalar T>
  void run(Arena& arena, Arena* kept, const Inputs<T>& in, MatrixView<T> out,
           const ExecutorRef& executor) const {
    const auto& partition = blocks_of(blocks, in.q.rows);
    causal_head(name, arena, kept, mixing, in, partition, op, executor.workers())
        .run(mixing, out, executor);
  }
};

template <class Form, class A>
void expect_causal_mixing(const Form& form, const MixingView<const A>& mixing, Index blocks) {
  expect_leading_mixing(form.name, mixing, blocks, blocks);
}

template <class In, class Blocks, class Op>
auto causal_form(const In& /*in*/, const Blocks& blocks, const mixing_of<In>& mixing, const Op& op,
                 const char* name = "causal") {
  return CausalForm<sum_of<In>, Blocks, Op>{name, blocks, mixing, op};
}

}  // namespace detail

template <AttentionInputs In, BlocksOf Blocks, CausalOperatorOn<detail::scalar_of<In>> Op>
void causal(const In& in, const Blocks& blocks, const detail::mixing_of<In>& mixing, const Op& op,
            const std::type_identity_t<detail::output_of<In>>& out, const Call& call) {
  detail::run_form(detail::causal_form(in, blocks, mixing, op), in, out, call);
}

template <AttentionInputs In, BlocksOf Blocks>
void causal(const In& in, const Blocks& blocks, const detail::mixing_of<In>& mixing,
            const std::type_identity_t<detail::output_of<In>>& out, const Call& call) {
  causal(in, blocks, mixing, Operator<>{}, out, call);
}

template <AttentionInputs In, BlocksOf Blocks, CausalOperatorOn<detail::scalar_of<In>> Op>
typename detail::InputTraits<In>::Owner causal(const In& in, const Blocks& blocks,
                                               const detail::mixing_of<In>& mixing, const Op& op,
                                               const Call& call) {
  return detail::run_form(detail::causal_form(in, blocks, mixing, op), in, call);
}

template <AttentionInputs In, BlocksOf Blocks, CausalOperatorOn<detail::scalar_of<In>> Op>
std::size_t causal_workspace_bytes(const In& in, const Blocks& blocks, const Op& op,
                                   const ExecutorRef& executor) {
  return detail::form_bytes(detail::causal_form(in, blocks, {}, op), in, executor);
}

template <AttentionInputs In, BlocksOf Blocks, CausalOperatorOn<detail::scalar_of<In>> Op>
std::size_t causal_kept_bytes(const In& in, const Blocks& blocks, const Op& op) {
  return detail::form_kept_bytes(detail::causal_form(in, blocks, {}, op), in);
}

}  // namespace MHLA_TARGET
}  // namespace mhla

#pragma once

/// \file
/// The tangent of causal attention (attention/causal.hpp): the output, and its derivative along
/// directions of q, k, v, the mixing matrix and the weights of the feature maps (forward mode, a
/// Jacobian-vector product). Between blocks it is that of tangent/bidirectional.hpp, with mixtures
/// of earlier blocks, and inside a block that of tangent/causal_block.hpp.
///
/// The output has the bits of causal. Row t of the tangent depends on no later token, nor on the
/// direction of a later token. Its error is bounded as in tangent/bidirectional.hpp, with 2 W in
/// place of W. Where den_t is 0 the tangent is 0.
/// Cost: three times the forward with all directions; a direction that is absent costs nothing.
/// Memory: twice that of causal.
/// Source: the product and the quotient rule on arXiv:2601.07832, section 4.2.

#include "mhla/attention/causal.hpp"
#include "mhla/attention/head_summaries.hpp"
#include "mhla/core/arch.hpp"
#include "mhla/core/executor.hpp"
#include "mhla/core/workspace.hpp"
#include "mhla/gradient/check.hpp"
#include "mhla/stage/mixing.hpp"
#include "mhla/tangent/causal_block.hpp"
#include "mhla/tangent/driver.hpp"
#include "mhla/tangent/head_tangent.hpp"
#include "mhla/tangent/tangents.hpp"

namespace mhla {
inline namespace MHLA_TARGET {

/// Writes the output and its tangent of one head, or of all heads of a batch. It reads the lower
/// triangle of the leading [M,M] part of the mixing matrix and of its tangent.
/// \param tangents  directions of the tensors; absent ones count as zeros
/// \param out       {.value, .tangent}, each shaped as the output; they overlap nothing
/// \throws shape_error, option_error for anything that does not fit, before anything is written.
template <AttentionInputs In, BlocksOf Blocks, TangentOperatorOn<detail::scalar_of<In>> Op>
requires CausalOperator<Op>
void causal_tangent(const In& in, const Blocks& blocks, const detail::mixing_of<In>& mixing,
                    const Op& op, const detail::tangents_of<In>& tangents,
                    const detail::tangent_output_of<In>& out,
                    const detail::parameter_tangents_of<In>& parameters = {},
                    const Call& call = {});
/// Returns both: matrices [N,E] of one head, tensors [B,N,H,E] of a batch.
template <AttentionInputs In, BlocksOf Blocks, TangentOperatorOn<detail::scalar_of<In>> Op>
requires CausalOperator<Op> detail::tangent_owner_of<In> causal_tangent(
    const In& in, const Blocks& blocks, const detail::mixing_of<In>& mixing, const Op& op,
    const detail::tangents_of<In>& tangents,
    const detail::parameter_tangents_of<In>& parameters = {}, const Call& call = {});

/// Bytes of workspace for these arguments and any tangents; reads no data.
template <AttentionInputs In, BlocksOf Blocks, TangentOperatorOn<detail::scalar_of<In>> Op>
requires CausalOperator<Op> std::size_t causal_tangent_workspace_bytes(
    const In& in, const Blocks& blocks, const Op& op, const ExecutorRef& executor = {});

// ------------------------------------------------------------------------------------------------

namespace detail {

template <Scalar T, Partition Blocks, class Op>
class CausalTangent {
  using A = accumulator_t<T>;
  using Group = typename HeadTangent<T, Op>::Group;

  struct Worker {
    CausalTangentScratch<A> scratch;
    TangentMixtures<A> mixtures;
  };

 public:
  CausalTangent(const char* function, Arena& arena, const Inputs<T>& in, const Blocks& blocks,
                const Op& op, Index workers)
      : in_(in),
        blocks_(blocks),
        head_(in, op),
        group_(group_blocks<A>(blocks.blocks(), head_.sizes().features, head_.sizes().values,
                               workers)),
        summaries_{{function, arena, head_.sizes(), blocks.blocks()},
                   {function, arena, head_.sizes(), blocks.blocks()}},
        workers_(function, arena, workers, [&](Arena& a) {
          return Worker{{function, a, head_},
                        {function, a, group_, blocks.blocks(), summaries_.value.values(),
                         head_.sizes().sum_features()}};
        }) {}

  void run(MixingView<const A> mixing, const Tangents<T>& tangents,
           const ParameterTangents<A>& parameters, const WithTangent<MatrixView<T>>& out,
           const ExecutorRef& executor) {
    head_.set(tangents, parameters);
    executor.for_each(summaries_.value.tasks_before_last(), [&](Index b, Index w) {
      head_.summarize(blocks_, b, workers_[w].scratch.keys, summaries_);
    });
    executor.for_each(groups_of(blocks_.blocks(), group_), [&](Index g, Index worker) {
      const Worker& w = workers_[worker];
      const ColumnSpan of = group_blocks(whole(blocks_), group_, g);
      const Group group = head_.group(mixing, of, Reach::kEarlier, blocks_.blocks(), w.mixtures);
      head_.mix(group, summaries_, w.mixtures);
      for (Index r = 0; r < of.end - of.begin; ++r) read_block(group, of.begin + r, r, w, out);
    });
  }

 private:
  void read_block(const Group& group, Index i, Index r, const Worker& w,
                  const WithTangent<MatrixView<T>>& out) const {
    const TangentMixtures<A>& m = w.mixtures;
    const auto sums = [&](const MixingGroup<A>& of, Rows<A> matrices, Rows<A> key_sums) {
      return CausalSums<A>{of.matrix()(i, i), matrices.row(r), key_sums.row(r)};
    };
    CausalBlockTangent<T, Blocks, Op>(
        head_, in_, blocks_, i,
        {sums(group.value, m.mixtures.value.kv, m.key_sums.value),
         sums(group.tangent, m.mixtures.tangent.kv, m.key_sums.tangent)},
        w.scratch)
        .read_out(out);
  }

  const Inputs<T>& in_;
  const Blocks& blocks_;
  HeadTangent<T, Op> head_;
  Index group_;  // blocks that are mixed together
  WithTangent<HeadSummaries<A>> summaries_;
  Workers<Worker> workers_;
};

template <class A, class Blocks, class Op, Scalar T>
std::size_t tangent_bytes(const CausalForm<A, Blocks, Op>& form, const Inputs<T>& in,
                          Index workers) {
  const auto& blocks = blocks_of(form.blocks, in.q.rows);
  return counted_bytes(
      [&](Arena& arena) { return CausalTangent(form.name, arena, in, blocks, form.op, workers); });
}

template <class A, class Blocks, class Op, Scalar T>
void write_tangent(const CausalForm<A, Blocks, Op>& form, Arena& arena, const Inputs<T>& in,
                   const Tangents<T>& tangents, const ParameterTangents<A>& parameters,
                   const WithTangent<MatrixView<T>>& out, const ExecutorRef& executor) {
  const auto& blocks = blocks_of(form.blocks, in.q.rows);
  CausalTangent(form.name, arena, in, blocks, form.op, executor.workers())
      .run(form.mixing, tangents, parameters, out, executor);
}

/// The form, after a check of the parameters' tangents.
template <class In, class Blocks, class Op>
auto causal_tangent_form(const In& in, const Blocks& blocks, const mixing_of<In>& mixing,
                         const Op& op, const parameter_tangents_of<In>& parameters) {
  const auto form = causal_form(in, blocks, mixing, op, "causal_tangent");
  expect_parameters(form.name, mixing, op, parameters);
  return form;
}

}  // namespace detail

template <AttentionInputs In, BlocksOf Blocks, TangentOperatorOn<detail::scalar_of<In>> Op>
requires CausalOperator<Op> std::size_t causal_tangent_workspace_bytes(
    const In& in, const Blocks& blocks, const Op& op, const ExecutorRef& executor) {
  return detail::form_tangent_bytes(detail::causal_form(in, blocks, {}, op, "causal_tangent"), in,
                                    executor);
}

template <AttentionInputs In, BlocksOf Blocks, TangentOperatorOn<detail::scalar_of<In>> Op>
requires CausalOperator<Op>
void causal_tangent(const In& in, const Blocks& blocks, const detail::mixing_of<In>& mixing,
                    const Op& op, const detail::tangents_of<In>& tangents,
                    const detail::tangent_output_of<In>& out,
                    const detail::parameter_tangents_of<In>& parameters, const Call& call) {
  detail::run_tangent(detail::causal_tangent_form(in, blocks, mixing, op, parameters), in, tangents,
                      parameters, out, call);
}

template <AttentionInputs In, BlocksOf Blocks, TangentOperatorOn<detail::scalar_of<In>> Op>
requires CausalOperator<Op> detail::tangent_owner_of<In> causal_tangent(
    const In& in, const Blocks& blocks, const detail::mixing_of<In>& mixing, const Op& op,
    const detail::tangents_of<In>& tangents, const detail::parameter_tangents_of<In>& parameters,
    const Call& call) {
  return detail::run_tangent(detail::causal_tangent_form(in, blocks, mixing, op, parameters), in,
                             tangents, parameters, call);
}

}  // namespace MHLA_TARGET
}  // namespace mhla

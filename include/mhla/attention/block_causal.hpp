#pragma once

/// \file
/// MHLA in steps: every token reads its own step and earlier steps whole, and no later step. A step
/// is a number of consecutive blocks, such as a chunk of text, a scale of an image, or all blocks
/// of a frame of a video.
///
///     o_t = phi(q_t)^T (sum_b m_ib S_b) / den_t     over the blocks b < (i / step + 1) step
///
/// It is the bidirectional form of the coefficients of no later step (Pattern::block_causal), with
/// its bits, its workspace and its kept summaries. Other coefficients are not used, so that a dense
/// [M,M] parameter serves. Blocks are those of any partition: a Grid of a video counts them frame
/// by frame if a block is one frame deep. Equal to naive_attention with m.block_causal(step). Cost:
/// 4*N*D*E + (M + step)*M*D*E flops; memory as bidirectional. block_streaming.hpp appends one step
/// at a time. Source: arXiv:2601.07832, section 4.1, with the mask of autoregressive diffusion over
/// chunks.

#include "mhla/attention/bidirectional.hpp"
#include "mhla/core/arch.hpp"

namespace mhla {
inline namespace MHLA_TARGET {

/// Writes the output of one head, or of every head of a batch, into `out`. Workspace and kept
/// memory have the bytes of bidirectional.
/// \param blocks  a partition of the tokens into M blocks; for a batch also a function of the
///                sequence length
/// \param mixing  [M,M]; coefficients of later steps are not used
/// \param step    blocks of a step, at least 1; the last step may have fewer
/// \param out     [N,E], of a batch [B,N,H,E]; overlaps no input, but may be q itself
/// \throws shape_error, option_error for anything that does not fit, before `out` is touched.
template <AttentionInputs In, BlocksOf Blocks, CausalOperatorOn<detail::scalar_of<In>> Op>
void block_causal(const In& in, const Blocks& blocks, const detail::mixing_of<In>& mixing,
                  Index step, const Op& op, const std::type_identity_t<detail::output_of<In>>& out,
                  const Call& call = {});

/// Returns the output: a Matrix [N,E] of one head, a Tensor [B,N,H,E] of a batch.
template <AttentionInputs In, BlocksOf Blocks,
          CausalOperatorOn<detail::scalar_of<In>> Op = Operator<>>
typename detail::InputTraits<In>::Owner block_causal(const In& in, const Blocks& blocks,
                                                     const detail::mixing_of<In>& mixing,
                                                     Index step, const Op& op = {},
                                                     const Call& call = {});

// ------------------------------------------------------------------------------------------------

namespace detail {

template <class A, class Blocks, class Op>
struct BlockCausalForm : BidirectionalForm<A, Blocks, Op> {
  template <Scalar T>
  void check(const Inputs<T>& in, std::type_identity_t<MatrixView<const T>> out,
             const char* argument) const {
    expect_causal_normalizer(this->name, this->op);
    BidirectionalForm<A, Blocks, Op>::check(in, out, argument);
  }
};

template <class In, class Blocks, class Op>
auto block_causal_form(const In& /*in*/, const Blocks& blocks, const mixing_of<In>& mixing,
                       Index step, const Op& op, const char* name = "block_causal") {
  return BlockCausalForm<sum_of<In>, Blocks, Op>{
      {name, blocks, mixing.block_causal(step, name), op}};
}

/// Parameters, or gradients or tangents of them, with the coefficients of no later step. Lists have
/// no others, unless expect_parameters refuses them.
template <class Parameters>
Parameters block_causal_parameters(Parameters parameters, Index step) {
  if (!parameters.mixing.pattern().sparse()) {
    parameters.mixing = parameters.mixing.block_causal(step);
  }
  return parameters;
}

}  // namespace detail

template <AttentionInputs In, BlocksOf Blocks, CausalOperatorOn<detail::scalar_of<In>> Op>
void block_causal(const In& in, const Blocks& blocks, const detail::mixing_of<In>& mixing,
                  Index step, const Op& op, const std::type_identity_t<detail::output_of<In>>& out,
                  const Call& call) {
  detail::run_form(detail::block_causal_form(in, blocks, mixing, step, op), in, out, call);
}

template <AttentionInputs In, BlocksOf Blocks, CausalOperatorOn<detail::scalar_of<In>> Op>
typename detail::InputTraits<In>::Owner block_causal(const In& in, const Blocks& blocks,
                                                     const detail::mixing_of<In>& mixing,
                                                     Index step, const Op& op, const Call& call) {
  return detail::run_form(detail::block_causal_form(in, blocks, mixing, step, op), in, call);
}

}  // namespace MHLA_TARGET
}  // namespace mhla

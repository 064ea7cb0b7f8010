#pragma once

/// \file
/// The tangent of bidirectional attention (attention/bidirectional.hpp): the output, and its
/// derivative along directions of q, k, v, the mixing matrix and the weights of the feature maps
/// (forward mode, a Jacobian-vector product). Primes are tangents:
///
///     S'_b  = sum_t phi'(k_t) v_t^T + phi(k_t) v'_t^T                               summary.hpp
///     S~'_i = sum_b m_ib S'_b + m'_ib S_b                                           mixing.hpp
///     o'_t  = (phi'(q_t)^T S~_i + phi(q_t)^T S~'_i - f'(r_t) r'_t o_t) / den_t      read_out.hpp
///
/// The output has the bits of bidirectional on vector instructions. Where den_t is 0 the tangent is
/// 0. The tangent errs by at most gamma_m times the size of its terms. The sums of a term r'_t o_t
/// have twice the length of the output's and once that: m = 3 (W + M + D) + 16, or 2 in place of 3
/// without a normaliser. Roundings of features are added, up to six per term.
/// Cost: 12*N*D*E + 6*M^2*D*E flops with all directions, three times the forward's (3.1 to 3.5
/// times its time); a direction that is absent costs nothing. Memory: twice that of bidirectional.
/// Source: the product and the quotient rule on arXiv:2601.07832, eqs. (3) and (4).

#include "mhla/attention/bidirectional.hpp"
#include "mhla/core/arch.hpp"
#include "mhla/core/executor.hpp"
#include "mhla/core/workspace.hpp"
#include "mhla/gradient/check.hpp"
#include "mhla/tangent/bidirectional_head.hpp"
#include "mhla/tangent/driver.hpp"
#include "mhla/tangent/head_tangent.hpp"
#include "mhla/tangent/tangents.hpp"

namespace mhla {
inline namespace MHLA_TARGET {

/// Writes the output and its tangent of one head, or of all heads of a batch.
/// \param tangents  directions of the tensors; absent ones count as zeros
/// \param out       {.value, .tangent}, each shaped as the output; they overlap nothing
/// \throws shape_error, option_error for anything that does not fit, before anything is written.
template <AttentionInputs In, AttentionBlocks Blocks, TangentOperatorOn<detail::scalar_of<In>> Op>
void bidirectional_tangent(const In& in, const Blocks& blocks, const detail::mixing_of<In>& mixing,
                           const Op& op, const detail::tangents_of<In>& tangents,
                           const detail::tangent_output_of<In>& out,
                           const detail::parameter_tangents_of<In>& parameters = {},
                           const Call& call = {});
/// Returns both: matrices [Nq,E] of one head, tensors [B,Nq,H,E] of a batch.
template <AttentionInputs In, AttentionBlocks Blocks, TangentOperatorOn<detail::scalar_of<In>> Op>
detail::tangent_owner_of<In> bidirectional_tangent(
    const In& in, const Blocks& blocks, const detail::mixing_of<In>& mixing, const Op& op,
    const detail::tangents_of<In>& tangents,
    const detail::parameter_tangents_of<In>& parameters = {}, const Call& call = {});

/// Bytes of workspace for these arguments and any tangents; reads no data.
template <AttentionInputs In, AttentionBlocks Blocks, TangentOperatorOn<detail::scalar_of<In>> Op>
std::size_t bidirectional_tangent_workspace_bytes(const In& in, const Blocks& blocks, const Op& op,
                                                  const ExecutorRef& executor = {});

// ------------------------------------------------------------------------------------------------

namespace detail {

template <class A, class Blocks, class Op, Scalar T>
std::size_t tangent_bytes(const BidirectionalForm<A, Blocks, Op>& form, const Inputs<T>& in,
                          Index workers) {
  const auto blocks = sequence_blocks(form.blocks, in);
  return counted_bytes([&](Arena& arena) {
    return BidirectionalTangent(form.name, arena, in, blocks.queries, blocks.keys, form.op,
                                workers);
  });
}

template <class A, class Blocks, class Op, Scalar T>
void write_tangent(const BidirectionalForm<A, Blocks, Op>& form, Arena& arena, const Inputs<T>& in,
                   const Tangents<T>& tangents, const ParameterTangents<A>& parameters,
                   const WithTangent<MatrixView<T>>& out, const ExecutorRef& executor) {
  const auto blocks = sequence_blocks(form.blocks, in);
  BidirectionalTangent(form.name, arena, in, blocks.queries, blocks.keys, form.op,
                       executor.workers())
      .run(form.mixing, tangents, parameters, out, executor);
}

/// The form, after a check of the parameters' tangents.
template <class In, class Blocks, class Op>
auto bidirectional_tangent_form(const In& in, const Blocks& blocks, const mixing_of<In>& mixing,
                                const Op& op, const parameter_tangents_of<In>& parameters) {
  const auto form = bidirectional_form(in, blocks, mixing, op, "bidirectional_tangent");
  expect_parameters(form.name, mixing, op, parameters);
  return form;
}

}  // namespace detail

template <AttentionInputs In, AttentionBlocks Blocks, TangentOperatorOn<detail::scalar_of<In>> Op>
std::size_t bidirectional_tangent_workspace_bytes(const In& in, const Blocks& blocks, const Op& op,
                                                  const ExecutorRef& executor) {
  return detail::form_tangent_bytes(
      detail::bidirectional_form(in, blocks, {}, op, "bidirectional_tangent"), in, executor);
}

template <AttentionInputs In, AttentionBlocks Blocks, TangentOperatorOn<detail::scalar_of<In>> Op>
void bidirectional_tangent(const In& in, const Blocks& blocks, const detail::mixing_of<In>& mixing,
                           const Op& op, const detail::tangents_of<In>& tangents,
                           const detail::tangent_output_of<In>& out,
                           const detail::parameter_tangents_of<In>& parameters, const Call& call) {
  detail::run_tangent(detail::bidirectional_tangent_form(in, blocks, mixing, op, parameters), in,
                      tangents, parameters, out, call);
}

template <AttentionInputs In, AttentionBlocks Blocks, TangentOperatorOn<detail::scalar_of<In>> Op>
detail::tangent_owner_of<In> bidirectional_tangent(
    const In& in, const Blocks& blocks, const detail::mixing_of<In>& mixing, const Op& op,
    const detail::tangents_of<In>& tangents, const detail::parameter_tangents_of<In>& parameters,
    const Call& call) {
  return detail::run_tangent(detail::bidirectional_tangent_form(in, blocks, mixing, op, parameters),
                             in, tangents, parameters, call);
}

}  // namespace MHLA_TARGET
}  // namespace mhla

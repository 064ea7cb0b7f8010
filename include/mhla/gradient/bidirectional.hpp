#pragma once

/// \file
/// The gradient of bidirectional attention (attention/bidirectional.hpp): given do_t, the gradients
/// of q, k, v, of the mixing matrix and of the weights of the feature maps.
///
///     dn_t    = scale do_t / den_t,   dr_t = -scale phi(q_t) . S~_i dn_t / den_t
///     dphi(q) = S~_i dn_t + dr_t z~_i                                read_out.hpp, denominator.hpp
///     dS~_i   = sum_t phi(q_t) dn_t^T,   dS_b = sum_i m_ib dS~_i     mixing.hpp
///     dm_ib   = <S_b, dS~_i> + z_b . dz~_i
///     dphi(k) = dS_b v_t + dz_b,   dv_t = dS_b^T phi(k_t)            summary.hpp
///
/// The forward's output is not needed. Its summaries are recomputed, or kept by the forward in
/// bidirectional_kept_bytes(...) of memory, M*D*(E+1) numbers; the results are bitwise the same.
/// Cost: 10*N*D*E + 6*M^2*D*E flops, 2*N*D*E less with kept summaries; the forward's are 4*N*D*E +
/// 2*M^2*D*E.
/// Memory: 2*M*D*(E+1) numbers, what the forward has per worker, G*M more per worker for the mixing
/// matrix's gradient, M times the weights of the maps, and N*D for CrossQuery. A batch also has
/// gradients of all parameters for each of up to 64 groups of heads (driver.hpp). Only gradients
/// that are wanted are touched. Source: derived from arXiv:2601.07832, eqs. (3) and (4).

#include <algorithm>

#include "mhla/attention/bidirectional.hpp"
#include "mhla/core/arch.hpp"
#include "mhla/core/executor.hpp"
#include "mhla/core/workspace.hpp"
#include "mhla/gradient/bidirectional_head.hpp"
#include "mhla/gradient/check.hpp"
#include "mhla/gradient/driver.hpp"
#include "mhla/gradient/gradients.hpp"
#include "mhla/gradient/head_gradient.hpp"

namespace mhla {
inline namespace MHLA_TARGET {

/// Adds the gradients of one head, or of all heads of a batch, to `gradients` and `parameters`.
/// \param dout  gradient of the output; rows of masked queries are not read
/// \throws shape_error, option_error for anything that does not fit, before anything is written.
template <AttentionInputs In, AttentionBlocks Blocks,
          DifferentiableOperatorOn<detail::scalar_of<In>> Op>
void bidirectional_gradient(const In& in, const Blocks& blocks, const detail::mixing_of<In>& mixing,
                            const Op& op, const std::type_identity_t<detail::dout_of<In>>& dout,
                            const detail::gradients_of<In>& gradients,
                            const detail::parameters_of<In>& parameters = {},
                            const Call& call = {});

/// Bytes of workspace for these arguments; reads no data.
template <AttentionInputs In, AttentionBlocks Blocks,
          DifferentiableOperatorOn<detail::scalar_of<In>> Op>
std::size_t bidirectional_gradient_workspace_bytes(const In& in, const Blocks& blocks,
                                                   const detail::mixing_of<In>& mixing,
                                                   const Op& op, const ExecutorRef& executor = {});

// ------------------------------------------------------------------------------------------------

namespace detail {

template <class A, class Blocks, class Op, Scalar T>
std::size_t gradient_bytes(const BidirectionalForm<A, Blocks, Op>& form, const Inputs<T>& in,
                           Index workers) {
  const auto sequence = sequence_blocks(form.blocks, in);
  return counted_bytes([&](Arena& arena) {
    return BidirectionalGradient(form.name, arena, nullptr, in, sequence.queries, sequence.keys,
                                 form.op, workers, {whole(sequence.queries), whole(sequence.keys)});
  });
}

template <class A, class Blocks, class Op, Scalar T>
void add_gradient(const BidirectionalForm<A, Blocks, Op>& form, Arena& arena, Arena* kept,
                  const Inputs<T>& in, MatrixView<const T> dout, const Gradients<T>& gradients,
                  const ParameterGradients<A>& sums, const ExecutorRef& executor) {
  const auto sequence = sequence_blocks(form.blocks, in);
  BidirectionalGradient head(form.name, arena, kept, in, sequence.queries, sequence.keys, form.op,
                             executor.workers(), {whole(sequence.queries), whole(sequence.keys)});
  head.set(dout, gradients, sums);
  head.summarize(kept != nullptr, executor);
  head.read_queries(form.mixing, executor);
  head.read_keys(form.mixing, executor);
  head.finish();
}

}  // namespace detail

template <AttentionInputs In, AttentionBlocks Blocks,
          DifferentiableOperatorOn<detail::scalar_of<In>> Op>
std::size_t bidirectional_gradient_workspace_bytes(const In& in, const Blocks& blocks,
                                                   const detail::mixing_of<In>& mixing,
                                                   const Op& op, const ExecutorRef& executor) {
  return detail::form_gradient_bytes(
      detail::bidirectional_form(in, blocks, mixing, op, "bidirectional_gradient"), in,
      detail::parameter_sizes(mixing, op), executor);
}

template <AttentionInputs In, AttentionBlocks Blocks,
          DifferentiableOperatorOn<detail::scalar_of<In>> Op>
void bidirectional_gradient(const In& in, const Blocks& blocks, const detail::mixing_of<In>& mixing,
                            const Op& op, const std::type_identity_t<detail::dout_of<In>>& dout,
                            const detail::gradients_of<In>& gradients,
                            const detail::parameters_of<In>& parameters, const Call& call) {
  const auto form = detail::bidirectional_form(in, blocks, mixing, op, "bidirectional_gradient");
  detail::expect_parameters(form.name, mixing, op, parameters);
  detail::run_gradient(form, in, dout, gradients, detail::parameter_sizes(mixing, op), parameters,
                       call);
}

}  // namespace MHLA_TARGET
}  // namespace mhla

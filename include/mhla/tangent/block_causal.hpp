#pragma once

/// \file
/// The tangent of attention in steps (attention/block_causal.hpp): that of bidirectional attention
/// (tangent/bidirectional.hpp), with its error, of the coefficients of no later step. Directions of
/// other coefficients are not read. Cost: 12*N*D*E + 3*(M + step)*M*D*E flops; workspace as
/// bidirectional_tangent.

#include "mhla/attention/block_causal.hpp"
#include "mhla/core/arch.hpp"
#include "mhla/tangent/bidirectional.hpp"

namespace mhla {
inline namespace MHLA_TARGET {

/// Writes the output and its tangent of one head, or of all heads of a batch. Workspace:
/// bidirectional_tangent_workspace_bytes.
/// \param step      blocks of a step, as for the forward
/// \param tangents  directions of the tensors; absent ones count as zeros
/// \param out       {.value, .tangent}, each shaped as the output; they overlap nothing
/// \throws shape_error, option_error for anything that does not fit, before anything is written.
template <AttentionInputs In, BlocksOf Blocks, TangentOperatorOn<detail::scalar_of<In>> Op>
requires CausalOperator<Op>
void block_causal_tangent(const In& in, const Blocks& blocks, const detail::mixing_of<In>& mixing,
                          Index step, const Op& op, const detail::tangents_of<In>& tangents,
                          const detail::tangent_output_of<In>& out,
                          const detail::parameter_tangents_of<In>& parameters = {},
                          const Call& call = {}) {
  const auto form = detail::block_causal_form(in, blocks, mixing, step, op, "block_causal_tangent");
  const auto causal = detail::block_causal_parameters(parameters, step);
  detail::expect_parameters(form.name, form.mixing, op, causal);
  detail::run_tangent(form, in, tangents, causal, out, call);
}

}  // namespace MHLA_TARGET
}  // namespace mhla

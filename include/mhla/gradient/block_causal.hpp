#pragma once

/// \file
/// The gradient of attention in steps (attention/block_causal.hpp): that of bidirectional attention
/// (gradient/bidirectional.hpp) with the coefficients of no later step. Coefficients of later steps
/// get no gradient: their numbers in memory are not changed. Cost: 10*N*D*E + 3*(M + step)*M*D*E
/// flops; workspace and kept memory as bidirectional_gradient.

#include "mhla/attention/block_causal.hpp"
#include "mhla/core/arch.hpp"
#include "mhla/gradient/bidirectional.hpp"

namespace mhla {
inline namespace MHLA_TARGET {

/// Adds the gradients of one head, or of all heads of a batch, to `gradients` and `parameters`.
/// Workspace: bidirectional_gradient_workspace_bytes.
/// \param step  blocks of a step, as for the forward
/// \param dout  gradient of the output; rows of masked queries are not read
/// \throws shape_error, option_error for anything that does not fit, before anything is written.
template <AttentionInputs In, BlocksOf Blocks, DifferentiableOperatorOn<detail::scalar_of<In>> Op>
requires CausalOperator<Op>
void block_causal_gradient(const In& in, const Blocks& blocks, const detail::mixing_of<In>& mixing,
                           Index step, const Op& op,
                           const std::type_identity_t<detail::dout_of<In>>& dout,
                           const detail::gradients_of<In>& gradients,
                           const detail::parameters_of<In>& parameters = {},
                           const Call& call = {}) {
  const auto form =
      detail::block_causal_form(in, blocks, mixing, step, op, "block_causal_gradient");
  const auto causal = detail::block_causal_parameters(parameters, step);
  detail::expect_parameters(form.name, form.mixing, op, causal);
  detail::run_gradient(form, in, dout, gradients, detail::parameter_sizes(form.mixing, op), causal,
                       call);
}

}  // namespace MHLA_TARGET
}  // namespace mhla

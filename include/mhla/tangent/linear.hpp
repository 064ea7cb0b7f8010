#pragma once

/// \file
/// The tangents of plain linear attention (attention/linear.hpp), equal to MHLA with a single
/// block.
///
/// The output of linear_bidirectional_tangent has the bits of linear_bidirectional. That of
/// linear_causal_tangent is computed in strips (tangent/causal_block.hpp), within the bound of
/// causal. Cost: three times the forward with all directions; memory 2*D*E numbers.
/// Source: the product and the quotient rule on arXiv:2006.16236.

#include "mhla/attention/linear.hpp"
#include "mhla/core/arch.hpp"
#include "mhla/gradient/linear.hpp"
#include "mhla/tangent/bidirectional.hpp"
#include "mhla/tangent/causal.hpp"
#include "mhla/tangent/driver.hpp"

namespace mhla {
inline namespace MHLA_TARGET {

/// Writes the output and its tangent of one head, or of all heads of a batch. `parameters.mixing`
/// must be absent.
/// \param out  {.value, .tangent}, each shaped as the output; they overlap nothing
/// \throws shape_error, option_error for anything that does not fit, before anything is written.
template <AttentionInputs In, TangentOperatorOn<detail::scalar_of<In>> Op>
void linear_bidirectional_tangent(const In& in, const Op& op,
                                  const detail::tangents_of<In>& tangents,
                                  const detail::tangent_output_of<In>& out,
                                  const detail::parameter_tangents_of<In>& parameters = {},
                                  const Call& call = {});
template <AttentionInputs In, TangentOperatorOn<detail::scalar_of<In>> Op>
std::size_t linear_bidirectional_tangent_workspace_bytes(const In& in, const Op& op,
                                                         const ExecutorRef& executor = {});

/// The same of causal linear attention. One head is computed by one worker.
template <AttentionInputs In, TangentOperatorOn<detail::scalar_of<In>> Op>
requires CausalOperator<Op>
void linear_causal_tangent(const In& in, const Op& op, const detail::tangents_of<In>& tangents,
                           const detail::tangent_output_of<In>& out,
                           const detail::parameter_tangents_of<In>& parameters = {},
                           const Call& call = {});
template <AttentionInputs In, TangentOperatorOn<detail::scalar_of<In>> Op>
requires CausalOperator<Op> std::size_t linear_causal_tangent_workspace_bytes(
    const In& in, const Op& op, const ExecutorRef& executor = {});

// ------------------------------------------------------------------------------------------------

namespace detail {

template <class In, class Op>
auto linear_causal_tangent_form(const In& in, const Op& op) {
  return causal_form(in, kSingleBlock, no_mixing<sum_of<In>>(), op, "linear_causal_tangent");
}

}  // namespace detail

template <AttentionInputs In, TangentOperatorOn<detail::scalar_of<In>> Op>
std::size_t linear_bidirectional_tangent_workspace_bytes(const In& in, const Op& op,
                                                         const ExecutorRef& executor) {
  const detail::SingleBlockOperator single(op);
  return detail::form_tangent_bytes(
      detail::linear_bidirectional_form(in, single, "linear_bidirectional_tangent"), in, executor);
}

template <AttentionInputs In, TangentOperatorOn<detail::scalar_of<In>> Op>
void linear_bidirectional_tangent(const In& in, const Op& op,
                                  const detail::tangents_of<In>& tangents,
                                  const detail::tangent_output_of<In>& out,
                                  const detail::parameter_tangents_of<In>& parameters,
                                  const Call& call) {
  const detail::SingleBlockOperator single(op);
  const auto form = detail::linear_bidirectional_form(in, single, "linear_bidirectional_tangent");
  detail::expect_linear_parameters(form.name, op, parameters);
  detail::run_tangent(form, in, tangents, parameters, out, call);
}

template <AttentionInputs In, TangentOperatorOn<detail::scalar_of<In>> Op>
requires CausalOperator<Op> std::size_t linear_causal_tangent_workspace_bytes(
    const In& in, const Op& op, const ExecutorRef& executor) {
  return detail::form_tangent_bytes(detail::linear_causal_tangent_form(in, op), in, executor);
}

template <AttentionInputs In, TangentOperatorOn<detail::scalar_of<In>> Op>
requires CausalOperator<Op>
void linear_causal_tangent(const In& in, const Op& op, const detail::tangents_of<In>& tangents,
                           const detail::tangent_output_of<In>& out,
                           const detail::parameter_tangents_of<In>& parameters, const Call& call) {
  const auto form = detail::linear_causal_tangent_form(in, op);
  detail::expect_linear_parameters(form.name, op, parameters);
  detail::run_tangent(form, in, tangents, parameters, out, call);
}

}  // namespace MHLA_TARGET
}  // namespace mhla

#pragma once

/// \file
/// The gradient of plain linear attention (attention/linear.hpp), equal to MHLA with a single
/// block.
///
/// Cost: 10*N*D*E flops (causal: plus 2.5*N*64*(D+E)); memory D*E numbers, causal N*(D+E) +
/// N*D*E/64. Source: derived from arXiv:2006.16236.

#include <algorithm>

#include "mhla/attention/linear.hpp"
#include "mhla/core/arch.hpp"
#include "mhla/core/workspace.hpp"
#include "mhla/gradient/bidirectional.hpp"
#include "mhla/gradient/causal_block.hpp"
#include "mhla/gradient/check.hpp"
#include "mhla/gradient/driver.hpp"
#include "mhla/gradient/weight_parts.hpp"

namespace mhla {
inline namespace MHLA_TARGET {

/// Adds the gradients of one head, or of all heads of a batch, to `gradients` and to the weights in
/// `parameters`. `parameters.mixing` must be absent.
/// \param dout  gradient of the output; rows of masked queries are not read
/// \throws shape_error, option_error for anything that does not fit, before anything is written.
template <AttentionInputs In, DifferentiableOperatorOn<detail::scalar_of<In>> Op>
void linear_bidirectional_gradient(const In& in, const Op& op,
                                   const std::type_identity_t<detail::dout_of<In>>& dout,
                                   const detail::gradients_of<In>& gradients,
                                   const detail::parameters_of<In>& parameters = {},
                                   const Call& call = {});
template <AttentionInputs In, DifferentiableOperatorOn<detail::scalar_of<In>> Op>
std::size_t linear_bidirectional_gradient_workspace_bytes(const In& in, const Op& op,
                                                          const ExecutorRef& executor = {});

/// Adds the gradients of causal linear attention.
template <AttentionInputs In, DifferentiableOperatorOn<detail::scalar_of<In>> Op>
requires CausalOperator<Op>
void linear_causal_gradient(const In& in, const Op& op,
                            const std::type_identity_t<detail::dout_of<In>>& dout,
                            const detail::gradients_of<In>& gradients,
                            const detail::parameters_of<In>& parameters = {},
                            const Call& call = {});
template <AttentionInputs In, DifferentiableOperatorOn<detail::scalar_of<In>> Op>
requires CausalOperator<Op> std::size_t linear_causal_gradient_workspace_bytes(
    const In& in, const Op& op, const ExecutorRef& executor = {});

// ------------------------------------------------------------------------------------------------

namespace detail {

/// One head of the causal gradient: the gradient of a single causal block.
template <Scalar T, class Op>
class LinearCausalGradient {
  using A = accumulator_t<T>;

 public:
  LinearCausalGradient(const char* function, Arena& arena, const Inputs<T>& in, const Op& op)
      : in_(in),
        op_(op),
        block_(in.q.rows, std::max<Index>(1, in.q.rows)),
        head_(in, op),
        earlier_(function, arena, 1, round_up(sizes().features, kRowAlignment), sizes().values),
        key_sum_(arena.take<A>(function, sizes().sum_features())),
        dearlier_(function, arena, 1, sizes().features, sizes().values),
        dkey_sum_(arena.take<A>(function, sizes().sum_features())),
        intra_(function, arena, in.q.rows, sizes()),
        query_parts_(function, arena, whole(block_), op.query_map.weights()),
        key_parts_(function, arena, whole(block_), op.key_map.weights()),
        scratch_(function, arena, head_.raw(), sizes(), 1, 1, in.q.rows) {}

  void run(MatrixView<const T> dout, const Gradients<T>& gradients,
           const ParameterGradients<A>& sums) {
    if (block_.blocks() == 0) return;
    head_.set(dout, gradients);
    query_parts_.start(sums.query_map);
    key_parts_.start(sums.key_map);
    std::fill_n(earlier_.kv.data, sizes().features * sizes().values, A(0));
    std::fill_n(key_sum_, sizes().sum_features(), A(0));
    CausalBlockGradient<T, Contiguous, Op>(head_, in_, block_, 0, op_, scratch_)
        .run({A(1), earlier_.kv.data, key_sum_}, {dearlier_.block(0), dkey_sum_},
             query_parts_.part(0), intra_);
    head_.differentiate_keys(block_, 0, nullptr, nullptr, key_parts_.part(0), scratch_.strips,
                             {intra_.dkeys, intra_.dvalues, intra_.normalizer_dkeys});
    query_parts_.finish(sums.query_map);
    key_parts_.finish(sums.key_map);
  }

 private:
  const HeadSizes& sizes() const { return head_.sizes(); }

  const Inputs<T>& in_;
  const Op& op_;
  Contiguous block_;
  HeadGradient<T, Op> head_;
  Mixtures<A> earlier_;    // S~, zeros
  A* key_sum_;             // z~, zeros
  Summaries<A> dearlier_;  // their gradients, of which there is no use
  A* dkey_sum_;
  IntraGradients<A> intra_;
  WeightParts<A> query_parts_, key_parts_;
  CausalGradientScratch<A> scratch_;
};

template <class A, class Op, Scalar T>
std::size_t gradient_bytes(const LinearCausalForm<A, Op>& form, const Inputs<T>& in,
                           Index /*workers*/) {
  return counted_bytes(
      [&](Arena& arena) { return LinearCausalGradient(form.name, arena, in, form.op); });
}

template <class A, class Op, Scalar T>
void add_gradient(const LinearCausalForm<A, Op>& form, Arena& arena, Arena* /*kept*/,
                  const Inputs<T>& in, MatrixView<const T> dout, const Gradients<T>& gradients,
                  const ParameterGradients<A>& sums, const ExecutorRef& /*executor*/) {
  LinearCausalGradient(form.name, arena, in, form.op).run(dout, gradients, sums);
}

/// Throws if a gradient or tangent of a mixing matrix is set, or those of weights do not fit the
/// maps.
template <class Parameters, class Op>
void expect_linear_parameters(const char* function, const Op& op, const Parameters& parameters) {
  if (!parameters.mixing.absent()) {
    fail_option(function, "parameters.mixing", "is set", "absent: there is no mixing matrix");
  }
  expect_parameters(function, no_mixing<float>(), op, parameters);
}

}  // namespace detail

template <AttentionInputs In, DifferentiableOperatorOn<detail::scalar_of<In>> Op>
std::size_t linear_bidirectional_gradient_workspace_bytes(const In& in, const Op& op,
                                                          const ExecutorRef& executor) {
  const detail::SingleBlockOperator single(op);
  return detail::form_gradient_bytes(
      detail::linear_bidirectional_form(in, single, "linear_bidirectional_gradient"), in,
      detail::parameter_sizes(detail::no_mixing<detail::sum_of<In>>(), op), executor);
}

template <AttentionInputs In, DifferentiableOperatorOn<detail::scalar_of<In>> Op>
void linear_bidirectional_gradient(const In& in, const Op& op,
                                   const std::type_identity_t<detail::dout_of<In>>& dout,
                                   const detail::gradients_of<In>& gradients,
                                   const detail::parameters_of<In>& parameters, const Call& call) {
  const detail::SingleBlockOperator single(op);
  const auto form = detail::linear_bidirectional_form(in, single, "linear_bidirectional_gradient");
  detail::expect_linear_parameters(form.name, op, parameters);
  detail::run_gradient(form, in, dout, gradients,
                       detail::parameter_sizes(detail::no_mixing<detail::sum_of<In>>(), op),
                       parameters, call);
}

template <AttentionInputs In, DifferentiableOperatorOn<detail::scalar_of<In>> Op>
requires CausalOperator<Op> std::size_t linear_causal_gradient_workspace_bytes(
    const In& in, const Op& op, const ExecutorRef& executor) {
  return detail::form_gradient_bytes(
      detail::linear_causal_form(in, op, "linear_causal_gradient"), in,
      detail::parameter_sizes(detail::no_mixing<detail::sum_of<In>>(), op), executor);
}

template <AttentionInputs In, DifferentiableOperatorOn<detail::scalar_of<In>> Op>
requires CausalOperator<Op>
void linear_causal_gradient(const In& in, const Op& op,
                            const std::type_identity_t<detail::dout_of<In>>& dout,
                            const detail::gradients_of<In>& gradients,
                            const detail::parameters_of<In>& parameters, const Call& call) {
  const auto form = detail::linear_causal_form(in, op, "linear_causal_gradient");
  detail::expect_linear_parameters(form.name, op, parameters);
  detail::run_gradient(form, in, dout, gradients,
                       detail::parameter_sizes(detail::no_mixing<detail::sum_of<In>>(), op),
                       parameters, call);
}

}  // namespace MHLA_TARGET
}  // namespace mhla

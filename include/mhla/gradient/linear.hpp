#pragma once

/// \file
/// The gradient of plain linear attention (attention/linear.hpp): that of MHLA with a single block.
///
/// Causal: the summary R of the earlier chunks runs forward, its gradient dR backward:
///
///     S~_c = R = sum_{b<c} S_b     dS_b = dR = sum_{c>b} dS~_c
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

namespace mhla {
inline namespace MHLA_TARGET {

/// Adds the gradients of one head, or of all heads of a batch, to `gradients` and to the weights in
/// `parameters`, whose `mixing` must be absent.
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

/// The same for causal linear attention.
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

/// One head of the causal gradient.
template <Scalar T, class Op>
class LinearCausalGradient {
  using A = accumulator_t<T>;
  static constexpr Index kChunk = kStripTokens;

 public:
  LinearCausalGradient(const char* function, Arena& arena, const Inputs<T>& in, const Op& op)
      : in_(in),
        op_(op),
        chunks_(in.q.rows, kChunk),
        head_(in, op),
        chunk_(function, arena, sizes(), 1),
        running_(arena.take<A>(function, {padded_features(), sizes().values})),
        key_sum_(arena.take<A>(function, sizes().sum_features())),
        dmixtures_(function, arena, chunks_.blocks(), sizes().features, sizes().values),
        dkey_sums_(arena.take<A>(function, {chunks_.blocks(), sizes().sum_features()})),
        intra_(function, arena, in.q.rows, sizes()),
        scratch_(function, arena, head_.raw(), sizes(), 1, 1, kChunk) {}

  void run(MatrixView<const T> dout, const Gradients<T>& gradients,
           const ParameterGradients<A>& sums) {
    head_.set(dout, gradients);
    const Index features = sizes().sum_features();
    clear_running();
    for (Index c = 0; c < chunks_.blocks(); ++c) {
      const IntraGradients<A> keys = intra_.from(chunks_.run(c, 0).begin);
      keys.clear(chunks_.block_size(c), sizes());
      CausalBlockGradient<T, Contiguous, Op>(head_, in_, chunks_, c, op_, scratch_)
          .run({A(1), running_, key_sum_}, {dmixtures_.block(c), dkey_sums_ + c * features},
               sums.query_map.data(), keys);
      add_chunk(c);
    }
    clear_running();
    for (Index c = chunks_.blocks() - 1; c >= 0; --c) {
      const IntraGradients<A> keys = intra_.from(chunks_.run(c, 0).begin);
      head_.differentiate_keys(chunks_, c, running_, head_.sums() ? key_sum_ : nullptr,
                               sums.key_map.data(), scratch_.strips,
                               {keys.dkeys, keys.dvalues, keys.own_dkeys});
      add(dmixtures_, c, dkey_sums_ + c * features);
    }
  }

 private:
  const HeadSizes& sizes() const { return head_.sizes(); }
  Index padded_features() const { return round_up(sizes().features, kRowAlignment); }

  void clear_running() const {
    std::fill_n(running_, sizes().features * sizes().values, A(0));
    std::fill_n(key_sum_, sizes().sum_features(), A(0));
  }
  /// R += S, z += z of a summary; or the same of gradients.
  void add(const Summaries<A>& summaries, Index b, const A* key_sum) const {
    for (Index slab = 0; slab < summaries.slabs(); ++slab) {
      add_to<A>(summaries.block(b).row(slab), running_ + slab * kTile.slab * sizes().values,
                summaries.slab_columns(slab));
    }
    add_to(key_sum, key_sum_, sizes().sum_features());
  }
  void add_chunk(Index c) const {
    chunk_.summarize_alone(in_, chunks_, c, op_, scratch_.strips.key_scratch());
    add(chunk_.values(), 0, chunk_.key_sum(0));
  }

  const Inputs<T>& in_;
  const Op& op_;
  Contiguous chunks_;
  HeadGradient<T, Op> head_;
  HeadSummaries<A> chunk_;  // S, z of one chunk
  A* running_;              // R, then dR [D,E], readable up to padded rows
  A* key_sum_;              // z of the earlier chunks, then dz of the later ones
  Summaries<A> dmixtures_;  // dS~ of all chunks
  A* dkey_sums_;            // dz~ of all chunks
  IntraGradients<A> intra_;
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

/// Throws if a gradient of a mixing matrix is set, or those of weights do not fit the maps.
template <class A, class Op>
void expect_linear_parameters(const char* function, const Op& op,
                              const ParameterGradients<A>& parameters) {
  if (!parameters.mixing.absent()) {
    fail_option(function, "parameters.mixing", "is set", "absent: there is no mixing matrix");
  }
  expect_parameters(function, Pattern(1, 1), op, parameters);
}

}  // namespace detail

template <AttentionInputs In, DifferentiableOperatorOn<detail::scalar_of<In>> Op>
std::size_t linear_bidirectional_gradient_workspace_bytes(const In& in, const Op& op,
                                                          const ExecutorRef& executor) {
  return detail::form_gradient_bytes(
      detail::linear_bidirectional_form(in, op, "linear_bidirectional_gradient"), in,
      detail::parameter_sizes(Pattern(1, 1), op), executor);
}

template <AttentionInputs In, DifferentiableOperatorOn<detail::scalar_of<In>> Op>
void linear_bidirectional_gradient(const In& in, const Op& op,
                                   const std::type_identity_t<detail::dout_of<In>>& dout,
                                   const detail::gradients_of<In>& gradients,
                                   const detail::parameters_of<In>& parameters, const Call& call) {
  const auto form = detail::linear_bidirectional_form(in, op, "linear_bidirectional_gradient");
  detail::expect_linear_parameters(form.name, op, parameters);
  detail::run_gradient(form, in, dout, gradients, detail::parameter_sizes(Pattern(1, 1), op),
                       parameters, call);
}

template <AttentionInputs In, DifferentiableOperatorOn<detail::scalar_of<In>> Op>
requires CausalOperator<Op> std::size_t linear_causal_gradient_workspace_bytes(
    const In& in, const Op& op, const ExecutorRef& executor) {
  return detail::form_gradient_bytes(detail::linear_causal_form(in, op, "linear_causal_gradient"),
                                     in, detail::parameter_sizes(Pattern(1, 1), op), executor);
}

template <AttentionInputs In, DifferentiableOperatorOn<detail::scalar_of<In>> Op>
requires CausalOperator<Op>
void linear_causal_gradient(const In& in, const Op& op,
                            const std::type_identity_t<detail::dout_of<In>>& dout,
                            const detail::gradients_of<In>& gradients,
                            const detail::parameters_of<In>& parameters, const Call& call) {
  const auto form = detail::linear_causal_form(in, op, "linear_causal_gradient");
  detail::expect_linear_parameters(form.name, op, parameters);
  detail::run_gradient(form, in, dout, gradients, detail::parameter_sizes(Pattern(1, 1), op),
                       parameters, call);
}

}  // namespace MHLA_TARGET
}  // namespace mhla

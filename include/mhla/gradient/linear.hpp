#pragma once

/// \file
/// The gradient of plain linear attention (attention/linear.hpp): that of MHLA with a single block.
///
/// Causal: the summary R of the chunks before runs forward, its gradient dR backward:
///
///     S~_c = R = sum_{b<c} S_b     dS_b = dR = sum_{c>b} dS~_c
///
/// Cost: 10*N*D*E flops (causal: and 2.5*N*64*(D+E)); memory D*E numbers, causal N*(D+E) and
/// N*D*E/64.
/// Source: derived from arXiv:2006.16236.

#include <algorithm>

#include "mhla/attention/linear.hpp"
#include "mhla/core/arch.hpp"
#include "mhla/gradient/bidirectional.hpp"
#include "mhla/gradient/causal.hpp"

namespace mhla::inline MHLA_TARGET {

/// Adds the gradients of one head to `gradients` and to the weights in `parameters`, whose `mixing`
/// must be null: there is no mixing matrix.
/// \param dout       [Nq,E] gradient of the output; rows of masked queries are not read
/// \param workspace  at least linear_bidirectional_gradient_workspace_bytes(...), or empty
/// \throws shape_error, option_error for anything that does not fit, before anything is written.
template <Scalar T, DifferentiableOperatorOn<T> Op>
requires CausalOperator<Op>
void linear_bidirectional_gradient(const Inputs<T>& in, const Op& op,
                                   std::type_identity_t<MatrixView<const T>> dout,
                                   const Gradients<T>& gradients,
                                   const ParameterGradients<accumulator_t<T>>& parameters = {},
                                   Workspace workspace = {});

/// Bytes of workspace such a call needs; the data of `in` is not read.
template <Scalar T, DifferentiableOperatorOn<T> Op>
requires CausalOperator<Op> std::size_t linear_bidirectional_gradient_workspace_bytes(
    const Inputs<T>& in, const Op& op);

/// The same of causal linear attention.
/// \param workspace  at least linear_causal_gradient_workspace_bytes(...), or empty to allocate
template <Scalar T, DifferentiableOperatorOn<T> Op>
requires CausalOperator<Op>
void linear_causal_gradient(const Inputs<T>& in, const Op& op,
                            std::type_identity_t<MatrixView<const T>> dout,
                            const Gradients<T>& gradients,
                            const ParameterGradients<accumulator_t<T>>& parameters = {},
                            Workspace workspace = {});

/// Bytes of workspace such a call needs; the data of `in` is not read.
template <Scalar T, DifferentiableOperatorOn<T> Op>
requires CausalOperator<Op> std::size_t linear_causal_gradient_workspace_bytes(const Inputs<T>& in,
                                                                               const Op& op);

// ------------------------------------------------------------------------------------------------

namespace detail {

/// Memory of the causal form.
template <Scalar T, class Op>
class LinearCausalGradient {
  using A = accumulator_t<T>;
  static constexpr Index kChunk = kStripTokens;
  static constexpr bool kSums = kUsesKeySums<normalizer_t<Op>>;

 public:
  LinearCausalGradient(const char* function, Arena& arena, const Inputs<T>& in, const Op& op)
      : in_(in),
        op_(op),
        chunks_(in.q.rows, kChunk),
        head_(in, op),
        chunk_(function, arena, sizes(), 1),
        running_(arena.take<A>(function, {padded_features(), sizes().values})),
        key_sum_(arena.take<A>(function, key_sum_features(sizes()))),
        dmixtures_(function, arena, chunks_.blocks(), sizes().features, sizes().values),
        dkey_sums_(arena.take<A>(function, {chunks_.blocks(), key_sum_features(sizes())})),
        intra_(function, arena, in.q.rows, sizes()),
        scratch_(function, arena, head_.width(), sizes(), 1, 1, kChunk) {}

  void run(MatrixView<const T> dout, const Gradients<T>& gradients, const ParameterSums<A>& sums) {
    head_.set(dout, gradients);
    const Index features = key_sum_features(sizes());
    clear_running();
    for (Index c = 0; c < chunks_.blocks(); ++c) {
      const IntraGradients<A> keys = intra_.from(chunks_.run(c, 0).begin);
      keys.clear(chunks_.block_size(c), sizes());
      CausalBlockGradient<T, Contiguous, Op>(head_, in_, chunks_, c, op_, scratch_)
          .run({A(1), running_, key_sum_}, {dmixtures_.block(c), dkey_sums_ + c * features},
               sums.query_map, keys);
      add_chunk(c);
    }
    clear_running();
    for (Index c = chunks_.blocks() - 1; c >= 0; --c) {
      const IntraGradients<A> keys = intra_.from(chunks_.run(c, 0).begin);
      head_.differentiate_keys(chunks_, c, running_, kSums ? key_sum_ : nullptr, sums.key_map,
                               scratch_.strips, {keys.dkeys, keys.dvalues, keys.own_dkeys});
      add(dmixtures_.block(c), dkey_sums_ + c * features);
    }
  }

 private:
  const HeadSizes& sizes() const { return head_.sizes(); }
  Index padded_features() const { return round_up(sizes().features, kRowAlignment); }

  void clear_running() const {
    std::fill_n(running_, sizes().features * sizes().values, A(0));
    std::fill_n(key_sum_, key_sum_features(sizes()), A(0));
  }
  /// R += S, z += z of a summary; or the same of gradients.
  void add(SummaryBlock<A> summary, const A* key_sum) const {
    const Index e = sizes().values;
    for (Index d = 0; d < sizes().features; ++d) {
      add_rows_to(summary.row(d), 0, 1, running_ + d * e, e);
    }
    if (kSums) add_rows_to(key_sum, 0, 1, key_sum_, key_sum_features(sizes()));
  }
  void add_chunk(Index c) const {
    const GradientScratch<A>& w = scratch_.strips;
    chunk_.summarize_block(in_, chunks_, c, op_, KeyScratch<A>(w.raw, w.keys, w.values), 0);
    add(chunk_.block(0), chunk_.key_sum(0));
  }

  const Inputs<T>& in_;
  const Op& op_;
  Contiguous chunks_;
  HeadGradient<T, Op> head_;
  HeadSummaries<T, Op> chunk_;  // S, z of one chunk
  A* running_;                  // R, then dR [D,E], readable up to padded rows
  A* key_sum_;                  // z of the chunks before, then dz of those behind
  Summaries<A> dmixtures_;      // dS~ of all chunks
  A* dkey_sums_;                // dz~ of all chunks
  IntraGradients<A> intra_;
  CausalGradientScratch<A> scratch_;
};

/// Throws unless no gradient of a mixing matrix is asked for, and those of weights fit the maps.
template <class A, class Op>
void expect_linear_parameters(const char* function, const Op& op,
                              const ParameterGradients<A>& parameters) {
  if (parameters.mixing != nullptr) {
    fail_option(function, "parameters.mixing", "is set", "null: there is no mixing matrix");
  }
  expect_parameters(function, no_mixing<A>(), op, parameters);
}

}  // namespace detail

template <Scalar T, DifferentiableOperatorOn<T> Op>
requires CausalOperator<Op> std::size_t linear_bidirectional_gradient_workspace_bytes(
    const Inputs<T>& in, const Op& op) {
  return bidirectional_gradient_workspace_bytes(in, detail::single_block(in.q.rows),
                                                detail::single_block(in.k.rows),
                                                detail::no_mixing<accumulator_t<T>>(), op);
}

template <Scalar T, DifferentiableOperatorOn<T> Op>
requires CausalOperator<Op>
void linear_bidirectional_gradient(const Inputs<T>& in, const Op& op,
                                   std::type_identity_t<MatrixView<const T>> dout,
                                   const Gradients<T>& gradients,
                                   const ParameterGradients<accumulator_t<T>>& parameters,
                                   Workspace workspace) {
  constexpr const char* kName = "linear_bidirectional_gradient";
  const Contiguous queries = detail::single_block(in.q.rows);
  const Contiguous keys = detail::single_block(in.k.rows);
  detail::expect_bidirectional_gradient(kName, in, queries, keys, op, dout, gradients);
  detail::expect_linear_parameters(kName, op, parameters);
  Sequential alone;
  detail::run_bidirectional_gradient(kName, in, queries, keys,
                                     detail::no_mixing<accumulator_t<T>>(), op, dout, gradients,
                                     detail::sums_of(parameters), workspace, alone, {});
}

template <Scalar T, DifferentiableOperatorOn<T> Op>
requires CausalOperator<Op> std::size_t linear_causal_gradient_workspace_bytes(const Inputs<T>& in,
                                                                               const Op& op) {
  detail::Arena counting;
  detail::LinearCausalGradient<T, Op>("linear_causal_gradient", counting, in, op);
  return counting.bytes();
}

namespace detail {

template <Scalar T, class Op>
void expect_linear_causal_gradient(const Inputs<T>& in, const Op& op, MatrixView<const T> dout,
                                   const Gradients<T>& gradients) {
  constexpr const char* kName = "linear_causal_gradient";
  expect_inputs(kName, in, op, dout, "dout");
  expect_shape(kName, "k", in.k, in.q.rows, -1);
  expect_gradients(kName, in, gradients);
}

/// The form without the checks.
template <Scalar T, class Op>
void run_linear_causal_gradient(const Inputs<T>& in, const Op& op, MatrixView<const T> dout,
                                const Gradients<T>& gradients,
                                const ParameterSums<accumulator_t<T>>& sums, Workspace workspace) {
  constexpr const char* kName = "linear_causal_gradient";
  Scratch scratch(kName, workspace, linear_causal_gradient_workspace_bytes(in, op));
  LinearCausalGradient<T, Op>(kName, scratch.arena(), in, op).run(dout, gradients, sums);
}

}  // namespace detail

template <Scalar T, DifferentiableOperatorOn<T> Op>
requires CausalOperator<Op>
void linear_causal_gradient(const Inputs<T>& in, const Op& op,
                            std::type_identity_t<MatrixView<const T>> dout,
                            const Gradients<T>& gradients,
                            const ParameterGradients<accumulator_t<T>>& parameters,
                            Workspace workspace) {
  detail::expect_linear_causal_gradient(in, op, dout, gradients);
  detail::expect_linear_parameters("linear_causal_gradient", op, parameters);
  detail::run_linear_causal_gradient(in, op, dout, gradients, detail::sums_of(parameters),
                                     workspace);
}

}  // namespace mhla::inline MHLA_TARGET

#pragma once

/// \file
/// Plain linear attention, a baseline: MHLA with a single block, so one D x E summary of all tokens
/// and an attention matrix of rank at most D.
///
///     o_t = phi(q_t)^T S / den_t,   S = sum_j phi(k_j) v_j^T,   den_t = phi(q_t) . z + eps
///
/// Causal: S holds the tokens up to t (stage/recurrence.hpp). CrossQuery is KeySum here, as a slot
/// holds one query; only the bidirectional form takes it, also without keys or queries.
/// Cost: 4*N*D*E flops; memory D*E numbers, causal for each of the heads that take turns on a
/// worker (linear_causal_heads.hpp). Source: Katharopoulos et al., arXiv:2006.16236; the baseline
/// of arXiv:2601.07832.

#include <algorithm>

#include "mhla/attention/bidirectional.hpp"
#include "mhla/attention/form.hpp"
#include "mhla/attention/linear_causal_heads.hpp"
#include "mhla/attention/matrix_calls.hpp"
#include "mhla/attention/operator.hpp"
#include "mhla/core/arch.hpp"

namespace mhla {
inline namespace MHLA_TARGET {

/// Writes linear attention of one head, or of every head of a batch, into `out`, which overlaps no
/// input, but may be q itself. Eigen matrices q, k, v stand for inputs(q, k, v) (matrix_calls.hpp).
/// \throws shape_error, option_error for anything that does not fit, before `out` is touched.
template <AttentionInputs In, OperatorOn<detail::scalar_of<In>> Op>
void linear_bidirectional(const In& in, const Op& op,
                          const std::type_identity_t<detail::output_of<In>>& out,
                          const Call& call = {});
template <AttentionInputs In>
void linear_bidirectional(const In& in, const std::type_identity_t<detail::output_of<In>>& out,
                          const Call& call = {}) {
  linear_bidirectional(in, Operator<>{}, out, call);
}
template <AttentionInputs In, OperatorOn<detail::scalar_of<In>> Op = Operator<>>
typename detail::InputTraits<In>::Owner linear_bidirectional(const In& in, const Op& op = {},
                                                             const Call& call = {});
template <AttentionInputs In>
typename detail::InputTraits<In>::Owner linear_bidirectional(const In& in, const Call& call) {
  return linear_bidirectional(in, Operator<>{}, call);
}

/// Bytes of workspace for these arguments; reads no data.
template <AttentionInputs In, OperatorOn<detail::scalar_of<In>> Op = Operator<>>
std::size_t linear_bidirectional_workspace_bytes(const In& in, const Op& op = {},
                                                 const ExecutorRef& executor = {});

/// The same where query t reads keys 0..t only. One head is computed by one worker.
template <AttentionInputs In, CausalOperatorOn<detail::scalar_of<In>> Op>
void linear_causal(const In& in, const Op& op,
                   const std::type_identity_t<detail::output_of<In>>& out, const Call& call = {});
template <AttentionInputs In>
void linear_causal(const In& in, const std::type_identity_t<detail::output_of<In>>& out,
                   const Call& call = {}) {
  linear_causal(in, Operator<>{}, out, call);
}
template <AttentionInputs In, CausalOperatorOn<detail::scalar_of<In>> Op = Operator<>>
typename detail::InputTraits<In>::Owner linear_causal(const In& in, const Op& op = {},
                                                      const Call& call = {});
template <AttentionInputs In>
typename detail::InputTraits<In>::Owner linear_causal(const In& in, const Call& call) {
  return linear_causal(in, Operator<>{}, call);
}
template <AttentionInputs In, CausalOperatorOn<detail::scalar_of<In>> Op = Operator<>>
std::size_t linear_causal_workspace_bytes(const In& in, const Op& op = {},
                                          const ExecutorRef& executor = {});

// ------------------------------------------------------------------------------------------------

namespace detail {

struct SingleBlock {
  Contiguous operator()(Index tokens) const { return {tokens, std::max<Index>(tokens, 1)}; }
};
inline constexpr SingleBlock kSingleBlock;

/// The mixing matrix [1].
template <class A>
MixingView<const A> no_mixing() {
  static constexpr A kOne = 1;
  return {&kOne, Pattern(1, 1)};
}

/// A normaliser of a single block, whose sums are those of each token's own weights.
template <Normalizer Z>
struct SingleBlockNormalizer {
  const Z& normalizer;

  WeightSums sums() const {
    return normalizer.sums() == WeightSums::kNone ? WeightSums::kNone : WeightSums::kToken;
  }
  template <class A>
  void denominators(const A* r, Index count, A* den) const {
    normalizer.denominators(r, count, den);
  }
  template <class A>
  requires DifferentiableNormalizer<Z>
  void slopes(const A* r, Index count, A* slope) const { normalizer.slopes(r, count, slope); }
};

/// An operator with that normaliser. Owns nothing.
template <class Op>
struct SingleBlockOperator {
  const query_map_t<Op>& query_map;
  const key_map_t<Op>& key_map;
  SingleBlockNormalizer<normalizer_t<Op>> normalizer;
  double scale;

  explicit SingleBlockOperator(const Op& op)
      : query_map(op.query_map),
        key_map(op.key_map),
        normalizer{op.normalizer},
        scale(static_cast<double>(op.scale)) {}
};

/// Its heads run together (linear_causal_heads.hpp), not as run_form has them.
template <class A, class Op>
struct LinearCausalForm {
  static constexpr unsigned kKeeps = 0;

  const char* name;
  const Op& op;

  template <Scalar T>
  void check(const Inputs<T>& in, std::type_identity_t<MatrixView<const T>> out,
             const char* argument) const {
    expect_causal_normalizer(name, op);
    expect_inputs(name, in, op, out, argument);
    expect_shape(name, "k", in.k, in.q.rows, -1);
  }
};

template <class In, class Op>
auto linear_bidirectional_form(const In& in, const SingleBlockOperator<Op>& op,
                               const char* name = "linear_bidirectional") {
  return bidirectional_form(in, kSingleBlock, no_mixing<sum_of<In>>(), op, name);
}
template <class In, class Op>
auto linear_causal_form(const In& /*in*/, const Op& op, const char* name = "linear_causal") {
  return LinearCausalForm<sum_of<In>, Op>{name, op};
}

template <class A, class Op, class In>
std::size_t linear_causal_bytes(const LinearCausalForm<A, Op>& form, const In& in, Index workers) {
  if (pairs(form.name, in) == 0) return 0;
  return counted_bytes(
      [&](Arena& arena) { return LinearCausalBatch(form.name, arena, in, form.op, workers); });
}

}  // namespace detail

template <AttentionInputs In, OperatorOn<detail::scalar_of<In>> Op>
void linear_bidirectional(const In& in, const Op& op,
                          const std::type_identity_t<detail::output_of<In>>& out,
                          const Call& call) {
  const detail::SingleBlockOperator single(op);
  detail::run_form(detail::linear_bidirectional_form(in, single), in, out, call);
}

template <AttentionInputs In, OperatorOn<detail::scalar_of<In>> Op>
typename detail::InputTraits<In>::Owner linear_bidirectional(const In& in, const Op& op,
                                                             const Call& call) {
  const detail::SingleBlockOperator single(op);
  return detail::run_form(detail::linear_bidirectional_form(in, single), in, call);
}

template <AttentionInputs In, OperatorOn<detail::scalar_of<In>> Op>
std::size_t linear_bidirectional_workspace_bytes(const In& in, const Op& op,
                                                 const ExecutorRef& executor) {
  const detail::SingleBlockOperator single(op);
  return detail::form_bytes(detail::linear_bidirectional_form(in, single), in, executor);
}

template <AttentionInputs In, CausalOperatorOn<detail::scalar_of<In>> Op>
void linear_causal(const In& in, const Op& op,
                   const std::type_identity_t<detail::output_of<In>>& out, const Call& call) {
  const auto form = detail::linear_causal_form(in, op);
  detail::expect_form(form, in, out);
  detail::expect_none_kept(form, call.kept);
  const Index workers = call.executor.workers();
  detail::Scratch scratch(form.name, call.workspace,
                          detail::linear_causal_bytes(form, in, workers));
  if (detail::sequences(in) * detail::heads(in) == 0) return;
  const detail::LinearCausalBatch batch(form.name, scratch.arena(), in, op, workers);
  batch.run(in, out, call.executor);
}

template <AttentionInputs In, CausalOperatorOn<detail::scalar_of<In>> Op>
typename detail::InputTraits<In>::Owner linear_causal(const In& in, const Op& op,
                                                      const Call& call) {
  auto out = detail::make_output(in);
  linear_causal(in, op, detail::output_of<In>(out), call);
  return out;
}

template <AttentionInputs In, CausalOperatorOn<detail::scalar_of<In>> Op>
std::size_t linear_causal_workspace_bytes(const In& in, const Op& op, const ExecutorRef& executor) {
  return detail::linear_causal_bytes(detail::linear_causal_form(in, op), in, executor.workers());
}

}  // namespace MHLA_TARGET
}  // namespace mhla

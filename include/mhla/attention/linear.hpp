#pragma once

/// \file
/// Plain linear attention, with which users compare: MHLA with a single block, so one D x E summary
/// of all tokens and an attention matrix of rank at most D.
///
///     o_t = phi(q_t)^T S / den_t,   S = sum_j phi(k_j) v_j^T,   den_t = phi(q_t) . z + eps
///
/// Causal: S holds the tokens up to t, carried from chunk to chunk.
/// Cost: 4*N*D*E flops (causal: and N*64*(D+E)); memory D*E numbers.
/// Source: Katharopoulos et al., arXiv:2006.16236; the baseline of arXiv:2601.07832.

#include <algorithm>

#include "mhla/attention/bidirectional.hpp"
#include "mhla/attention/causal.hpp"
#include "mhla/attention/operator.hpp"
#include "mhla/core/arch.hpp"

namespace mhla::inline MHLA_TARGET {

/// Writes linear attention of one head into `out` [Nq,E], which must not overlap the inputs.
/// \param workspace  at least linear_bidirectional_workspace_bytes(...), or empty to allocate
/// \throws shape_error, option_error for anything that does not fit, before `out` is touched.
template <Scalar T, CausalOperatorOn<T> Op>
void linear_bidirectional(const Inputs<T>& in, const Op& op,
                          std::type_identity_t<MatrixView<T>> out, Workspace workspace = {});

/// Bytes of workspace such a call needs; the data of `in` is not read.
template <Scalar T, CausalOperatorOn<T> Op>
std::size_t linear_bidirectional_workspace_bytes(const Inputs<T>& in, const Op& op);

/// Writes causal linear attention of one head into `out` [N,E]: query t reads keys 0..t.
/// \param workspace  at least linear_causal_workspace_bytes(...), or empty to allocate
/// \throws shape_error, option_error for anything that does not fit, before `out` is touched.
template <Scalar T, CausalOperatorOn<T> Op>
void linear_causal(const Inputs<T>& in, const Op& op, std::type_identity_t<MatrixView<T>> out,
                   Workspace workspace = {});

/// Bytes of workspace such a call needs; the data of `in` is not read.
template <Scalar T, CausalOperatorOn<T> Op>
std::size_t linear_causal_workspace_bytes(const Inputs<T>& in, const Op& op);

// ------------------------------------------------------------------------------------------------

namespace detail {

/// All tokens as one block.
inline Contiguous single_block(Index tokens) { return {tokens, std::max<Index>(tokens, 1)}; }

/// The mixing matrix [1].
template <class A>
const MixingMatrix<A>& no_mixing() {
  static const MixingMatrix<A> one(Matrix<A>::Ones(1, 1));
  return one;
}

/// Memory of the causal form: the running sums and the scratch of one chunk.
template <Scalar T>
struct LinearCausalMemory {
  using A = accumulator_t<T>;
  static constexpr Index kChunk = kStripTokens;

  HeadSizes sizes;
  A* running;  // [D,E]
  A* key_sum;  // [D or Dz]
  CausalScratch<A> scratch;

  LinearCausalMemory(Arena& arena, const char* function, const Inputs<T>& in, const HeadSizes& head)
      : sizes(head),
        running(arena.take<A>(function, {head.features, head.values})),
        key_sum(arena.take<A>(function, key_sum_features(head))),
        scratch(make_causal_scratch<A>(function, arena, in, head, kChunk)) {}
};

}  // namespace detail

template <Scalar T, CausalOperatorOn<T> Op>
std::size_t linear_bidirectional_workspace_bytes(const Inputs<T>& in, const Op& op) {
  return bidirectional_workspace_bytes(in, detail::single_block(in.q.rows),
                                       detail::single_block(in.k.rows), op);
}

template <Scalar T, CausalOperatorOn<T> Op>
void linear_bidirectional(const Inputs<T>& in, const Op& op,
                          std::type_identity_t<MatrixView<T>> out, Workspace workspace) {
  const Contiguous queries = detail::single_block(in.q.rows);
  const Contiguous keys = detail::single_block(in.k.rows);
  constexpr const char* kName = "linear_bidirectional";
  detail::expect_bidirectional<T>(kName, in, queries, keys, op, out);
  Sequential alone;
  detail::run_bidirectional<T>(kName, in, queries, keys, detail::no_mixing<accumulator_t<T>>(), op,
                               out, workspace, alone);
}

template <Scalar T, CausalOperatorOn<T> Op>
std::size_t linear_causal_workspace_bytes(const Inputs<T>& in, const Op& op) {
  return detail::bytes_of<detail::LinearCausalMemory<T>>("linear_causal", in,
                                                         detail::head_sizes(in, op));
}

namespace detail {

template <Scalar T, class Op>
void expect_linear_causal(const Inputs<T>& in, const Op& op, MatrixView<T> out) {
  expect_inputs("linear_causal", in, op, out);
  expect_shape("linear_causal", "k", in.k, in.q.rows, -1);
}

/// The form without the checks.
template <Scalar T, class Op>
void run_linear_causal(const Inputs<T>& in, const Op& op, MatrixView<T> out, Workspace workspace) {
  using A = accumulator_t<T>;
  constexpr const char* kName = "linear_causal";
  Scratch lent(kName, workspace, linear_causal_workspace_bytes(in, op));
  LinearCausalMemory<T> memory(lent.arena(), kName, in, head_sizes(in, op));
  const HeadSizes& sizes = memory.sizes;
  std::fill_n(memory.running, sizes.features * sizes.values, A(0));
  std::fill_n(memory.key_sum, key_sum_features(sizes), A(0));
  const Contiguous chunks(in.q.rows, memory.kChunk);
  for (Index c = 0; c < chunks.blocks(); ++c) {
    read_causal_block(in, chunks, c, op, A(1), memory.running, memory.key_sum, sizes,
                      memory.scratch, out);
    extend_running(memory.scratch, sizes, memory.running, memory.key_sum);
  }
}

}  // namespace detail

template <Scalar T, CausalOperatorOn<T> Op>
void linear_causal(const Inputs<T>& in, const Op& op, std::type_identity_t<MatrixView<T>> out,
                   Workspace workspace) {
  detail::expect_linear_causal<T>(in, op, out);
  detail::run_linear_causal<T>(in, op, out, workspace);
}

}  // namespace mhla::inline MHLA_TARGET

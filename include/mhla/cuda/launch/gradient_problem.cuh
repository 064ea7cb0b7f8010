#pragma once

/// \file
/// A gradient call: the forward problem and the wanted gradients.

#include <cstdint>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/kernel/parameters.cuh"
#include "mhla/cuda/launch/problem.cuh"

namespace mhla::cuda {

/// Destination of the gradients of mixing matrices.
struct MixingGradient {
  float* data;          ///< [Mq, Mk] of the first, or null
  std::int64_t stride;  ///< elements from one row to the next
  /// Elements from an item's gradients, and from a head's, to the next.
  std::int64_t item_stride;
  std::int64_t head_stride;
};

/// Gradients that a call wants, and whether it has the forward's outputs.
struct GradientWants {
  bool q, k, v, mixing, gain, has_out;
  bool operator==(const GradientWants&) const = default;
};

/// A gradient call. Unwanted tensors are null.
struct GradientProblem {
  Problem forward;  ///< the forward call; `o` is not written
  GradientWants wants;
  ConstTokenTensor dout;  ///< [B, Nq, H, E]
  ConstTokenTensor out;   ///< [B, Nq, H, E], outputs of the forward call, or null
  TokenTensor dq;         ///< [B, Nq, H, D]
  TokenTensor dk;         ///< [B, Nk, H, D]
  TokenTensor dv;         ///< [B, Nk, H, E]
  TokenTensor dgate;      ///< [B, Nq, H, E] if there is a gate
  MixingGradient dmixing;
  float* dgain;  ///< [E] if there is a gain

  /// Returns true if outputs before the norm and the gate are computed again: gradients need them,
  /// and the forward call did not keep them.
  constexpr bool computes_outputs() const {
    return forward.norm.normed || (forward.op.denominator != Denominator::kNone && !wants.has_out);
  }
};

namespace detail {

/// The product F(a, b, c; m) -> y. If `transposed`, key blocks read query blocks.
constexpr Problem product_of(const Problem& forward, ConstTokenTensor a, ConstTokenTensor b,
                             ConstTokenTensor c, TokenTensor y, bool transposed) {
  return {.q = a,
          .k = b,
          .v = c,
          .o = y,
          .batch = forward.batch,
          .heads = forward.heads,
          .query_blocks = transposed ? forward.key_blocks : forward.query_blocks,
          .key_blocks = transposed ? forward.query_blocks : forward.key_blocks,
          .op = {.query_map = FeatureMap::identity(),
                 .key_map = FeatureMap::identity(),
                 .denominator = Denominator::kNone,
                 .summaries = forward.op.summaries,
                 .matrices = forward.op.matrices,
                 .decay_terms = forward.op.decay_terms},
          .causal = false,
          .floats = forward.floats,
          .later = transposed};
}

/// The problem with the roles of query blocks and key blocks exchanged. Terms decay backwards.
constexpr Problem exchanged(const Problem& forward) {
  Problem problem = forward;
  problem.query_blocks = forward.key_blocks;
  problem.key_blocks = forward.query_blocks;
  problem.later = true;
  return problem;
}

/// The forward call without norm and gate, which computes the outputs again.
constexpr Problem outputs_of(const GradientProblem& problem, TokenTensor out) {
  Problem forward = problem.forward;
  forward.norm = {};
  forward.o = out;
  return forward;
}

}  // namespace detail
}  // namespace mhla::cuda

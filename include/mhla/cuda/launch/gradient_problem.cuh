#pragma once

/// \file
/// A call of a gradient: what was computed, and which gradients are wanted.

#include <cstdint>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/kernel/parameters.cuh"
#include "mhla/cuda/launch/problem.cuh"

namespace mhla::cuda {

/// The gradient of a mixing matrix.
struct MixingGradient {
  float* data;          ///< [Mq, Mk], or null
  std::int64_t stride;  ///< numbers from one row to the next
};

/// Which gradients a call wants, and whether it has the forward's outputs.
struct GradientWants {
  bool q, k, v, mixing, gain, has_out;
  bool operator==(const GradientWants&) const = default;
};

/// A call of a gradient. Tensors that are not wanted are null.
struct GradientProblem {
  Problem forward;  ///< what was computed; `o` is not written
  GradientWants wants;
  ConstTokenTensor dout;  ///< [B, Nq, H, E]
  ConstTokenTensor out;   ///< [B, Nq, H, E] of the forward, or null
  TokenTensor dq;         ///< [B, Nq, H, D]
  TokenTensor dk;         ///< [B, Nk, H, D]
  TokenTensor dv;         ///< [B, Nk, H, E]
  TokenTensor dgate;      ///< [B, Nq, H, E] with a gate
  MixingGradient dmixing;
  float* dgain;  ///< [E] with a gain

  /// Returns true where outputs before norm and gate are computed again: gradients need them, and
  /// the forward's are not given or are others.
  constexpr bool computes_outputs() const {
    return forward.norm.normed || (forward.op.denominator != Denominator::kNone && !wants.has_out);
  }
};

namespace detail {

/// Values in halves of 128 columns where they are wider: both sides of dphi are as wide as keys.
template <int E>
inline constexpr int kHalfWidth = E > 128 ? 128 : E;
template <int E>
inline constexpr int kHalves = E / kHalfWidth<E>;

/// Columns of half h of a tensor of values.
template <int E, class Byte>
constexpr BasicTokenTensor<Byte> half_of(BasicTokenTensor<Byte> x, int h) {
  if (x.data != nullptr) x.data += 2 * kHalfWidth<E> * h;
  return x;
}

/// F(a, b, c; m) -> y, of the forward's blocks, or of keys' blocks that read those of queries.
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
                 .summaries = forward.op.summaries},
          .causal = false};
}

/// The forward without norm and gate, whose outputs gradients need.
constexpr Problem outputs_of(const GradientProblem& problem, TokenTensor out) {
  Problem forward = problem.forward;
  forward.norm = {};
  forward.o = out;
  return forward;
}

}  // namespace detail
}  // namespace mhla::cuda

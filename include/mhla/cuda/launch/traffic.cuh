#pragma once

/// \file
/// Forms that compute a problem (plan.cuh), and the bytes that they move.

#include <cstdint>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/kernel/parameters.cuh"
#include "mhla/cuda/launch/problem.cuh"
#include "mhla/cuda/tile/token_blocks.cuh"

namespace mhla::cuda {

enum class Form { kQuadratic, kFused, kThreeStage };

/// "quadratic", "fused" or "three-stage".
constexpr const char* name(Form form) {
  switch (form) {
    case Form::kQuadratic:
      return "quadratic";
    case Form::kFused:
      return "fused";
    default:
      return "three-stage";
  }
}

/// Bytes that a call moves between device memory and multiprocessors. Every kernel is assumed to
/// read its inputs and write its outputs once.
struct Traffic {
  std::uint64_t tensors;    ///< q, k, v, o, gates and angles
  std::uint64_t summaries;  ///< S, S~, their key sums and scores

  constexpr std::uint64_t total() const { return tensors + summaries; }
  constexpr Traffic& operator+=(const Traffic& more) {
    tensors += more.tensors;
    summaries += more.summaries;
    return *this;
  }
};

namespace detail {

/// Bytes of tensors and summaries that the form moves.
/// \param reads  times that the fused form reads queries and keys, all but the first from L2
template <int D, int E>
constexpr Traffic traffic(const Problem& problem, Form form, std::uint64_t reads = 1) {
  const auto pairs = static_cast<std::uint64_t>(problem.pairs());
  const auto nq = static_cast<std::uint64_t>(problem.query_blocks.tokens());
  const auto nk = static_cast<std::uint64_t>(problem.key_blocks.tokens());
  const auto number = static_cast<std::uint64_t>(problem.number_bytes());
  Traffic bytes{pairs * number * (nq + nk) * (D + E), 0};
  bytes.tensors += (reads - 1) * pairs * number * (nq + nk) * D;
  if (form != Form::kThreeStage) return bytes;
  if (problem.norm.gated) bytes.tensors += pairs * number * nq * E;
  if (problem.rotary) bytes.tensors += 4 * (nq + nk) * D;  // angles, the same for all heads
  if (problem.causal) bytes.tensors += pairs * number * nk * (D + E);  // keys and values again
  const auto mq = static_cast<std::uint64_t>(problem.query_blocks.blocks());
  const auto mk = static_cast<std::uint64_t>(problem.key_blocks.blocks());
  const std::uint64_t parts = problem.op.summaries == Precision::kPair ? 2 : 1;
  bytes.summaries = pairs * 2 * (mq + mk) * D * E * 2 * parts;
  if (problem.op.denominator == Denominator::kKeySum) {
    bytes.summaries += pairs * 2 * (mq + mk) * D * 4;
  }
  if (problem.op.denominator == Denominator::kCrossQuery) {
    const auto slots = static_cast<std::uint64_t>(problem.query_blocks.slots());
    bytes.tensors += pairs * number * nq * D;  // queries again
    bytes.summaries += pairs * (2 * mk * D * 4 + 2 * mq * slots * 4);
  }
  return bytes;
}

/// Bytes of summaries and mixtures where `key_blocks` blocks are mixed to `rows` rows.
template <int D, int E>
constexpr std::uint64_t mixed_bytes(const Problem& problem, std::int32_t key_blocks,
                                    std::int32_t rows) {
  Problem mixed = with_key_blocks(problem, key_blocks);
  mixed.query_blocks = TokenBlocks(1, 1, rows, 1, 1, 1);
  return traffic<D, E>(mixed, Form::kThreeStage).summaries;
}

}  // namespace detail

}  // namespace mhla::cuda

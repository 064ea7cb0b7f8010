#pragma once

/// \file
/// Arguments of streams on a device, and their checks (attention/streaming.cuh).

#include <cstdint>
#include <limits>
#include <string>
#include <type_traits>

#include "mhla/core/tensor.hpp"
#include "mhla/cuda/attention/inputs.cuh"
#include "mhla/cuda/attention/make_problem.cuh"
#include "mhla/cuda/attention/mixing_inputs.cuh"
#include "mhla/cuda/launch/problem.cuh"

namespace mhla::cuda::detail {

/// \throws option_error unless a state of `all` sequences has `count` of them from `first` on.
inline void expect_sequences(const char* function, Index first, Index count, Index all) {
  if (first < 0 || count > all || first > all - count) {
    fail_option(function, "sequences",
                "are " + std::to_string(count) + " from " + std::to_string(first) + " on",
                "some of the " + std::to_string(all) + " that the state has");
  }
}

/// \throws option_error for kCrossQuery, kPerItemAndHead and more than 32 decaying terms.
inline void expect_stream_operator(const char* function, const Operator& op) {
  if (op.denominator == Denominator::kCrossQuery) {
    fail_option(function, "op", "has a cross-query denominator",
                "none or key sums: it reads later queries");
  }
  expect_few_matrices(function, op.matrices, true,
                      "kShared or kPerHead: sequences of a state come and go, and share matrices");
  expect_decay_terms(function, op, true);
}

/// Returns the blocks of a stream: one per row of the matrix, or with decaying terms the most that
/// a prefill may have.
/// \throws option_error for sizes out of range.
inline TokenBlocks stream_blocks(const char* function, Index rows, Index length,
                                 const Operator& op) {
  constexpr Index kLimit = std::numeric_limits<std::int32_t>::max();
  if (op.decay_terms > 0) {
    if (length < 1 || length > kLimit / 5) {  // endless_counter() is below 4 W
      fail_option(function, "block_length", "is " + std::to_string(length),
                  "1 to " + std::to_string(kLimit / 5) + " with decaying terms");
    }
    return contiguous(kLimit / length * length, length);
  }
  if (rows < 1 || length < 1 || length > kLimit / rows) {
    fail_option(
        function, "mixing and block_length",
        "are for " + std::to_string(rows) + " blocks of " + std::to_string(length) + " tokens",
        "at least 1 and fewer than 2^31 tokens in all");
  }
  return contiguous(rows * length, length);
}

/// Describes the matrices of a stream's blocks, or its decaying terms. Kernels of streams read
/// zeros, so a pattern is dropped.
/// \throws shape_error, option_error as mixing_array() does.
inline MixingArray stream_mixing(const char* function, const MixingMatrices<const float>& mixing,
                                 const TokenBlocks& blocks, const Operator& op) {
  Problem problem{};
  problem.op = op;
  problem.query_blocks = problem.key_blocks = blocks;
  MixingArray array = mixing_array(function, mixing, problem);
  array.strips = nullptr;
  return array;
}

/// \throws option_error for what streams do not take: a gain, a gate, masks, offsets, a prefix.
template <DeviceScalar T>
void expect_stream_inputs(const char* function, const Inputs<T>& in) {
  if (in.query_prefix != 0 || in.key_prefix != 0) {
    fail_option(function, in.query_prefix != 0 ? "query_prefix" : "key_prefix", "is given",
                "none: a stream has blocks of one length");
  }
  expect_all_tokens(function, in, "none: a call passes only tokens that its sequences take");
  if (in.gain.empty() && in.gate.absent()) return;
  fail_option(function, in.gain.empty() ? "gate" : "gain", "is given",
              "none: a norm reads all columns, and steps split those of wide outputs");
}

/// Rejects types without kernels.
template <DeviceScalar T>
constexpr bool has_stream_kernels() {
  static_assert(!std::is_same_v<T, float>,
                "streams have kernels for bfloat16 and half, not float32: a state keeps 16 bits");
  return true;
}

/// \throws option_error unless a stream of `capacity` tokens may have seen so many.
inline void expect_seen(const char* function, Index seen, Index capacity) {
  if (seen >= 0 && seen < capacity) return;
  fail_option(function, "seen", "is " + std::to_string(seen),
              "0 to " + std::to_string(capacity - 1));
}

/// Describes a prefill as a problem: N further tokens of sequences of a stream.
/// \param stream  M blocks of W tokens
/// \throws shape_error, option_error as make_problem() does; shape_error for another number of
///         heads.
/// \throws option_error for what streams do not take, or more than M W tokens in all.
template <int D, int E, DeviceScalar T, AnyOperator O = Operator>
Problem prefill_problem(const char* function, const Inputs<T>& in, const TokenBlocks& stream,
                        Index seen, Index heads, const O& op, TensorView<T> out) {
  expect_stream_inputs(function, in);
  expect_seen(function, seen, stream.tokens());
  const Index tokens = in.q.tokens(), free_slots = stream.tokens() - seen;
  if (tokens < 1 || tokens > free_slots) {
    fail_option(function, "in", "has " + std::to_string(tokens) + " tokens",
                "1 to " + std::to_string(free_slots));
  }
  if (in.q.heads() != heads) {
    fail_shape(function, "q", "has " + std::to_string(in.q.heads()) + " heads",
               std::to_string(heads));
  }
  const TokenBlocks blocks = contiguous(tokens, stream.slots());
  return make_problem<D, E>(function, in, blocks, blocks, true, op, out);
}

}  // namespace mhla::cuda::detail

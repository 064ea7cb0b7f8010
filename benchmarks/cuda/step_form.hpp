#pragma once

/// \file
/// Steps of streams of D = E = 128 on a device, as plain functions. nvcc compiles step_form.cu.

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "cuda/forms.hpp"

namespace mhla::cuda_bench {

inline constexpr int kStepWidth = 128;

/// Streams that step together, and their tokens in order.
struct Streams {
  std::int64_t batch, heads, tokens;
  std::int64_t blocks, block_length;  ///< M, W
  const Bits* q;                      ///< [B, tokens, H, D]
  const Bits* k;                      ///< [B, tokens, H, D]
  const Bits* v;                      ///< [B, tokens, H, E]
  const float* mixing;                ///< [M, M]
  Bits* o;                            ///< [B, 1, H, E]
  void* state;
  std::size_t state_bytes;
};

std::size_t state_bytes(const Streams& streams);

/// Resets the state.
void start(const Streams& streams, cudaStream_t stream);

/// Runs a step with token `token` of every sequence.
void step(const Streams& streams, std::int64_t token, cudaStream_t stream);

}  // namespace mhla::cuda_bench

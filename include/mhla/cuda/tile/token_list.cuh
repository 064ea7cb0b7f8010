#pragma once

/// \file
/// Tokens of rows, worked out once and kept in shared memory: where a row is copied in pieces by
/// many threads, a load each instead of the divisions of TokenBlocks::token.

#include <cstdint>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/ptx/shared.cuh"

namespace mhla::cuda {

/// Rows `first`.. of a list of tokens at a shared address, 4 bytes each, -1 where there is none.
struct ListedTokens {
  std::uint32_t begin;
  std::int32_t first;
  MHLA_DEVICE std::int32_t operator()(std::int32_t row) const {
    return static_cast<std::int32_t>(ptx::load_shared(begin + 4 * (first + row)));
  }
};

/// Lists tokens(0).. tokens(kRows - 1), by all threads of a block, which meet before they read.
template <int kThreads, int kRows, class Tokens>
MHLA_DEVICE void list_tokens(std::uint32_t begin, const Tokens& tokens, std::uint32_t thread) {
  MHLA_CUDA_UNROLL
  for (int i = 0; i < (kRows + kThreads - 1) / kThreads; ++i) {
    const std::uint32_t row = i * kThreads + thread;
    if (kRows % kThreads != 0 && row >= kRows) break;
    ptx::store_shared(begin + 4 * row,
                      static_cast<std::uint32_t>(tokens(static_cast<std::int32_t>(row))));
  }
}

}  // namespace mhla::cuda

#pragma once

/// \file
/// The number of blocks above which a device moves more bytes for summaries than is needed.

#include <algorithm>
#include <cstdint>
#include <string>

#include "mhla/core/error.hpp"
#include "mhla/core/scalar.hpp"
#include "mhla/cuda/kernel/fused_causal_sm90_config.cuh"
#include "mhla/cuda/launch/form_bounds.cuh"
#include "mhla/cuda/launch/problem.cuh"

namespace mhla::cuda {

/// A largest number of blocks, for mhla::suggest_blocks and mhla::suggest_grid.
struct BlockLimit {
  Index blocks;
  const char* reason;  ///< one line
};

/// Returns how many blocks of `tokens` tokens a form takes at little cost, on a device with enough
/// heads:
/// - The quadratic form takes any number.
/// - The fused form keeps so many summaries in shared memory.
/// - Three stages move 2 D E / (W (D + E)) as many bytes for summaries as for tensors: half if D is
///   E and W is 2 D.
///
/// The largest of these is returned. It is at least 1.
/// \throws option_error unless tokens >= 1.
template <int D, int E = D>
BlockLimit most_blocks(Index tokens, const Device& device, bool causal = false);

// ------------------------------------------------------------------------------------------------

namespace detail {

/// The most blocks of the fused form that can hold these tokens, or 0.
template <int D, int E>
constexpr Index fused_limit(Index tokens, const Device& device, bool causal) {
  if (!causal) return form_bounds<D, E>(device.kernels(), device.shared_bytes).fused_blocks;
  if constexpr (Widths<D, E>::kFusedCausal) {
    using Config = FusedCausalSm90Config<D, E>;
    constexpr Index kMost = Config::kMostBlocks;
    if (device.kernels() == Arch::kSm90a && tokens <= kMost * Config::kMostRows) return kMost;
  }
  return 0;
}

}  // namespace detail

template <int D, int E>
BlockLimit most_blocks(Index tokens, const Device& device, bool causal) {
  if (tokens < 1) {
    mhla::detail::fail_option("cuda::most_blocks", "tokens", "is " + std::to_string(tokens),
                              "at least 1");
  }
  if (tokens <= form_bounds<D, E>(device.kernels(), device.shared_bytes).quadratic_keys) {
    return {tokens, "the quadratic form makes no summaries"};
  }
  const Index fused = detail::fused_limit<D, E>(tokens, device, causal);
  const Index whole = std::max<Index>(tokens / (2 * D), 1);  // blocks of at least 2 D tokens
  if (fused > whole) return {fused, "so many summaries fit into shared memory"};
  return {whole, "with blocks of 2 D tokens, summaries are fewer bytes than tensors"};
}

}  // namespace mhla::cuda

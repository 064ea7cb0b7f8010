#pragma once

/// \file
/// Plan of a gradient: its kernels and forms, and the bytes that they move and keep. It depends on
/// sizes and the device alone.

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/kernel/quadratic_gradient_sm80_config.cuh"
#include "mhla/cuda/launch/plan.cuh"
#include "mhla/cuda/launch/problem.cuh"
#include "mhla/cuda/launch/traffic.cuh"

namespace mhla::cuda {

/// Forms of a gradient's products, and its workspace.
struct GradientPlan {
  std::size_t workspace_bytes;  ///< a multiple of 256
  Traffic traffic;
  Plan outputs;    ///< of the forward call, if its outputs are computed again
  Plan queries;    ///< of dphi(Q); of each half of values with more than 128 columns
  Plan keys;       ///< of dphi(K)
  Plan values;     ///< of dV
  bool scores;     ///< the mixing matrix's gradient sums scores instead of summaries
  bool quadratic;  ///< one kernel computes all gradients, without products
};

namespace detail {

/// Returns true if the mixing matrix's gradient sums scores. This needs as few tokens as the
/// quadratic form, and tiles of 16 x 8 tokens that are at least half full. Floats sum summaries,
/// which are pairs.
constexpr bool takes_scores(const Problem& forward) {
  constexpr std::int32_t kMostTokens = 256, kLeastSlots = 8;
  return !forward.causal && !forward.floats && forward.query_blocks.tokens() <= kMostTokens &&
         forward.key_blocks.tokens() <= kMostTokens &&
         forward.query_blocks.slots() >= kLeastSlots && forward.key_blocks.slots() >= kLeastSlots;
}

/// Returns true if one kernel computes all gradients.
template <int D, int E, bool kRotary>
constexpr bool takes_quadratic_gradient(const Problem& forward, const Device& device) {
  if constexpr (D == E && QuadraticGradientConfig<D>::kFits && !kRotary) {
    return !forward.causal && !forward.floats && !forward.norm.normed &&
           PaddedBlocks::fit(forward.query_blocks) && PaddedBlocks::fit(forward.key_blocks) &&
           device.shared_bytes >= (crosses(forward) ? QuadraticGradientConfig<D, true>::kBytes
                                                    : QuadraticGradientConfig<D>::kBytes) &&
           (QuadraticGradientConfig<D>::kInstructionSet == Arch::kSm80 ||
            device.kernels() == Arch::kSm90a);
  }
  return false;
}

/// Number of thread blocks that keeps any device busy.
inline constexpr std::int32_t kManyBlocks = 1024;

/// Number of chunks of `count` things, `each` items per chunk, that gives about kManyBlocks items.
constexpr std::int32_t chunks_of(std::int64_t count, std::int64_t each) {
  const std::int64_t wanted = (kManyBlocks - 1) / std::max<std::int64_t>(each, 1) + 1;
  return static_cast<std::int32_t>(std::max<std::int64_t>(std::min(count, wanted), 1));
}

}  // namespace detail

}  // namespace mhla::cuda

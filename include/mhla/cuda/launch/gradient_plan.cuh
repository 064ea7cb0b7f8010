#pragma once

/// \file
/// Plan of a gradient: its kernels and forms, and the bytes that they move and keep. It depends on
/// sizes and the device alone.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/kernel/fused_gradient_sm80_config.cuh"
#include "mhla/cuda/kernel/quadratic_gradient_sm80_config.cuh"
#include "mhla/cuda/kernel/score_products_sm80.cuh"
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
  bool quadratic;  ///< one kernel computes all gradients, without summaries
  bool fused;      ///< one kernel computes all gradients, with summaries in shared memory
  bool blocks;     ///< a kernel for blocks of queries and one for blocks of keys multiply
  bool staged;     ///< these kernels compute all gradients from the call's tensors
};

namespace detail {

/// Returns true if the mixing matrix's gradient sums scores. This needs as few tokens as the
/// quadratic form, few blocks, and tiles of 16 x 8 tokens that are at least half full. Floats sum
/// summaries, which are pairs.
constexpr bool takes_scores(const Problem& forward) {
  constexpr std::int32_t kMostTokens = 256, kLeastSlots = 8;
  return !forward.causal && !forward.floats && forward.query_blocks.tokens() <= kMostTokens &&
         forward.key_blocks.tokens() <= kMostTokens &&
         forward.key_blocks.blocks() <= ScoreProductParameters::kMostBlocks &&
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

/// Returns of(limit), where `limit` is a std::integral_constant: the shared memory of the largest
/// fused gradient kernel that the device runs, at least kLeastShared.
template <class Of>
constexpr auto of_fused_gradient(const Device& device, const Of& of) {
  if (device.kernels() == Arch::kSm90a) {
    return of(std::integral_constant<int, shared_limit(Arch::kSm90a)>{});
  }
  if (device.shared_bytes >= shared_limit(Arch::kSm80)) {
    return of(std::integral_constant<int, shared_limit(Arch::kSm80)>{});
  }
  return of(std::integral_constant<int, kLeastShared>{});
}

/// Most blocks of the fused gradient on a device, or 0.
template <int D, int E>
constexpr std::int32_t fused_gradient_blocks(const Device& device) {
  if constexpr (D == E && D <= kWidestFusedGradient) {
    if (device.shared_bytes < kLeastShared) return 0;
    return of_fused_gradient(device,
                             [](auto limit) { return FusedGradientConfig<D, limit()>::kRegions; });
  }
  return 0;
}

/// Returns true if one kernel computes all gradients with summaries in shared memory. There are
/// enough heads to keep the device busy, and more tokens than scores are summed for. Summaries are
/// no pairs, as those of floats are.
template <int D, int E, bool kRotary>
constexpr bool takes_fused_gradient(const Problem& forward, const Device& device) {
  const std::int32_t blocks = std::max(forward.query_blocks.blocks(), forward.key_blocks.blocks());
  return !kRotary && !forward.causal && !forward.norm.normed && !crosses(forward) &&
         forward.op.summaries == Precision::kSingle && !takes_scores(forward) &&
         blocks <= fused_gradient_blocks<D, E>(device) &&
         2 * forward.pairs() >= device.multiprocessors;
}

/// Returns true if a kernel for blocks of queries and one for blocks of keys can multiply features,
/// dN and values. Summaries are no pairs, as those of floats are.
template <int D, int E>
constexpr bool takes_blocks(const Problem& forward, const Device& device) {
  if constexpr (D == E && D <= kWidestBlockGradient) {
    return !takes_scores(forward) && forward.op.summaries != Precision::kPair &&
           device.shared_bytes >= FusedGradientConfig<D, kBlockGradientLimit<D>, 1>::kBytes;
  }
  return false;
}

/// Returns true if these kernels can also apply feature maps and divide by denominators.
template <bool kRotary>
constexpr bool takes_whole_blocks(const Problem& forward) {
  return !kRotary && !forward.causal && !crosses(forward) && !forward.norm.normed;
}

/// The plan of the kernels that depend on the forward call alone.
template <int D, int E, bool kRotary>
constexpr GradientPlan kernels_of(const Problem& forward, const Device& device) {
  GradientPlan plan{};
  plan.quadratic = takes_quadratic_gradient<D, E, kRotary>(forward, device);
  plan.fused = !plan.quadratic && takes_fused_gradient<D, E, kRotary>(forward, device);
  plan.scores = !plan.quadratic && takes_scores(forward);
  plan.staged = !plan.quadratic && !plan.fused && takes_blocks<D, E>(forward, device) &&
                takes_whole_blocks<kRotary>(forward);
  return plan;
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

#pragma once

/// \file
/// Sizes where one form ends and the next begins (plan.cuh).

#include <algorithm>
#include <cstdint>
#include <limits>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/kernel/fused_sm80_config.cuh"
#include "mhla/cuda/kernel/fused_sm90_config.cuh"
#include "mhla/cuda/kernel/quadratic_sm80_config.cuh"
#include "mhla/cuda/kernel/widths.cuh"

namespace mhla::cuda {

struct FormBounds {
  std::int32_t quadratic_keys;  ///< most keys of the quadratic form
  /// Most blocks of the fused form per thread block: 0, 4, 8 or 16. For the causal one see
  /// fused_causal_sm90_config.cuh.
  std::int32_t fused_blocks;
};

namespace detail {

/// Most blocks of the fused form, of the numbers for which there are kernels.
/// \param least  The device has less shared memory than an A100.
template <int D, int E>
constexpr std::int32_t fused_blocks(Arch arch, bool least) {
  if constexpr (D == E) {
    if (least) {
      return FusedSm80Config<D, E, 8, kLeastShared>::kFits   ? 8
             : FusedSm80Config<D, E, 4, kLeastShared>::kFits ? 4
                                                             : 0;
    }
    if constexpr (Widths<D, E>::kTensorCopies) {
      if (arch == Arch::kSm90a) {
        return FusedSm90Config<D, E, 16>::kFits ? 16 : FusedSm90Config<D, E, 4>::kFits ? 4 : 0;
      }
    }
    return FusedSm80Config<D, E, 16>::kFits ? 16 : FusedSm80Config<D, E, 4>::kFits ? 4 : 0;
  }
  return 0;
}

/// Bytes of a fused kernel, or of the one for kFewer regions that replaces it if it is too large.
template <int D, int E, int kRegions, int kFewer>
constexpr std::int32_t fused_bytes() {
  constexpr std::int32_t kBytes = FusedSm80Config<D, E, kRegions>::kBytes;
  return kBytes <= kLeastShared ? kBytes : FusedSm80Config<D, E, kFewer, kLeastShared>::kBytes;
}

/// Bytes of the largest quadratic kernel of sm_80, or a number beyond any device if there is none.
template <int D, int E>
constexpr std::int32_t quadratic_bytes() {
  if constexpr (Widths<D, E>::kQuadratic) {
    return std::max<std::int32_t>(QuadraticConfig<D, E, true>::kBytes,
                                  QuadraticConfig<D, E, false, true>::kBytes);
  }
  return std::numeric_limits<std::int32_t>::max();
}

}  // namespace detail

/// Bounds of the forms.
/// - quadratic_keys: 2 (flops per second) / (bytes per second) in whole tiles of 128 tokens, with
///   the flops that products of this size reach. A100: 250 TFLOP/s and 2.0 TB/s give 250. H200: 600
///   TFLOP/s and 4.3 TB/s give 280. It is 0 if no kernel fits.
/// - fused_blocks: So many summaries fit into shared memory beside a ring of tokens.
///
/// Devices with less shared memory than an A100 have the kernels of kLeastShared bytes.
template <int D, int E>
constexpr FormBounds form_bounds(Arch arch, std::int32_t shared_bytes) {
  const bool least = arch == Arch::kSm80 && shared_bytes < shared_limit(Arch::kSm80);
  const std::int32_t limit = least ? kLeastShared : shared_limit(Arch::kSm80);
  return {detail::quadratic_bytes<D, E>() <= limit ? 256 : 0,
          detail::fused_blocks<D, E>(arch, least)};
}

/// Bounds on devices with all the shared memory that kernels of `arch` use.
template <int D, int E>
constexpr FormBounds form_bounds(Arch arch) {
  return form_bounds<D, E>(arch, shared_limit(arch));
}

}  // namespace mhla::cuda

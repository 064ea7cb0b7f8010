#pragma once

/// \file
/// Table of the sizes where one form ends and the next begins (plan.cuh).

#include <cstdint>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/kernel/widths.cuh"

namespace mhla::cuda {

struct FormBounds {
  std::int32_t quadratic_keys;  ///< most keys of the quadratic form
  /// Most blocks of the fused form per thread block: 0, 4 or 16. For the causal one see
  /// fused_causal_sm90_config.cuh.
  std::int32_t fused_blocks;
};

/// Bounds of the forms.
/// - quadratic_keys: 2 (flops per second) / (bytes per second) in whole tiles of 128 tokens, with
///   the flops that products of this size reach. A100: 250 TFLOP/s and 2.0 TB/s give 250. H200: 600
///   TFLOP/s and 4.3 TB/s give 280.
/// - fused_blocks: So many summaries fit into shared memory beside a ring of tokens.
/// - least: Bounds on devices with less shared memory than an A100. They have no quadratic kernel
///   of (128, 256).
template <int D, int E>
constexpr FormBounds form_bounds(Arch arch, std::int32_t shared_bytes) {
  static_assert(has_kernels(D, E),
                "mhla::cuda has kernels for (D, E) of (64, 64), (72, 72), (128, 128), (128, 256)");
  struct Row {
    int d, e;
    FormBounds least, sm80, sm90a;
  };
  constexpr Row kTable[] = {
      {64, 64, {256, 8}, {256, 16}, {256, 16}},
      {72, 72, {256, 4}, {256, 4}, {256, 16}},
      {128, 128, {256, 0}, {256, 4}, {256, 4}},
      {128, 256, {0, 0}, {256, 0}, {256, 0}},
  };
  for (const Row& row : kTable) {
    if (row.d != D || row.e != E) continue;
    if (arch == Arch::kSm90a) return row.sm90a;
    return shared_bytes < shared_limit(Arch::kSm80) ? row.least : row.sm80;
  }
  return {};
}

/// Bounds on devices with all the shared memory that kernels of `arch` use.
template <int D, int E>
constexpr FormBounds form_bounds(Arch arch) {
  return form_bounds<D, E>(arch, shared_limit(arch));
}

}  // namespace mhla::cuda

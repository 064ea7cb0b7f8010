#pragma once

/// \file
/// Where one form ends and the next begins (plan.cuh), in a table.

#include <cstdint>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/kernel/widths.cuh"

namespace mhla::cuda {

struct FormBounds {
  std::int32_t quadratic_keys;  ///< the quadratic form up to so many keys
  /// The fused form up to so many blocks, in one thread block: 0, 4 or 16. A causal one:
  /// fused_causal_sm90_config.cuh.
  std::int32_t fused_blocks;
};

/// The table. quadratic_keys: 2 (flops a second) / (bytes a second) at the rate that products of
/// this size reach, in whole tiles of 128 tokens: A100 250 TFLOP/s and 2.0 TB/s give 250, H200 600
/// and 4.3 give 280. fused_blocks: whose summaries fit into shared memory with a ring of tokens.
/// least: of devices with less shared memory than an A100, where (128, 256) has no quadratic
/// kernel.
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

/// Of devices that have all that kernels of `arch` may need.
template <int D, int E>
constexpr FormBounds form_bounds(Arch arch) {
  return form_bounds<D, E>(arch, shared_limit(arch));
}

}  // namespace mhla::cuda

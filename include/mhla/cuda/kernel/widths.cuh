#pragma once

/// \file
/// Widths of keys and values for which kernels exist.

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/tile/width.cuh"

namespace mhla::cuda {

/// Kernels of sm_90a for a pair of widths. Kernels of sm_80 do the rest.
enum class Sm90Kernels {
  kNone,
  kMma,    ///< summaries, bidirectional read-out and fused form: tensor copies, mma.sync
  kWgmma,  ///< all stages and forms: tensor copies, wgmma
};

/// Widths of keys (D) and of values (E).
struct WidthPair {
  int d, e;
  Sm90Kernels sm90a;
};

/// The pairs that kernels support. The gradient of (D, E) also needs the pair (E, D), or (128, D)
/// if E is wider.
inline constexpr WidthPair kWidthPairs[] = {
    {32, 32, Sm90Kernels::kNone},     // image generation
    {48, 48, Sm90Kernels::kNone},     // small vision transformers
    {48, 96, Sm90Kernels::kNone},     // values twice as wide
    {64, 64, Sm90Kernels::kWgmma},    // vision transformers
    {72, 72, Sm90Kernels::kMma},      // vision transformers
    {96, 48, Sm90Kernels::kNone},     // gradients of (48, 96)
    {96, 96, Sm90Kernels::kNone},     // language
    {128, 128, Sm90Kernels::kWgmma},  // video
    {128, 256, Sm90Kernels::kWgmma},  // language, values twice as wide
    {256, 256, Sm90Kernels::kNone},   // language
};

/// Returns true if there are kernels for (D, E).
constexpr bool has_kernels(int d, int e) {
  for (const WidthPair& pair : kWidthPairs) {
    if (pair.d == d && pair.e == e) return true;
  }
  return false;
}

/// Returns the kernels of sm_90a for (D, E).
constexpr Sm90Kernels sm90_kernels(int d, int e) {
  for (const WidthPair& pair : kWidthPairs) {
    if (pair.d == d && pair.e == e) return pair.sm90a;
  }
  return Sm90Kernels::kNone;
}

/// Sizes that follow from a pair of widths.
template <int D, int E>
struct Widths {
  static_assert(has_kernels(D, E),
                "mhla::cuda has kernels for the pairs (D, E) of kWidthPairs in kernel/widths.cuh");

  static constexpr bool kTensorCopies = sm90_kernels(D, E) != Sm90Kernels::kNone;
  static constexpr bool kWgmma = sm90_kernels(D, E) == Sm90Kernels::kWgmma;
  /// True if the fused form has a causal kernel, whose warps have a panel of keys and of values.
  static constexpr bool kFusedCausal =
      kWgmma && Width<D>::kPanelCount == 1 && Width<E>::kPanelCount == 1;
  /// True if the fused form has a kernel of slabs: 64 summaries of 16 columns fit into shared
  /// memory.
  static constexpr bool kSlabs = kWgmma && D == 64 && E == 64;
  /// True if a kernel of the quadratic form splits keys: a warp holds 16 keys and values.
  static constexpr bool kSplitsKeys = D == E && Width<D>::kPanels && Width<D>::kParts == 1;
  /// True if calls take floats. Tiles of high and low parts with up to 128 columns fit into the
  /// least shared memory.
  static constexpr bool kFloats = Width<D>::kParts == 1;
  /// True if each half of the values of floats has a call of its own.
  static constexpr bool kFloatHalves = kFloats && Width<E>::kParts > 1;
  /// True if one kernel has all three stages (joined_stages_sm80.cuh).
  static constexpr bool kJoinsStages = D == E && kWgmma;
  /// Registers per thread that hold 16 rows of features and their sums with values, in one warp.
  static constexpr int kHeldRegisters = D / 4 + E / 2;
  /// True if the quadratic form has kernels: these registers and about 74 others are at most 255.
  static constexpr bool kQuadratic = kHeldRegisters + 74 <= 255;
};

}  // namespace mhla::cuda

#pragma once

/// \file
/// Turns gradients of features into gradients of queries or keys, token by token:
///
///     dx_t = phi'(x_t) (dphi_t + w_t y_b)     [D], rounded to T; w_t = 1 without weights
///
/// where y_b comes from the denominators of the token's block. dphi_t may have two addends. If
/// features were rotated, it is rotated back first.
///
/// Eight threads share each token. A thread block has 64 slots of a block of one pair.
/// Shared memory: none. Device memory: x and dphi once, dx once.

#include <cstdint>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/kernel/occupancy.cuh"
#include "mhla/cuda/kernel/parameters.cuh"
#include "mhla/cuda/kernel/shared_tokens.cuh"
#include "mhla/cuda/tile/rotary.cuh"
#include "mhla/cuda/tile/split_rows.cuh"

namespace mhla::cuda {

struct InputGradientParameters {
  ConstTokenTensor x;                ///< [B, N, H, D]
  ConstTokenTensor dfeatures;        ///< [B, N, H, D]
  ConstTokenTensor dfeatures_added;  ///< a second addend, or null
  TokenTensor dx;                    ///< [B, N, H, D]
  TokenBlocks blocks;
  std::int32_t heads;
  FeatureMap map;
  RotaryAngles angles{};  ///< null: features are not rotated
  const float* weights;   ///< w [pairs, M, W], or null
  const float* vectors;   ///< y [pairs, M, D], or null
};

template <class T, int D>
struct InputGradientsSm80 {
  using Params = InputGradientParameters;
  static constexpr Arch kArchitecture = Arch::kSm80;
  static constexpr int kThreads = 128;
  static constexpr int kSharedBytes = 0;
  static constexpr int kBlocksPerMultiprocessor =
      resident_blocks(kThreads, 32 + 32 * SplitRow<D>::kPieces, kSharedBytes);

  static constexpr unsigned grid(const Params& p, int pairs) {
    return SharedTokens<kThreads>::grid(p.blocks, pairs);
  }

  MHLA_DEVICE void operator()(const Params& p) const {
    const SharedTokens<kThreads> tokens(p.blocks, p.heads);
    const std::uint32_t sharer = tokens.sharer, item = tokens.item;
    const BatchHead pair = tokens.pair;
    Row y{};
    if (p.vectors != nullptr) y = Row::load_floats(p.vectors + std::int64_t{item} * D, sharer);
    tokens.for_each([&](std::int32_t slot, std::int32_t token) {
      if (token < 0) return;
      const auto row = [&](const auto& x) { return x.head(pair) + token * x.token_stride; };
      const auto words = Row::template hold<T>(row(p.dfeatures), sharer);
      const auto inputs = Row::template hold<T>(row(p.x), sharer);
      Row d = Row::template of<T>(words);
      if (p.dfeatures_added.data != nullptr) {
        const Row added = Row::template load<T>(row(p.dfeatures_added), sharer);
        Row::each([&](int i, int j) { d.x[i][j] += added.x[i][j]; });
      }
      if (p.angles.data != nullptr) turn_back(p.angles.row(token), sharer, d);
      if (p.vectors != nullptr) {
        const std::int64_t at = std::int64_t{item} * p.blocks.slots() + slot;
        const float weight = p.weights != nullptr ? ptx::ld_global_nc_f32(p.weights + at) : 1;
        Row::each([&](int i, int j) { d.x[i][j] += weight * y.x[i][j]; });
      }
      const Row x = Row::template of<T>(inputs);
      Row::each([&](int i, int j) { d.x[i][j] *= derivative(p.map, x.x[i][j]); });
      d.template store<T>(row(p.dx), sharer);
    });
  }

 private:
  using Row = SplitRow<D>;

  /// Rotates features back by a token's angles.
  static MHLA_DEVICE void turn_back(const float* angles, std::uint32_t sharer, Row& d) {
    const Row turns = Row::load_floats(angles, sharer);
    MHLA_CUDA_UNROLL
    for (int i = 0; i < Row::kPieces; ++i) {
      MHLA_CUDA_UNROLL
      for (int j = 0; j < 8; j += 2) {
        const float x = d.x[i][j], y = d.x[i][j + 1];
        const float cos = turns.x[i][j], sin = turns.x[i][j + 1];
        d.x[i][j] = x * cos + y * sin;
        d.x[i][j + 1] = y * cos - x * sin;
      }
    }
  }
};

}  // namespace mhla::cuda

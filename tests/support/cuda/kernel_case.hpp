#pragma once

/// \file
/// Test cases of kernels.

#include <cstdint>
#include <string>

#include "mhla/cuda/kernel/parameters.cuh"
#include "mhla/cuda/tile/feature_map.cuh"
#include "mhla/cuda/tile/token_blocks.cuh"
#include "support/cuda/problem.hpp"

namespace cuda_test {

/// Consecutive tokens in blocks of `length`.
inline mhla::cuda::TokenBlocks sequence(int tokens, int length) {
  return {1, 1, tokens, 1, 1, length};
}

struct Case {
  mhla::cuda::TokenBlocks blocks;
  mhla::cuda::TokenBlocks key_blocks = blocks;  ///< if the kernel supports other blocks of keys
  mhla::cuda::FeatureMap query_map = mhla::cuda::FeatureMap::relu();
  mhla::cuda::FeatureMap key_map = mhla::cuda::FeatureMap::relu();
  mhla::cuda::Denominator denominator = mhla::cuda::Denominator::kKeySum;
  bool normed = false, gated = false;  ///< of outputs, by OutputNorms
  int batch = 1, heads = 1;
  int layout = 0;           ///< of the first tensor, by Layout::any; others differ
  int multiprocessors = 2;  ///< of the device, for kernels that use it
  std::uint64_t seed = 1;   ///< of the data and of the schedule

  int pairs() const { return batch * heads; }
  /// Number of blocks of all pairs.
  std::int64_t items() const { return std::int64_t{pairs()} * blocks.blocks(); }
  /// Index of (pair, block).
  std::int64_t item(int b, int h, std::int32_t block) const {
    return std::int64_t{b * heads + h} * blocks.blocks() + block;
  }
  mhla::cuda::Normalization normalization() const { return {denominator, 0.75f, 2.0f}; }

  /// A tensor of queries or outputs, and one of keys or values. `turn` selects the layout, counted
  /// from the case's.
  template <class T>
  Tensor<T> queries(int width, int turn = 0) const {
    return tensor<T>(blocks.tokens(), width, turn);
  }
  template <class T>
  Tensor<T> keys(int width, int turn = 0) const {
    return tensor<T>(key_blocks.tokens(), width, turn);
  }

 private:
  template <class T>
  Tensor<T> tensor(int tokens, int width, int turn) const {
    return {batch, tokens, heads, width, Layout::any((layout + turn) % 3, tokens, heads, width)};
  }
};

inline std::string text(const mhla::cuda::TokenBlocks& blocks) {
  const auto product = [](int frames, int rows, int columns) {
    return std::to_string(frames) + "x" + std::to_string(rows) + "x" + std::to_string(columns);
  };
  return product(blocks.frames(), blocks.rows(), blocks.columns()) + " tokens in " +
         product(blocks.block_frames(), blocks.block_rows(), blocks.block_columns());
}

inline std::string text(const Case& c) {
  return text(c.blocks) + " and keys of " + text(c.key_blocks) + ", [" + std::to_string(c.batch) +
         ", " + std::to_string(c.heads) + "], layout " + std::to_string(c.layout) + ", seed " +
         std::to_string(c.seed);
}

}  // namespace cuda_test

#pragma once

/// \file
/// Parameters that kernels of whole gradients share: quadratic_gradient_sm80.cuh,
/// fused_gradient_sm80.cuh and block_gradient_sm80.cuh.

#include <cstdint>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/kernel/parameters.cuh"
#include "mhla/cuda/tile/tokens.cuh"

namespace mhla::cuda {

struct GradientParameters {
  ConstTokenTensor q;     ///< [B, Nq, H, D]
  ConstTokenTensor k;     ///< [B, Nk, H, D]
  ConstTokenTensor v;     ///< [B, Nk, H, D]
  ConstTokenTensor dout;  ///< [B, Nq, H, D]
  TokenTensor dq;         ///< [B, Nq, H, D], or null
  TokenTensor dk;         ///< [B, Nk, H, D], or null
  TokenTensor dv;         ///< [B, Nk, H, D], or null
  std::int32_t heads;
  std::int32_t pairs;
  std::int32_t multiprocessors;  ///< multiprocessors of the device
  FeatureMap query_map;
  FeatureMap key_map;
  Normalization normalization;
  MixingArray mixing;
  float* parts;  ///< [matrices, parts per matrix, Mq, Mk], or null
  /// Number of matrices: 1, heads or pairs. If there are several, thread blocks have one pair each.
  std::int32_t matrices = 1;

  /// Number of thread blocks, each of which writes a part of a matrix's gradient.
  static constexpr std::int32_t parts_of(std::int32_t pairs, std::int32_t multiprocessors) {
    return pairs < multiprocessors ? pairs : multiprocessors;
  }
};

}  // namespace mhla::cuda

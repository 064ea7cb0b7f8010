#pragma once

/// \file
/// Tangents of features, token by token:
///
///     phi'(x_t) x'_t     [D], rounded to T
///
/// Device memory: x and x' once, tangents once.

#include <cstdint>
#include <type_traits>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/kernel/parameters.cuh"
#include "mhla/cuda/kernel/token_pieces.cuh"
#include "mhla/cuda/ptx/global.cuh"
#include "mhla/cuda/tile/pieces.cuh"

namespace mhla::cuda {

struct FeatureTangentParameters {
  ConstTokenTensor x;        ///< [B, N, H, D]
  ConstTokenTensor tangent;  ///< x' [B, N, H, D]
  TokenTensor features;      ///< tangents of features [B, N, H, D]
  std::int32_t tokens;
  std::int32_t heads;
  FeatureMap map;
};

template <class T, int D>
struct FeatureTangentsSm80 : TokenPieces<FeatureTangentParameters, D> {
  static constexpr Arch kArchitecture = Arch::kSm80;

  MHLA_DEVICE void operator()(const FeatureTangentParameters& p) const {
    const BatchHead pair = this->pair(p);
    this->each(p, [&](std::int32_t token, std::uint32_t piece) {
      const auto place = [&](const auto& of) {
        return of.head(pair) + token * of.token_stride + kPieceBytes<T> * piece;
      };
      float x[8], tangents[8];
      Eight<T>::load(place(p.x)).to_floats(x);
      Eight<T>::load(place(p.tangent)).to_floats(tangents);
      MHLA_CUDA_UNROLL
      for (int i = 0; i < 8; ++i) tangents[i] *= derivative(p.map, x[i]);
      if constexpr (std::is_same_v<T, float>) {
        store_floats(tangents, place(p.features));
      } else {
        ptx::st_global_v4(place(p.features), rounded<T>(tangents));
      }
    });
  }
};

}  // namespace mhla::cuda

#pragma once

/// \file
/// Features of tokens as a tensor: phi(x_t), rounded to T. If there are angles, it rotates
/// (tile/rotary.cuh) and is rounded once more. Tokens that do not take part get rows of zeros.
/// Floats have no angles.
///
/// Device memory: x once, features once.

#include <cstdint>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/kernel/parameters.cuh"
#include "mhla/cuda/kernel/token_pieces.cuh"
#include "mhla/cuda/ptx/global.cuh"
#include "mhla/cuda/tile/pieces.cuh"
#include "mhla/cuda/tile/rotary.cuh"
#include "mhla/cuda/tile/selection.cuh"

namespace mhla::cuda {

template <class Map>
struct FeatureParameters {
  ConstTokenTensor x;    ///< [B, N, H, D], or [1, ., H, D] of packed sequences
  TokenTensor features;  ///< [B, N, H, D]
  std::int32_t tokens;
  std::int32_t heads;
  Map map;
  RotaryAngles angles{};  ///< null: features do not rotate
  Selection selection{};
};

/// \tparam Map  FeatureMap or an ElementwiseMap
template <class T, int D, class Map = FeatureMap>
struct FeaturesSm80 : TokenPieces<FeatureParameters<Map>, D> {
  static constexpr Arch kArchitecture = Arch::kSm80;

  MHLA_DEVICE void operator()(const FeatureParameters<Map>& p) const {
    const BatchHead pair = this->pair(p);
    unsigned char* const to = p.features.head(pair);
    this->each(p, [&](std::int32_t token, std::uint32_t piece) {
      const SelectedRow at = p.selection.row(pair.batch, token);
      const bool has = p.selection.has(at);
      if constexpr (std::is_same_v<T, float>) {
        Eight<T> x{};
        if (has) {
          x = Eight<T>::load(at.of(p.x, pair.head) + 32 * piece);
          x.apply_map(p.map);
        }
        unsigned char* const features = to + token * p.features.token_stride + 32 * piece;
        ptx::st_global_v4(features, x.words[0]);
        ptx::st_global_v4(features + 16, x.words[1]);
      } else {
        ptx::Words4 words{};
        if (has) {
          words = ptx::ld_global_nc_v4(at.of(p.x, pair.head) + 16 * piece);
          apply<T>(p.map, words.x);
        }
        if (p.angles.data != nullptr) {
          PieceAngles::load(p.angles.row(token) + 8 * piece).template rotate<T>(words);
        }
        ptx::st_global_v4(to + token * p.features.token_stride + 16 * piece, words);
      }
    });
  }
};

}  // namespace mhla::cuda

#pragma once

/// \file
/// Rows of the tokens that take part, from a tensor of a form to a tensor of the caller:
///
///     y_t = x_t, or phi'(z_t) x_t     [D], rounded to T; 0 for masked tokens
///
/// x and y may be one tensor; without z only rows of masked tokens are then written. Device memory:
/// x and z once, y once.

#include <cstdint>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/kernel/parameters.cuh"
#include "mhla/cuda/kernel/token_pieces.cuh"
#include "mhla/cuda/ptx/global.cuh"
#include "mhla/cuda/tile/pieces.cuh"
#include "mhla/cuda/tile/selection.cuh"

namespace mhla::cuda {

template <class Map>
struct SelectedRowParameters {
  ConstTokenTensor x;  ///< [B, N, H, D]
  TokenTensor y;       ///< [B, N, H, D], or [1, ., H, D] of packed sequences
  ConstTokenTensor z;  ///< like y, or null
  std::int32_t tokens;
  std::int32_t heads;
  Map map;  ///< of z
  Selection selection;

  /// Returns true if the rows of tokens that take part stay as they are.
  MHLA_DEVICE bool in_place() const { return x.data == y.data && z.data == nullptr; }
};

/// \tparam Map  FeatureMap or a DifferentiableElementwiseMap
template <class T, int D, class Map = FeatureMap>
struct SelectedRowsSm80 : TokenPieces<SelectedRowParameters<Map>, D> {
  static constexpr Arch kArchitecture = Arch::kSm80;

  MHLA_DEVICE void operator()(const SelectedRowParameters<Map>& p) const {
    const BatchHead pair = this->pair(p);
    this->each(p, [&](std::int32_t token, std::uint32_t piece) {
      const SelectedRow at = p.selection.row(pair.batch, token);
      if (at.row < 0) return;
      const bool has = p.selection.has(at);
      if (has && p.in_place()) return;
      if constexpr (std::is_same_v<T, float>) {
        write_floats(p, pair, at, has ? token : -1, piece);
      } else {
        ptx::Words4 words{};
        if (has) {
          words = ptx::ld_global_v4(p.x.head(pair) + token * p.x.token_stride + 16 * piece);
          if (p.z.data != nullptr) {
            words = times_derivative(
                words, ptx::ld_global_nc_v4(at.of(p.z, pair.head) + 16 * piece), p.map);
          }
        }
        ptx::st_global_v4(at.of(p.y, pair.head) + 16 * piece, words);
      }
    });
  }

 private:
  /// Writes eight floats of a token, or zeros if that is -1.
  static MHLA_DEVICE void write_floats(const SelectedRowParameters<Map>& p, BatchHead pair,
                                       SelectedRow at, std::int32_t token, std::uint32_t piece) {
    float x[8] = {};
    if (token >= 0) {
      const unsigned char* const from = p.x.head(pair) + token * p.x.token_stride + 32 * piece;
      Eight<float>{{ptx::ld_global_v4(from), ptx::ld_global_v4(from + 16)}}.to_floats(x);
      if (p.z.data != nullptr) {
        float z[8];
        Eight<float>::load(at.of(p.z, pair.head) + 32 * piece).to_floats(z);
        MHLA_CUDA_UNROLL
        for (int i = 0; i < 8; ++i) x[i] *= derivative(p.map, z[i]);
      }
    }
    store_floats(x, at.of(p.y, pair.head) + 32 * piece);
  }
  static MHLA_DEVICE ptx::Words4 times_derivative(ptx::Words4 x, ptx::Words4 z, const Map& map) {
    MHLA_CUDA_UNROLL
    for (int i = 0; i < 4; ++i) {
      x.x[i] = ptx::pack<T>(ptx::low<T>(x.x[i]) * derivative(map, ptx::low<T>(z.x[i])),
                            ptx::high<T>(x.x[i]) * derivative(map, ptx::high<T>(z.x[i])));
    }
    return x;
  }
};

}  // namespace mhla::cuda

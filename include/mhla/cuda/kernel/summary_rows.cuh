#pragma once

/// \file
/// 16 rows of S_b and z_b by one warp with mma.sync, for kernels of sm_90a. Boxes of keys and
/// values are in a ring: each panel of the keys in a slot, followed by those of the values.

#include <cstdint>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/ptx/convert.cuh"
#include "mhla/cuda/ptx/shared.cuh"
#include "mhla/cuda/ptx/words.cuh"
#include "mhla/cuda/tile/feature_map.cuh"
#include "mhla/cuda/tile/product.cuh"
#include "mhla/cuda/tile/ring.cuh"
#include "mhla/cuda/tile/tokens.cuh"
#include "mhla/cuda/tile/width.cuh"

namespace mhla::cuda {

/// Returns a B operand of 8 equal columns: 1 for those of rows row.. row + 15 that have a token, 0
/// for others. `whole` says that all slots of the box have a token.
template <class T>
MHLA_DEVICE ptx::Words2 column_of_tokens(const BoxTokens& tokens, bool whole, std::int32_t row,
                                         std::uint32_t lane) {
  if (whole && row + 16 <= tokens.count) return {{ptx::pack<T>(1, 1), ptx::pack<T>(1, 1)}};
  const auto one = [&](std::int32_t slot) { return tokens(slot) >= 0 ? 1.0f : 0.0f; };
  const std::int32_t slot = row + static_cast<std::int32_t>(lane % 4 * 2);
  return {{ptx::pack<T>(one(slot), one(slot + 1)), ptx::pack<T>(one(slot + 8), one(slot + 9))}};
}

template <class T, int D, int E>
struct SummaryRows {
  using Keys = RingBox<D>;
  using Values = RingBox<E>;

  float s[1][E / 8][4];
  float z[1][4];  ///< in every column

  /// Adds a box that begins in slot `at` to rows 16 tile.. of S. `tokens` are the tokens of the
  /// box. Rows after it, up to a multiple of 16, are zero.
  MHLA_DEVICE void add_box(const Ring& ring, RingCursor at, std::uint32_t tile,
                           const BoxTokens& tokens, const FeatureMap& map, std::uint32_t lane) {
    constexpr std::uint32_t kPanelTiles = Keys::Panel::kColumns / 16;
    const std::uint32_t panel = Keys::kPanels == 1 ? 0 : tile / kPanelTiles;
    const std::uint32_t piece = 2 * (tile - panel * kPanelTiles);
    typename Keys::Panel keys{ring.slot(at.after(panel, ring.count))};
    Values values(ring, at.after(Keys::kPanels, ring.count), 0);
    const bool whole = tokens(tokens.count - 1) >= 0;
    map.with_formula([&](auto phi) {
      MHLA_CUDA_LOOP
      for (std::int32_t row = 0; row < tokens.count; row += 16) {
        const ptx::Words2 filled = column_of_tokens<T>(tokens, whole, row, lane);
        multiply_key_values<T>(s, z, keys, values, filled, 0, piece, 0, phi, lane);
        keys.begin += 16 * Keys::kRowBytes;
        MHLA_CUDA_UNROLL
        for (std::uint32_t& rows : values.panels) rows += 16 * Values::kRowBytes;
      }
    });
  }

  /// Stores the sums. S, times `scale` and rounded, becomes rows 16 tile.. of a region
  /// (tile/layout.cuh). z becomes those of the D floats at shared address `key_sum`.
  template <class Region>
  MHLA_DEVICE void store(Region region, std::uint32_t key_sum, std::uint32_t tile, float scale,
                         std::uint32_t lane) const {
    const std::uint32_t row = 16 * tile + lane / 4, column = lane % 4 * 4;  // in bytes
    const bool second = Width<D>::kWholeTiles || row + 8 < D;
    MHLA_CUDA_UNROLL
    for (int j = 0; j < E / 8; ++j) {
      const float(&c)[4] = s[0][j];
      ptx::st_shared(region.piece(row, j) + column, ptx::pack<T>(c[0] * scale, c[1] * scale));
      if (!second) continue;
      ptx::st_shared(region.piece(row + 8, j) + column, ptx::pack<T>(c[2] * scale, c[3] * scale));
    }
    if (lane % 4 == 0) {
      ptx::st_shared_f32(key_sum + row * 4, z[0][0]);
      if (second) ptx::st_shared_f32(key_sum + (row + 8) * 4, z[0][2]);
    }
  }
};

}  // namespace mhla::cuda

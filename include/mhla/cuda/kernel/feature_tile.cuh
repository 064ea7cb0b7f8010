#pragma once

/// \file
/// phi of 64 tokens in shared memory, in place, after a tensor copy and before wgmma. Panels of 64
/// features are contiguous. Each of kThreads threads has the same number of pieces of 16 bytes.
/// Features may rotate (tile/rotary.cuh).

#include <cstdint>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/ptx/barrier.cuh"
#include "mhla/cuda/ptx/shared.cuh"
#include "mhla/cuda/ptx/tensor_copy.cuh"
#include "mhla/cuda/tile/feature_map.cuh"
#include "mhla/cuda/tile/fragment.cuh"
#include "mhla/cuda/tile/rotary.cuh"

namespace mhla::cuda {

template <class T, int D, std::uint32_t kThreads>
struct FeatureTile {
  static constexpr std::uint32_t kPanelBytes = 64 * 128;
  static constexpr std::uint32_t kPanelPieces = kPanelBytes / 16;
  static constexpr std::uint32_t kPiecesPerThread =
      kPanelPieces / kThreads * (D / 64);  ///< pieces per thread

  std::uint32_t begin;  ///< shared address
  std::int32_t rows;    ///< rows of the tile with tokens
  std::uint32_t thread;

  /// Angles of the thread's pieces.
  struct Angles {
    PieceAngles x[kPiecesPerThread];

    /// Loads the angles of tokens(row).
    template <class Tokens>
    MHLA_DEVICE void load(const RotaryAngles& angles, const Tokens& tokens, std::uint32_t thread) {
      MHLA_CUDA_UNROLL
      for (std::uint32_t n = 0; n < kPiecesPerThread; ++n) {
        const TileCoord at = coord(n, thread);
        const float* const row = angles.row(tokens(static_cast<std::int32_t>(at.row)));
        x[n] = PieceAngles::load(row + 8 * at.piece);
      }
    }
  };

  /// Applies phi in place, and zeroes the rows after the last token, in kBehind columns after the
  /// features too. Ends with barrier 1.
  template <int kBehind>
  MHLA_DEVICE void map(const FeatureMap& phi) const {
    map<kBehind>(phi, [](ptx::Words4&, std::uint32_t) {});
  }
  /// Applies phi in place, rotates the features, and zeroes as above.
  template <int kBehind>
  MHLA_DEVICE void map(const FeatureMap& phi, const Angles& angles) const {
    map<kBehind>(
        phi, [&](ptx::Words4& words, std::uint32_t n) { angles.x[n].template rotate<T>(words); });
  }

 private:
  /// Coordinates of the n-th piece. It alternates between panels. In a panel its piece is the same
  /// in every row, since the order of pieces depends on row % 8.
  static MHLA_DEVICE TileCoord coord(std::uint32_t n, std::uint32_t thread) {
    static_assert(kThreads % 64 == 0);
    return {(n / (D / 64) * kThreads + thread) / 8, n % (D / 64) * 8 + (thread ^ thread / 8) % 8};
  }

  template <int kBehind, class Turn>
  MHLA_DEVICE void map(const FeatureMap& map, const Turn& turn) const {
    const std::uint32_t filled = static_cast<std::uint32_t>(rows) * 8;
    // Index in its panel of the thread's n-th piece. All pieces are loaded before the first is
    // mapped.
    const auto panel_piece = [&](std::uint32_t n) { return n / (D / 64) * kThreads + thread; };
    const auto at = [&](std::uint32_t n) {
      return begin + n % (D / 64) * kPanelBytes + 16 * panel_piece(n);
    };
    ptx::Words4 w[kPiecesPerThread] = {};
    MHLA_CUDA_UNROLL
    for (std::uint32_t n = 0; n < kPiecesPerThread; ++n) {
      if (panel_piece(n) < filled) w[n] = ptx::ld_shared_v4(at(n));
    }
    map.with_formula([&](auto phi) {
      MHLA_CUDA_UNROLL
      for (ptx::Words4& words : w) apply<T>(phi, words.x);
    });
    MHLA_CUDA_UNROLL
    for (std::uint32_t n = 0; n < kPiecesPerThread; ++n) turn(w[n], n);
    MHLA_CUDA_UNROLL
    for (std::uint32_t n = 0; n < kPiecesPerThread; ++n) {
      if (panel_piece(n) < filled) ptx::st_shared_v4(at(n), w[n]);
    }
    MHLA_CUDA_LOOP
    for (std::uint32_t i = filled + thread; i < kPanelPieces; i += kThreads) {
      MHLA_CUDA_UNROLL
      for (int panel = 0; panel < (D + kBehind) / 64; ++panel) {
        ptx::st_shared_v4(begin + panel * kPanelBytes + 16 * i, {});
      }
    }
    ptx::fence_proxy_async();
    ptx::bar_sync(1, kThreads);
  }
};

}  // namespace mhla::cuda

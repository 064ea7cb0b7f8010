#pragma once

/// \file
/// Rows of tokens in registers, eight threads per row: thread p has the pieces p, p + 8, p + 16,
/// ... of eight numbers. All threads of a warp work together, on four rows.

#include <cstdint>
#include <type_traits>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/ptx/barrier.cuh"
#include "mhla/cuda/ptx/convert.cuh"
#include "mhla/cuda/ptx/global.cuh"
#include "mhla/cuda/ptx/shared.cuh"
#include "mhla/cuda/ptx/words.cuh"
#include "mhla/cuda/tile/feature_map.cuh"
#include "mhla/cuda/tile/pieces.cuh"

namespace mhla::cuda {

/// Part of a row of kWidth numbers that one thread holds.
template <int kWidth>
struct SplitRow {
  static constexpr int kSharers = 8;
  static constexpr int kPieces = (kWidth / 8 + kSharers - 1) / kSharers;  // pieces per thread

  float x[kPieces][8];

  /// Calls act(i, piece) for the thread's pieces: its i-th one is `piece` of the row.
  template <class Act>
  static MHLA_DEVICE void each_piece(std::uint32_t sharer, const Act& act) {
    MHLA_CUDA_UNROLL
    for (std::uint32_t i = 0; i < kPieces; ++i) {
      if (const std::uint32_t piece = kSharers * i + sharer; piece < kWidth / 8) act(i, piece);
    }
  }

  /// The thread's part as 16-bit numbers. Load several rows before converting any.
  struct Words {
    ptx::Words4 pieces[kPieces];

    /// Loads a row that the grid does not write. A null row gives zeros.
    static MHLA_DEVICE Words load(const unsigned char* row, std::uint32_t sharer) {
      Words words{};
      if (row == nullptr) return words;
      each_piece(sharer, [&](std::uint32_t i, std::uint32_t piece) {
        words.pieces[i] = ptx::ld_global_nc_v4(row + 16 * piece);
      });
      return words;
    }
    /// Loads a row of a tile in shared memory.
    template <class Tile>
    static MHLA_DEVICE Words load(Tile tile, std::uint32_t row, std::uint32_t sharer) {
      Words words{};
      each_piece(sharer, [&](std::uint32_t i, std::uint32_t piece) {
        words.pieces[i] = ptx::ld_shared_v4(tile.piece(row, piece));
      });
      return words;
    }
  };

  /// Numbers of T that a thread holds from their load to their use as floats.
  template <class T>
  using Loaded = std::conditional_t<std::is_same_v<T, float>, SplitRow, Words>;
  template <class T>
  static MHLA_DEVICE Loaded<T> hold(const unsigned char* row, std::uint32_t sharer) {
    if constexpr (std::is_same_v<T, float>) {
      if (row == nullptr) return SplitRow{};
      return load_floats(static_cast<const float*>(static_cast<const void*>(row)), sharer);
    } else {
      return Words::load(row, sharer);
    }
  }

  /// Applies phi. Numbers after the row's end of a SplitRow stay 0.
  template <class T>
  static MHLA_DEVICE void apply_to(const FeatureMap& map, Loaded<T>& loaded, std::uint32_t sharer) {
    if constexpr (std::is_same_v<T, float>) {
      each_piece(sharer, [&](std::uint32_t i, std::uint32_t) {
        map.with_float_formula([&](auto phi) {
          MHLA_CUDA_UNROLL
          for (float& x : loaded.x[i]) x = phi(x);
        });
      });
    } else {
      MHLA_CUDA_UNROLL
      for (ptx::Words4& piece : loaded.pieces) apply<T>(map, piece.x);
    }
  }

  template <class T>
  static MHLA_DEVICE SplitRow of(const SplitRow& loaded) {
    return loaded;
  }
  template <class T>
  static MHLA_DEVICE SplitRow of(const Words& words) {
    SplitRow split;
    MHLA_CUDA_UNROLL
    for (int i = 0; i < kPieces; ++i) {
      MHLA_CUDA_UNROLL
      for (int j = 0; j < 4; ++j) {
        split.x[i][2 * j] = ptx::low<T>(words.pieces[i].x[j]);
        split.x[i][2 * j + 1] = ptx::high<T>(words.pieces[i].x[j]);
      }
    }
    return split;
  }
  template <class T>
  static MHLA_DEVICE SplitRow load(const unsigned char* row, std::uint32_t sharer) {
    return of<T>(hold<T>(row, sharer));
  }

  /// Loads floats that the grid does not write.
  static MHLA_DEVICE SplitRow load_floats(const float* row, std::uint32_t sharer) {
    SplitRow split{};
    each_piece(sharer, [&](std::uint32_t i, std::uint32_t piece) {
      MHLA_CUDA_UNROLL
      for (std::uint32_t j = 0; j < 8; j += 2) {
        const ptx::Words2 two = ptx::ld_global_nc_v2(row + 8 * piece + j);
        split.x[i][j] = as_float(two.x[0]);
        split.x[i][j + 1] = as_float(two.x[1]);
      }
    });
    return split;
  }

  /// Rounds to T and writes to a row, unless that is null.
  template <class T>
  MHLA_DEVICE void store(unsigned char* row, std::uint32_t sharer) const {
    if (row == nullptr) return;
    each_piece(sharer, [&](std::uint32_t i, std::uint32_t piece) {
      if constexpr (std::is_same_v<T, float>) {
        store_floats(x[i], row + 32 * piece);
      } else {
        ptx::st_global_v4(row + 16 * piece, rounded<T>(x[i]));
      }
    });
  }

  /// Calls act(i, j) for all of the thread's numbers x[i][j]. Numbers after the row's end are 0.
  template <class Act>
  static MHLA_DEVICE void each(const Act& act) {
    MHLA_CUDA_UNROLL
    for (int i = 0; i < kPieces; ++i) {
      MHLA_CUDA_UNROLL
      for (int j = 0; j < 8; ++j) act(i, j);
    }
  }
};

/// Returns the sum over the threads of a row to each of them.
MHLA_DEVICE float over_sharers(float x) {
  MHLA_CUDA_UNROLL
  for (std::uint32_t mask = 1; mask < 8; mask *= 2) x += ptx::shfl_bfly(x, mask);
  return x;
}

/// Returns true, in all threads of a row, if a number of the row is not 0.
template <int kWidth>
MHLA_DEVICE bool any_nonzero(const SplitRow<kWidth>& x) {
  float count = 0;
  SplitRow<kWidth>::each([&](int i, int j) { count += x.x[i][j] != 0 ? 1.0f : 0.0f; });
  return over_sharers(count) != 0;
}

/// Returns the product x . y of two rows, in all threads of the row.
template <int kWidth>
MHLA_DEVICE float dot(const SplitRow<kWidth>& x, const SplitRow<kWidth>& y) {
  float sum = 0;
  SplitRow<kWidth>::each([&](int i, int j) { sum += x.x[i][j] * y.x[i][j]; });
  return over_sharers(sum);
}

/// Returns the product x . z with floats in shared memory, in all threads of the row.
template <int kWidth>
MHLA_DEVICE float dot_shared(const SplitRow<kWidth>& x, std::uint32_t z, std::uint32_t sharer) {
  float sum = 0;
  SplitRow<kWidth>::each_piece(sharer, [&](std::uint32_t i, std::uint32_t piece) {
    MHLA_CUDA_UNROLL
    for (std::uint32_t j = 0; j < 8; j += 4) {
      const ptx::Words4 four = ptx::ld_shared_v4(z + 4 * (8 * piece + j));
      MHLA_CUDA_UNROLL
      for (std::uint32_t n = 0; n < 4; ++n) sum += x.x[i][j + n] * as_float(four.x[n]);
    }
  });
  return over_sharers(sum);
}

}  // namespace mhla::cuda

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

  /// Returns true if the thread's i-th piece is part of the row.
  static MHLA_DEVICE bool has(std::uint32_t i, std::uint32_t sharer) {
    return kSharers * i + sharer < kWidth / 8;
  }

  /// The thread's part as 16-bit numbers. Load several rows before converting any.
  struct Words {
    ptx::Words4 pieces[kPieces];

    /// Loads a row that the grid does not write. A null row gives zeros.
    static MHLA_DEVICE Words load(const unsigned char* row, std::uint32_t sharer) {
      Words words{};
      if (row == nullptr) return words;
      MHLA_CUDA_UNROLL
      for (std::uint32_t i = 0; i < kPieces; ++i) {
        if (has(i, sharer))
          words.pieces[i] = ptx::ld_global_nc_v4(row + 16 * (kSharers * i + sharer));
      }
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
    MHLA_CUDA_UNROLL
    for (int i = 0; i < kPieces; ++i) {
      if constexpr (std::is_same_v<T, float>) {
        if (!has(static_cast<std::uint32_t>(i), sharer)) continue;
        map.with_float_formula([&](auto phi) {
          MHLA_CUDA_UNROLL
          for (float& x : loaded.x[i]) x = phi(x);
        });
      } else {
        apply<T>(map, loaded.pieces[i].x);
      }
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
    MHLA_CUDA_UNROLL
    for (std::uint32_t i = 0; i < kPieces; ++i) {
      if (!has(i, sharer)) continue;
      MHLA_CUDA_UNROLL
      for (std::uint32_t j = 0; j < 8; j += 2) {
        const ptx::Words2 two = ptx::ld_global_nc_v2(row + 8 * (kSharers * i + sharer) + j);
        split.x[i][j] = as_float(two.x[0]);
        split.x[i][j + 1] = as_float(two.x[1]);
      }
    }
    return split;
  }

  /// Rounds to T and writes to a row, unless that is null.
  template <class T>
  MHLA_DEVICE void store(unsigned char* row, std::uint32_t sharer) const {
    if (row == nullptr) return;
    MHLA_CUDA_UNROLL
    for (std::uint32_t i = 0; i < kPieces; ++i) {
      if (!has(i, sharer)) continue;
      if constexpr (std::is_same_v<T, float>) {
        store_floats(x[i], row + 32 * (kSharers * i + sharer));
      } else {
        ptx::st_global_v4(row + 16 * (kSharers * i + sharer), rounded<T>(x[i]));
      }
    }
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

}  // namespace mhla::cuda

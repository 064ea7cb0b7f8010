#pragma once

/// \file
/// AMX: products of tiles of bfloat16 numbers with float sums,
///
///     C[r, c] += sum_k A[r, k] B[k, c]     C [16,16] fp32, A [16,32] and B [32,16] bfloat16
///
/// This file has the instructions and an emulation of them. product.hpp builds the product on them.
///
/// A tile of A or B is 16 rows of 16 Bf16x2, 1 KB contiguous. Element p of row r of A, or of column
/// c of B, holds k = p and k = p + 16. A and B may share any order of k, and this order packs rows
/// of fp32 numbers lane by lane. fp32 numbers are split into high + low (bf16_split.hpp). A tile
/// pair is the tile of the high parts, followed by the tile of the low parts. low * low is dropped.
///
/// Rounding of a step (TDPBF16PS, Intel's manual). The first and the second numbers of each Bf16x2
/// are two chains of 16 fused multiply-adds from 0; then C += first + second. Rounding is to
/// nearest even; subnormal operands and results are flushed to 0, whatever the thread's settings.
/// The bits of an element of C depend on its row and column alone, not on zeros that pad the depth.
///
/// Error: with a and b the numbers before they were split, m = 18 + (steps of C), t = 2^-126,
///
///     |C^ - C| <= (gamma_m (1 + 2^-6) + s) sum |a| |b|
///                 + t (2 sum |a| + 2 sum |b| + 4 m depth),   s = 2^-15 (1 + 2^-7)
///
/// s is two splits of 2^-17 each and low * low of 2^-16; it is 2^-17 (1 + 2^-7) if b is a bfloat16
/// number. The last line is flushed subnormals. Infinity times a low part of 0 would be NaN, so
/// stages keep infinities out of this product.
///
/// The system grants tiles to a process. Nothing here may run unless tiles_granted() is true and a
/// TileScope is alive. Without the grant (Linux before 5.16, a sandbox) forms use the vector unit.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>

#include "mhla/core/arch.hpp"
#include "mhla/core/scalar.hpp"
#include "mhla/stage/amx/bf16_split.hpp"

namespace mhla {
inline namespace MHLA_TARGET {
namespace detail {

inline constexpr Index kTileRows = 16;
inline constexpr Index kStepDepth = 2 * kTileColumns;         ///< values of k in a step
inline constexpr Index kProductColumns = 2 * kTileColumns;    ///< columns of a product
inline constexpr Index kTileSize = kTileRows * kTileColumns;  ///< Bf16x2 of a tile
/// Bf16x2 of a tile pair.
inline constexpr Index kTilePairSize = 2 * kTileSize;

// ---- the tiles of a thread, emulated -----------------------------------------------------------

/// The tile registers of a thread.
struct EmulatedTiles {
  bool configured = false;
  Bf16x2 tile[8][kTileRows][kTileColumns];

  static EmulatedTiles& of_thread() {
    static thread_local EmulatedTiles tiles;
    return tiles;
  }
  /// Returns the tiles for an instruction; aborts unless they are configured.
  static EmulatedTiles& in_use() {
    EmulatedTiles& tiles = of_thread();
    if (!tiles.configured) std::abort();
    return tiles;
  }
  /// True if the emulated system refuses the tiles.
  static inline bool refused = false;
};

/// x with subnormal numbers as 0 of the same sign.
inline float flushed(float x) {
  return std::abs(x) < std::numeric_limits<float>::min() ? std::copysign(0.0f, x) : x;
}

/// One step of one element of C: row r of A, column c of B.
inline float emulated_step(const Bf16x2 (&a)[kTileRows][kTileColumns],
                           const Bf16x2 (&b)[kTileRows][kTileColumns], Index r, Index c,
                           float sum) {
  float first = 0, second = 0;
  for (Index p = 0; p < kTileColumns; ++p) {
    const Bf16x2 x = a[r][p], y = b[p][c];
    first =
        flushed(std::fma(flushed(number_of(x & 0xFFFFu)), flushed(number_of(y & 0xFFFFu)), first));
    second = flushed(std::fma(flushed(number_of(x >> 16)), flushed(number_of(y >> 16)), second));
  }
  return flushed(flushed(sum) + flushed(first + second));
}

// ---- the instructions --------------------------------------------------------------------------
// Assembly, since GCC's intrinsics are macros that take only literal tile numbers, and its loads do
// not declare that they read memory.

inline constexpr bool kAmx = kMatrixUnitKind == MatrixUnit::kAmx;

/// True if this process may use the tiles; asks the system once.
inline bool tiles_granted() {
  if constexpr (kAmx) {
    static const bool granted = request_tiles();
    return granted;
  } else {
    return !EmulatedTiles::refused;
  }
}

/// Configures all tiles of this thread as 16 rows of 64 bytes, and releases them at the end. Users'
/// feature maps run outside a scope, since they may use tiles themselves.
class TileScope {
 public:
  TileScope() {
    if constexpr (kAmx) {
      struct {
        std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
        std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
        std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
      } configuration;
      static_assert(sizeof(configuration) == 64);
      asm volatile("ldtilecfg %0" : : "m"(configuration));
    } else {
      EmulatedTiles::of_thread().configured = true;
    }
  }
  TileScope(const TileScope&) = delete;
  TileScope& operator=(const TileScope&) = delete;
  ~TileScope() {
    if constexpr (kAmx) {
      asm volatile("tilerelease" : : : "memory");
    } else {
      EmulatedTiles::of_thread().configured = false;
    }
  }
};

template <int kTile>
MHLA_INLINE inline void zero_tile() {
  if constexpr (kAmx) {
    asm volatile("{tilezero %%tmm%c0|tilezero tmm%c0}" : : "i"(kTile));
  } else {
    std::fill_n(EmulatedTiles::in_use().tile[kTile][0], kTileSize, Bf16x2{0});
  }
}

/// Loads rows of 64 bytes, row_bytes apart: Bf16x2, or fp32 numbers of C.
template <int kTile>
MHLA_INLINE inline void load_tile(const void* rows, Index row_bytes) {
  if constexpr (kAmx) {
    asm volatile("{tileloadd (%0,%1,1), %%tmm%c2|tileloadd tmm%c2, [%0+%1*1]}"
                 :
                 : "r"(rows), "r"(row_bytes), "i"(kTile)
                 : "memory");
  } else {
    for (Index r = 0; r < kTileRows; ++r) {
      std::memcpy(EmulatedTiles::in_use().tile[kTile][r],
                  static_cast<const char*>(rows) + r * row_bytes, sizeof(Bf16x2) * kTileColumns);
    }
  }
}

template <int kTile>
MHLA_INLINE inline void store_tile(void* rows, Index row_bytes) {
  if constexpr (kAmx) {
    asm volatile("{tilestored %%tmm%c2, (%0,%1,1)|tilestored [%0+%1*1], tmm%c2}"
                 :
                 : "r"(rows), "r"(row_bytes), "i"(kTile)
                 : "memory");
  } else {
    for (Index r = 0; r < kTileRows; ++r) {
      std::memcpy(static_cast<char*>(rows) + r * row_bytes, EmulatedTiles::in_use().tile[kTile][r],
                  sizeof(Bf16x2) * kTileColumns);
    }
  }
}

/// Tile C += tile A * tile B.
template <int kC, int kA, int kB>
MHLA_INLINE inline void add_product() {
  if constexpr (kAmx) {
    asm volatile("{tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0|tdpbf16ps tmm%c0, tmm%c1, tmm%c2}"
                 :
                 : "i"(kC), "i"(kA), "i"(kB));
  } else {
    EmulatedTiles& tiles = EmulatedTiles::in_use();
    for (Index r = 0; r < kTileRows; ++r) {
      for (Index c = 0; c < kTileColumns; ++c) {
        Bf16x2& sum = tiles.tile[kC][r][c];
        sum = std::bit_cast<Bf16x2>(
            emulated_step(tiles.tile[kA], tiles.tile[kB], r, c, std::bit_cast<float>(sum)));
      }
    }
  }
}

}  // namespace detail
}  // namespace MHLA_TARGET
}  // namespace mhla

#pragma once

/// \file
/// Factors of products: numbers of tensors in shared memory and in registers.
///
/// A number of 16 bits is a factor as it is. A float is the sum of two factors (tile/outputs.cuh),
/// high + low in bfloat16, within 2^-17 |x|. Three products multiply two floats:
///
///     x y = x_high y_high + x_low y_high + x_high y_low
///
/// The product that is left out, x_low y_low, is at most 2^-16 |x y|. Together the three are within
/// 2^-15 |x y|. Floats below 2^-118 have fewer digits. Floats that round to infinity in bfloat16,
/// from 1.9961 2^127 on, give NaN.

#include <cstdint>
#include <type_traits>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/ptx/barrier.cuh"
#include "mhla/cuda/ptx/convert.cuh"
#include "mhla/cuda/ptx/copy_async.cuh"
#include "mhla/cuda/ptx/global.cuh"
#include "mhla/cuda/ptx/shared.cuh"
#include "mhla/cuda/tile/feature_map.cuh"
#include "mhla/cuda/tile/fragment.cuh"
#include "mhla/cuda/tile/layout.cuh"
#include "mhla/cuda/tile/outputs.cuh"
#include "mhla/cuda/tile/pieces.cuh"
#include "mhla/cuda/tile/product.cuh"
#include "mhla/cuda/tile/rows.cuh"
#include "mhla/cuda/tile/triangular_product.cuh"

namespace mhla::cuda {

/// True if tensors hold floats.
template <class T>
inline constexpr bool kIsFloat = std::is_same_v<T, float>;

/// Type of the factors of numbers of T.
template <class T>
using factor_t = std::conditional_t<kIsFloat<T>, bfloat16, T>;

/// Rows of floats, which copy_rows() writes, or of their parts, which split_copied() writes in
/// their place. Eight floats have a piece of 16 bytes in each part: the first four are in `high`.
template <int kRows_, int kColumns_>
struct PartsTile {
  static constexpr int kRows = kRows_;
  static constexpr int kColumns = kColumns_;
  using Part = SharedTile<kRows, kColumns>;
  static constexpr int kPieces = Part::kPieces;  ///< per row of a part
  static constexpr int kBytes = 2 * Part::kBytes;

  std::uint32_t begin;

  MHLA_HOST_DEVICE constexpr Part high() const { return {begin}; }
  MHLA_HOST_DEVICE constexpr Part low() const { return {begin + Part::kBytes}; }
};

/// Tile for numbers of T.
template <class T, int kRows, int kColumns>
using FactorTile =
    std::conditional_t<kIsFloat<T>, PartsTile<kRows, kColumns>, SharedTile<kRows, kColumns>>;

/// 16 rows of factors in registers.
template <int kColumns>
struct PartsFragment {
  Fragment<kColumns> high;
  Fragment<kColumns> low;
};
template <class T, int kColumns>
using FactorRows = std::conditional_t<kIsFloat<T>, PartsFragment<kColumns>, Fragment<kColumns>>;

// -------------------------------------------------------------------------------------------------
// Copies of rows of floats, by kThreads threads. Threads t and t + 8 have the same eight floats:
// eight threads at a time access different banks, and a warp's copies are contiguous.

/// Calls act(row, piece, half) for the thread's halves of pieces.
template <int kThreads, class Tile, class Act>
MHLA_DEVICE void for_halves(std::uint32_t thread, const Act& act) {
  constexpr int kCount = 2 * Tile::kRows * Tile::kPieces;
  static_assert(kCount % 32 == 0, "all threads of a warp have a half, or none has");
  MHLA_CUDA_UNROLL
  for (std::uint32_t i = 0; i < (kCount + kThreads - 1) / kThreads; ++i) {
    const std::uint32_t index = i * kThreads + thread;
    if (kCount % kThreads != 0 && index >= kCount) break;
    const std::uint32_t place = index / 16 * 8 + index % 8;
    act(place / Tile::kPieces, place % Tile::kPieces, index / 8 % 2);
  }
}

/// Starts copies of rows 0.. of a tile: row r is the row of token tokens(r), zeros if that is -1.
template <int kThreads, int kRows, int kColumns, class Tokens>
MHLA_DEVICE void copy_rows(PartsTile<kRows, kColumns> tile, const unsigned char* head,
                           std::int64_t stride, const Tokens& tokens, std::uint32_t thread) {
  using Tile = PartsTile<kRows, kColumns>;
  for_halves<kThreads, Tile>(thread, [&](auto row, auto piece, auto half) {
    const std::int32_t token = tokens(static_cast<std::int32_t>(row));
    ptx::cp_async_16((half == 0 ? tile.high() : tile.low()).piece(row, piece),
                     head + (token < 0 ? 0 : token * stride) + 32 * piece + 16 * half,
                     token < 0 ? 0 : 16);
  });
}

/// Replaces the floats that copy_rows<kThreads>(tile, ..., thread) copied by the parts of phi(x).
/// All threads of a warp call together, each after its own copies have arrived.
template <int kThreads, int kRows, int kColumns, class Formula>
MHLA_DEVICE void split_mapped(const Formula& phi, PartsTile<kRows, kColumns> tile,
                              std::uint32_t thread) {
  using Tile = PartsTile<kRows, kColumns>;
  for_halves<kThreads, Tile>(thread, [&](auto row, auto piece, auto half) {
    const std::uint32_t at = (half == 0 ? tile.high() : tile.low()).piece(row, piece);
    const ptx::Words4 x = ptx::ld_shared_v4(at);
    const Parts a = parts_of<bfloat16>(phi(as_float(x.x[0])), phi(as_float(x.x[1])));
    const Parts b = parts_of<bfloat16>(phi(as_float(x.x[2])), phi(as_float(x.x[3])));
    const bool high = half == 0;
    const auto exchanged = [](std::uint32_t word) {
      return as_word(ptx::shfl_bfly(as_float(word), 8));
    };
    const std::uint32_t other_a = exchanged(high ? a.low : a.high);
    const std::uint32_t other_b = exchanged(high ? b.low : b.high);
    ptx::st_shared_v4(at, high ? ptx::Words4{{a.high, b.high, other_a, other_b}}
                               : ptx::Words4{{other_a, other_b, a.low, b.low}});
  });
}
template <int kThreads, class Tile>
MHLA_DEVICE void split_copied(const FeatureMap& map, Tile tile, std::uint32_t thread) {
  map.with_float_formula([&](auto phi) { split_mapped<kThreads>(phi, tile, thread); });
}
/// The same without a map.
template <int kThreads, class Tile>
MHLA_DEVICE void split_copied(Tile tile, std::uint32_t thread) {
  split_mapped<kThreads>([](float x) { return x; }, tile, thread);
}

// -------------------------------------------------------------------------------------------------
// Products of floats, as those of factors (tile/product.cuh, tile/triangular_product.cuh).

template <int kRows, int kColumns>
MHLA_DEVICE PartsFragment<kColumns> load_rows(PartsTile<kRows, kColumns> tile, std::uint32_t row,
                                              std::uint32_t lane) {
  return {load_rows(tile.high(), row, lane), load_rows(tile.low(), row, lane)};
}

/// Products of both rows with a vector of floats in shared memory.
template <int kColumns>
MHLA_DEVICE RowPair row_products(const PartsFragment<kColumns>& rows, std::uint32_t vector,
                                 std::uint32_t lane) {
  const RowPair high = row_products<bfloat16>(rows.high, vector, lane);
  const RowPair low = row_products<bfloat16>(rows.low, vector, lane);
  return {high.x + low.x, high.x_8 + low.x_8};
}

/// Adds products with the transpose of rows row.. row + 8 kTiles - 1 of the tile.
template <int kDepth, int kRows, int kTiles>
MHLA_DEVICE void multiply_transposed(float (&sums)[kTiles][4], const PartsFragment<kDepth>& rows,
                                     PartsTile<kRows, kDepth> tile, std::uint32_t row,
                                     std::uint32_t lane) {
  multiply_transposed<bfloat16>(sums, rows.low, tile.high(), row, lane);
  multiply_transposed<bfloat16>(sums, rows.high, tile.low(), row, lane);
  multiply_transposed<bfloat16>(sums, rows.high, tile.high(), row, lane);
}

/// Adds products with rows row.. row + 15 of the tile. With `lower`, factors above the diagonal are
/// 0 and the rows that they multiply may be infinite or NaN.
template <int kRows, int kColumns, int kTiles>
MHLA_DEVICE void multiply_values(float (&sums)[kTiles][4], const PartsFragment<16>& rows,
                                 PartsTile<kRows, kColumns> tile, std::uint32_t row, bool lower,
                                 std::uint32_t lane) {
  const auto add = [&](const Fragment<16>& part, auto values) {
    if (lower) {
      multiply_lower<bfloat16>(sums, part, values, row, lane);
    } else {
      multiply<bfloat16>(sums, part, values, row, 0, lane);
    }
  };
  add(rows.low, tile.high());
  add(rows.high, tile.low());
  add(rows.high, tile.high());
}

/// Splits sums of a product to the parts of the next A operand.
template <int kTiles>
MHLA_DEVICE PartsFragment<8 * kTiles> split(const float (&sums)[kTiles][4]) {
  PartsFragment<8 * kTiles> rows;
  MHLA_CUDA_UNROLL
  for (int j = 0; j < kTiles; ++j) {
    MHLA_CUDA_UNROLL
    for (int i = 0; i < 2; ++i) {
      const Parts parts = parts_of<bfloat16>(sums[j][2 * i], sums[j][2 * i + 1]);
      rows.high.x[2 * j + i] = parts.high;
      rows.low.x[2 * j + i] = parts.low;
    }
  }
  return rows;
}

/// Writes a warp's sums, multiplied by a factor per row, as floats: row r to the row of token
/// tokens(r) from `head` on, unless that is -1. Four threads write 32 adjacent bytes.
template <int kTiles, class Tokens>
MHLA_DEVICE void write_float_sums(const float (&sums)[kTiles][4], RowPair factors,
                                  unsigned char* head, std::int64_t stride, const Tokens& tokens,
                                  std::uint32_t lane) {
  const auto write_row = [&](std::uint32_t row, int first, float factor) {
    const std::int32_t token = tokens(static_cast<std::int32_t>(row));
    if (token < 0) return;
    unsigned char* const to = head + token * stride + lane % 4 * 8;
    MHLA_CUDA_UNROLL
    for (int j = 0; j < kTiles; ++j) {
      ptx::st_global_v2(to + 32 * j,
                        {{as_word(sums[j][first] * factor), as_word(sums[j][first + 1] * factor)}});
    }
  };
  write_row(lane / 4, 0, factors.x);
  write_row(lane / 4 + 8, 2, factors.x_8);
}

}  // namespace mhla::cuda

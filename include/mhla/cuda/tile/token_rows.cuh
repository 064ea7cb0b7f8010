#pragma once

/// \file
/// Rows of tokens between device memory and tiles, by all threads of a block or of a group.

#include <cstdint>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/ptx/barrier.cuh"
#include "mhla/cuda/ptx/convert.cuh"
#include "mhla/cuda/ptx/copy_async.cuh"
#include "mhla/cuda/ptx/global.cuh"
#include "mhla/cuda/ptx/shared.cuh"
#include "mhla/cuda/tile/token_blocks.cuh"

namespace mhla::cuda {

/// Tokens first.. in the order of the sequence; -1 from the last on.
struct ConsecutiveTokens {
  std::int32_t first;
  std::int32_t last;
  MHLA_HOST_DEVICE constexpr std::int32_t operator()(std::int32_t row) const {
    return row < last - first ? first + row : -1;
  }
};

/// Tokens of a block from slot `first` on; -1 for empty slots.
struct BlockTokens {
  const TokenBlocks& blocks;
  BlockOrigin origin;
  std::int32_t first;
  MHLA_HOST_DEVICE constexpr std::int32_t operator()(std::int32_t row) const {
    return blocks.token(origin, first + row);
  }
};

/// Tokens of 16 rows that a warp writes: a thread works out one, and the others ask it. All threads
/// of the warp ask together.
struct WarpTokens {
  std::int32_t own;  // of row lane % 16
  MHLA_DEVICE std::int32_t operator()(std::int32_t row) const {
    return static_cast<std::int32_t>(
        ptx::shuffle(static_cast<std::uint32_t>(own), static_cast<std::uint32_t>(row)));
  }
};

/// Calls act(row, piece, token) for the pieces of a tile that are the thread's.
template <int kThreads, class Tile, class Tokens, class Act>
MHLA_DEVICE void for_pieces(const Tokens& tokens, std::uint32_t thread, const Act& act) {
  constexpr int kCount = Tile::kRows * Tile::kPieces;
  MHLA_CUDA_UNROLL
  for (std::uint32_t i = 0; i < (kCount + kThreads - 1) / kThreads; ++i) {
    const std::uint32_t index = i * kThreads + thread;
    if (kCount % kThreads != 0 && index >= kCount) break;
    const std::uint32_t row = index / Tile::kPieces;
    act(row, index % Tile::kPieces, tokens(static_cast<std::int32_t>(row)));
  }
}

/// Starts the copy of a piece of token's row, zeros where token is -1. `head` is the row of token
/// 0, its rows `stride` bytes apart.
template <class Tile>
MHLA_DEVICE void copy_piece(Tile tile, std::uint32_t row, std::uint32_t piece,
                            const unsigned char* head, std::int64_t stride, std::int32_t token) {
  ptx::copy_16(tile.piece(row, piece), head + (token < 0 ? 0 : token * stride) + piece * 16,
               token < 0 ? 0 : 16);
}

/// Starts copies of rows 0.. of a tile: row r is that of token tokens(r).
template <int kThreads, class Tile, class Tokens>
MHLA_DEVICE void copy_rows(Tile tile, const unsigned char* head, std::int64_t stride,
                           const Tokens& tokens, std::uint32_t thread) {
  for_pieces<kThreads, Tile>(tokens, thread, [&](auto row, auto piece, auto token) {
    copy_piece(tile, row, piece, head, stride, token);
  });
}

/// Writes the rows of a tile to tokens, but those where tokens(r) is -1.
template <int kThreads, class Tile, class Tokens>
MHLA_DEVICE void write_rows(Tile tile, unsigned char* head, std::int64_t stride,
                            const Tokens& tokens, std::uint32_t thread) {
  for_pieces<kThreads, Tile>(tokens, thread, [&](auto row, auto piece, auto token) {
    if (token >= 0) {
      ptx::store_global_4(head + token * stride + piece * 16,
                          ptx::load_shared_4(tile.piece(row, piece)));
    }
  });
}

/// Stores sums of a product (product.cuh), times a factor for each of a thread's two rows and
/// rounded, as rows row.. row + 15 and columns 8 piece.. of a tile.
template <class T, class Tile, int kTiles>
MHLA_DEVICE void store_sums(const float (&sums)[kTiles][4], float factor, float factor_8, Tile tile,
                            std::uint32_t row, std::uint32_t piece, std::uint32_t lane) {
  MHLA_CUDA_UNROLL
  for (std::uint32_t j = 0; j < kTiles; ++j) {
    const std::uint32_t column = lane % 4 * 4;  // in bytes
    ptx::store_shared(tile.piece(row + lane / 4, piece + j) + column,
                      ptx::pack<T>(sums[j][0] * factor, sums[j][1] * factor));
    ptx::store_shared(tile.piece(row + lane / 4 + 8, piece + j) + column,
                      ptx::pack<T>(sums[j][2] * factor_8, sums[j][3] * factor_8));
  }
}

}  // namespace mhla::cuda

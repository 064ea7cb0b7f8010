#pragma once

/// \file
/// Rows of tokens between device memory and tiles, by all threads of a block or of a group.

#include <cstdint>

#include "mhla/cuda/arch.cuh"
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

/// Starts copies of rows 0.. of a tile: row r is that of token tokens(r), zeros where that is -1.
/// `head` is the row of token 0, its rows of kColumns numbers `stride` bytes apart.
template <int kThreads, class Tile, class Tokens>
MHLA_DEVICE void copy_rows(Tile tile, const unsigned char* head, std::int64_t stride,
                           const Tokens& tokens, std::uint32_t thread) {
  constexpr int kCopies = Tile::kRows * Tile::kPieces;
  MHLA_CUDA_UNROLL
  for (std::uint32_t i = 0; i < (kCopies + kThreads - 1) / kThreads; ++i) {
    const std::uint32_t index = i * kThreads + thread;
    const std::uint32_t row = index / Tile::kPieces;
    const std::uint32_t piece = index % Tile::kPieces;
    if (kCopies % kThreads != 0 && index >= kCopies) break;
    const std::int32_t token = tokens(static_cast<std::int32_t>(row));
    const unsigned char* const from = head + (token < 0 ? 0 : token * stride) + piece * 16;
    ptx::copy_16(tile.piece(row, piece), from, token < 0 ? 0 : 16);
  }
}

/// Writes the rows of a tile to tokens, but those where tokens(r) is -1.
template <int kThreads, class Tile, class Tokens>
MHLA_DEVICE void write_rows(Tile tile, unsigned char* head, std::int64_t stride,
                            const Tokens& tokens, std::uint32_t thread) {
  constexpr int kCopies = Tile::kRows * Tile::kPieces;
  MHLA_CUDA_UNROLL
  for (std::uint32_t i = 0; i < (kCopies + kThreads - 1) / kThreads; ++i) {
    const std::uint32_t index = i * kThreads + thread;
    const std::uint32_t row = index / Tile::kPieces;
    const std::uint32_t piece = index % Tile::kPieces;
    if (kCopies % kThreads != 0 && index >= kCopies) break;
    const std::int32_t token = tokens(static_cast<std::int32_t>(row));
    if (token >= 0) {
      ptx::store_global_4(head + token * stride + piece * 16,
                          ptx::load_shared_4(tile.piece(row, piece)));
    }
  }
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

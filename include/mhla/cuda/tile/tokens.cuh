#pragma once

/// \file
/// Rows of tokens: addresses, copies to and from shared memory, and phi of the copies.

#include <cstdint>
#include <type_traits>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/ptx/barrier.cuh"
#include "mhla/cuda/ptx/convert.cuh"
#include "mhla/cuda/ptx/copy_async.cuh"
#include "mhla/cuda/ptx/global.cuh"
#include "mhla/cuda/ptx/shared.cuh"
#include "mhla/cuda/tile/feature_map.cuh"
#include "mhla/cuda/tile/token_blocks.cuh"

namespace mhla::cuda {

// -------------------------------------------------------------------------------------------------
// A [B, N, H, D] tensor of 16-bit numbers in device memory, as kernels see it. The D elements of a
// row are adjacent, and rows are aligned to 16 bytes.

/// A (batch item, head) of a problem and its index: pair = b * heads + h.
struct BatchHead {
  std::int32_t batch;
  std::int32_t head;
};
MHLA_HOST_DEVICE constexpr BatchHead batch_head(std::int32_t pair, std::int32_t heads) {
  return {pair / heads, pair % heads};
}

template <class Byte>
struct BasicTokenTensor {
  Byte* data;
  std::int64_t batch_stride;  // in bytes
  std::int64_t head_stride;
  std::int64_t token_stride;

  /// Row of token 0 of a head.
  MHLA_HOST_DEVICE constexpr Byte* head(BatchHead pair) const {
    return data + pair.batch * batch_stride + pair.head * head_stride;
  }
};

using ConstTokenTensor = BasicTokenTensor<const unsigned char>;
using TokenTensor = BasicTokenTensor<unsigned char>;

// -------------------------------------------------------------------------------------------------
// Rows of tokens between device memory and tiles, by all threads of a block or of a group.

/// Tokens from `first` on, in sequence order; -1 after the last.
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

/// Tokens of slots first.. first + count - 1 of a block; -1 for empty slots and later rows.
struct BoxTokens {
  const TokenBlocks& blocks;
  BlockOrigin origin;
  std::int32_t first;
  std::int32_t count;
  MHLA_HOST_DEVICE constexpr std::int32_t operator()(std::int32_t row) const {
    return row < count ? blocks.token(origin, first + row) : -1;
  }
};

/// Tokens of 16 rows that a warp writes. Each thread computes one token and the others get it by a
/// shuffle, so that all threads of the warp must call together.
struct WarpTokens {
  std::int32_t token;  // of row lane % 16
  MHLA_DEVICE std::int32_t operator()(std::int32_t row) const {
    return static_cast<std::int32_t>(
        ptx::shfl_idx(static_cast<std::uint32_t>(token), static_cast<std::uint32_t>(row)));
  }
};

/// Tokens of rows lane / 4 and lane / 4 + 8 of a warp's 16 rows; -1 for none.
struct TokenPair {
  std::int32_t token;
  std::int32_t token_8;
};

/// Calls act(row, piece, token) for the thread's pieces of a tile. All threads call WarpTokens,
/// including those without a piece.
template <int kThreads, class Tile, class Tokens, class Act>
MHLA_DEVICE void for_pieces(const Tokens& tokens, std::uint32_t thread, const Act& act) {
  constexpr int kCount = Tile::kRows * Tile::kPieces;
  MHLA_CUDA_UNROLL
  for (std::uint32_t i = 0; i < (kCount + kThreads - 1) / kThreads; ++i) {
    const std::uint32_t index = i * kThreads + thread;
    const bool exists = kCount % kThreads == 0 || index < kCount;
    if (!std::is_same_v<Tokens, WarpTokens> && !exists) break;
    const std::uint32_t row = exists ? index / Tile::kPieces : 0;
    const std::int32_t token = tokens(static_cast<std::int32_t>(row));
    if (exists) act(row, index % Tile::kPieces, token);
  }
}

/// Starts the copy of a piece of a token's row; zeros if the token is -1. `head` is the row of
/// token 0, and rows are `stride` bytes apart.
template <class Tile>
MHLA_DEVICE void copy_piece(Tile tile, std::uint32_t row, std::uint32_t piece,
                            const unsigned char* head, std::int64_t stride, std::int32_t token) {
  ptx::cp_async_16(tile.piece(row, piece), head + (token < 0 ? 0 : token * stride) + piece * 16,
                   token < 0 ? 0 : 16);
}

/// Starts copies of rows 0.. of a tile: row r is the row of token tokens(r).
template <int kThreads, class Tile, class Tokens>
MHLA_DEVICE void copy_rows(Tile tile, const unsigned char* head, std::int64_t stride,
                           const Tokens& tokens, std::uint32_t thread) {
  for_pieces<kThreads, Tile>(tokens, thread, [&](auto row, auto piece, auto token) {
    copy_piece(tile, row, piece, head, stride, token);
  });
}

/// Writes the rows of a tile to tokens, except where tokens(r) is -1.
template <int kThreads, class Tile, class Tokens>
MHLA_DEVICE void write_rows(Tile tile, unsigned char* head, std::int64_t stride,
                            const Tokens& tokens, std::uint32_t thread) {
  for_pieces<kThreads, Tile>(tokens, thread, [&](auto row, auto piece, auto token) {
    if (token >= 0) {
      ptx::st_global_v4(head + token * stride + piece * 16,
                        ptx::ld_shared_v4(tile.piece(row, piece)));
    }
  });
}

// -------------------------------------------------------------------------------------------------
// Strips of rows that a block copies ahead of their use, through kStages stages of shared memory,
// with one barrier per strip.

/// Waits until the next strip has arrived and no thread reads the previous one. Before that, a
/// thread calls change(), which may change what it has copied itself. Then it calls copy(), which
/// fills the previous strip's stage with the strip kStages - 1 after this one. The copies form one
/// group, which may be empty.
template <int kStages, class Copy, class Change>
MHLA_DEVICE void next_strip(const Copy& copy, const Change& change) {
  ptx::cp_async_wait_group<kStages - 2>();
  change();
  ptx::bar_sync();
  copy();
}
template <int kStages, class Copy>
MHLA_DEVICE void next_strip(const Copy& copy) {
  next_strip<kStages>(copy, [] {});
}

// -------------------------------------------------------------------------------------------------
// Tokens of rows, listed once in shared memory. Where many threads copy a row in pieces, each loads
// the token instead of computing the divisions of TokenBlocks::token.

/// Rows `first`.. of a list of tokens at a shared address, 4 bytes each; -1 for no token.
struct ListedTokens {
  std::uint32_t begin;
  std::int32_t first;
  MHLA_DEVICE std::int32_t operator()(std::int32_t row) const {
    return static_cast<std::int32_t>(ptx::ld_shared(begin + 4 * (first + row)));
  }
};

/// Lists tokens(0).. tokens(kRows - 1). All threads of a block call it, and read after a barrier.
template <int kThreads, int kRows, class Tokens>
MHLA_DEVICE void list_tokens(std::uint32_t begin, const Tokens& tokens, std::uint32_t thread) {
  MHLA_CUDA_UNROLL
  for (int i = 0; i < (kRows + kThreads - 1) / kThreads; ++i) {
    const std::uint32_t row = i * kThreads + thread;
    if (kRows % kThreads != 0 && row >= kRows) break;
    ptx::st_shared(begin + 4 * row,
                   static_cast<std::uint32_t>(tokens(static_cast<std::int32_t>(row))));
  }
}

// -------------------------------------------------------------------------------------------------
// Iteration over the slots of all blocks, kStep slots of one block at a time.

/// Slots slot.. slot + kStep - 1 of a block.
template <int kStep>
struct SlotCursor {
  std::int32_t block = 0;
  std::int32_t slot = 0;

  /// Advances to the next slots, where blocks have `slots` slots.
  MHLA_HOST_DEVICE constexpr void advance(std::int32_t slots) {
    slot += kStep;
    if (slot >= slots) {
      slot = 0;
      ++block;
    }
  }
};

// -------------------------------------------------------------------------------------------------
// phi of rows in shared memory, by the threads that copied them. A thread processes the pieces that
// its copy_rows (tokens.cuh) started. After it has waited for them it needs no barrier. The barrier
// that shows the rows to other threads shows phi of them.

/// Applies phi in place to the pieces that copy_rows<kThreads>(tile, ..., thread) copied.
template <class T, int kThreads, class Tile>
MHLA_DEVICE void apply_to_copied(const FeatureMap& map, Tile tile, std::uint32_t thread) {
  constexpr int kCopies = Tile::kRows * Tile::kPieces;
  map.with_formula([&](auto phi) {
    MHLA_CUDA_UNROLL
    for (int i = 0; i < (kCopies + kThreads - 1) / kThreads; ++i) {
      const std::uint32_t index = i * kThreads + thread;
      if (kCopies % kThreads != 0 && index >= kCopies) break;
      const std::uint32_t at = tile.piece(index / Tile::kPieces, index % Tile::kPieces);
      ptx::Words4 words = ptx::ld_shared_v4(at);
      apply<T>(phi, words.x);
      ptx::st_shared_v4(at, words);
    }
  });
}

}  // namespace mhla::cuda

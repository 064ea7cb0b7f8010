#pragma once

/// \file
/// Rows of tokens: where they are, their copies to and from shared memory, and phi of the copies.

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
// A [B, N, H, D] tensor of 16-bit numbers in device memory, as kernels see it: where a row begins.
// The D elements of a row lie side by side, and rows begin at multiples of 16 bytes.

/// A (batch item, head) of a problem and where it stands: pair = b * heads + h.
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

  /// The row of token 0 of a head.
  MHLA_HOST_DEVICE constexpr Byte* head(BatchHead pair) const {
    return data + pair.batch * batch_stride + pair.head * head_stride;
  }
};

using ConstTokenTensor = BasicTokenTensor<const unsigned char>;
using TokenTensor = BasicTokenTensor<unsigned char>;

// -------------------------------------------------------------------------------------------------
// Rows of tokens between device memory and tiles, by all threads of a block or of a group.

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

/// Tokens of slots first.. first + count - 1 of a block; -1 for empty slots and those behind.
struct BoxTokens {
  const TokenBlocks& blocks;
  BlockOrigin origin;
  std::int32_t first;
  std::int32_t count;
  MHLA_HOST_DEVICE constexpr std::int32_t operator()(std::int32_t row) const {
    return row < count ? blocks.token(origin, first + row) : -1;
  }
};

/// Tokens of 16 rows that a warp writes: a thread works out one, and the others ask it. All threads
/// of the warp ask together.
struct WarpTokens {
  std::int32_t own;  // of row lane % 16
  MHLA_DEVICE std::int32_t operator()(std::int32_t row) const {
    return static_cast<std::int32_t>(
        ptx::shfl_idx(static_cast<std::uint32_t>(own), static_cast<std::uint32_t>(row)));
  }
};

/// Tokens of rows lane / 4 and lane / 4 + 8 of a warp's 16 rows; -1 for none.
struct TokenPair {
  std::int32_t token;
  std::int32_t token_8;
};

/// Calls act(row, piece, token) for the pieces of a tile that are the thread's. WarpTokens are
/// asked by all threads, those that have no piece too.
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

/// Starts the copy of a piece of token's row, zeros where token is -1. `head` is the row of token
/// 0, its rows `stride` bytes apart.
template <class Tile>
MHLA_DEVICE void copy_piece(Tile tile, std::uint32_t row, std::uint32_t piece,
                            const unsigned char* head, std::int64_t stride, std::int32_t token) {
  ptx::cp_async_16(tile.piece(row, piece), head + (token < 0 ? 0 : token * stride) + piece * 16,
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
      ptx::st_global_v4(head + token * stride + piece * 16,
                        ptx::ld_shared_v4(tile.piece(row, piece)));
    }
  });
}

// -------------------------------------------------------------------------------------------------
// Strips of rows that a block copies ahead of the one in use, through kStages stages of shared
// memory, with one barrier a strip.

/// The next strip is here, and nobody reads the one before any more, whose stage copy() takes: the
/// kStages - 1st strip from here on, in a group of its own, as those before, or an empty one.
template <int kStages, class Copy>
MHLA_DEVICE void next_strip(const Copy& copy) {
  ptx::cp_async_wait_group<kStages - 2>();
  ptx::bar_sync();
  copy();
}

// -------------------------------------------------------------------------------------------------
// Tokens of rows, worked out once and kept in shared memory: where a row is copied in pieces by
// many threads, a load each instead of the divisions of TokenBlocks::token.

/// Rows `first`.. of a list of tokens at a shared address, 4 bytes each, -1 where there is none.
struct ListedTokens {
  std::uint32_t begin;
  std::int32_t first;
  MHLA_DEVICE std::int32_t operator()(std::int32_t row) const {
    return static_cast<std::int32_t>(ptx::ld_shared(begin + 4 * (first + row)));
  }
};

/// Lists tokens(0).. tokens(kRows - 1), by all threads of a block, which meet before they read.
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
// A walk over the slots of all blocks, so many at a time of one block.

/// Slots slot.. slot + kStep - 1 of a block.
template <int kStep>
struct SlotCursor {
  std::int32_t block = 0;
  std::int32_t slot = 0;

  /// To the next, where blocks have `slots` slots.
  MHLA_HOST_DEVICE constexpr void advance(std::int32_t slots) {
    slot += kStep;
    if (slot >= slots) {
      slot = 0;
      ++block;
    }
  }
};

// -------------------------------------------------------------------------------------------------
// phi of rows in shared memory, by those who copied them: a thread works on the pieces that its
// own copy_rows (tokens.cuh) started, which it sees without a barrier once it has waited. The
// barrier that shows the rows to the others shows phi of them.

/// phi of the pieces that copy_rows<kThreads>(tile, ..., thread) copied, in place.
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

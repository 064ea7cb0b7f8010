#pragma once

/// \file
/// Blocks of tokens as kernels see them: boxes of a grid of tokens in raster order.
///
///     sequence   1 x 1 x N tokens in boxes of 1 x 1 x W
///     image      1 x Y x X tokens in boxes of 1 x y x x
///     video      F x Y x X tokens in boxes of f x y x x
///
/// Blocks are numbered in raster order, and so are the W = f*y*x slots of a block. A block at a far
/// edge may reach beyond the tokens. Those slots are empty, and the other slots keep the places
/// that they have in a whole block.

#include <cstdint>

#include "mhla/cuda/arch.cuh"

namespace mhla::cuda {

// -------------------------------------------------------------------------------------------------
// Division by a number that the whole grid shares: a product and a shift of 32 bits.
//
//     n / d = (2 n m / 2^32) / 2^l,   l = ceil(log2 d),   m = ceil(2^(31 + l) / d) < 2^32
//
// The quotient is exact for 0 <= n < 2^31, since m d - 2^(31 + l) < d <= 2^l. Source: Granlund and
// Montgomery, Division by Invariant Integers using Multiplication, 1994, theorem 4.2.

class Divisor {
 public:
  MHLA_HOST_DEVICE constexpr Divisor() : Divisor(1) {}
  /// \param d  1 to 2^31 - 1
  MHLA_HOST_DEVICE explicit constexpr Divisor(std::int32_t d) : divisor_(d) {
    while ((std::int64_t{1} << shift_) < d) ++shift_;
    const std::uint64_t power = std::uint64_t{1} << (31 + shift_);
    const auto divisor = static_cast<std::uint64_t>(d);
    multiplier_ = static_cast<std::uint32_t>((power + divisor - 1) / divisor);
  }

  MHLA_HOST_DEVICE constexpr std::int32_t value() const { return divisor_; }

  /// Returns n / d, for n >= 0.
  MHLA_HOST_DEVICE constexpr std::int32_t quotient(std::int32_t n) const {
    const std::uint64_t twice = 2 * static_cast<std::uint32_t>(n);
    return static_cast<std::int32_t>(static_cast<std::uint32_t>(twice * multiplier_ >> 32) >>
                                     shift_);
  }

  bool operator==(const Divisor&) const = default;

 private:
  std::int32_t divisor_;
  std::int32_t shift_ = 0;
  std::uint32_t multiplier_ = 0;
};

// -------------------------------------------------------------------------------------------------

/// The first token of a block along frames, rows and columns.
struct BlockOrigin {
  std::int32_t frame;
  std::int32_t row;
  std::int32_t column;
};

/// A partition of up to 2^31 - 1 tokens.
class TokenBlocks {
 public:
  MHLA_HOST_DEVICE constexpr TokenBlocks() : TokenBlocks(1, 1, 1, 1, 1, 1) {}
  /// Sizes of the grid and of a block along frames, rows and columns, all at least 1.
  MHLA_HOST_DEVICE constexpr TokenBlocks(std::int32_t frames, std::int32_t rows,
                                         std::int32_t columns, std::int32_t block_frames,
                                         std::int32_t block_rows, std::int32_t block_columns)
      : frames_(frames),
        rows_(rows),
        columns_(columns),
        block_frames_(block_frames),
        block_rows_(block_rows),
        block_columns_(block_columns),
        row_counts_((rows - 1) / block_rows + 1),
        column_counts_((columns - 1) / block_columns + 1),
        blocks_(((frames - 1) / block_frames + 1) * row_counts_.value() * column_counts_.value()),
        runs_(frames == 1 && rows == 1 && block_frames == 1 && block_rows == 1) {}

  MHLA_HOST_DEVICE constexpr std::int32_t tokens() const { return frames_ * rows() * columns(); }
  MHLA_HOST_DEVICE constexpr std::int32_t frames() const { return frames_; }
  MHLA_HOST_DEVICE constexpr std::int32_t rows() const { return rows_.value(); }
  MHLA_HOST_DEVICE constexpr std::int32_t columns() const { return columns_.value(); }
  MHLA_HOST_DEVICE constexpr std::int32_t block_frames() const { return block_frames_.value(); }
  MHLA_HOST_DEVICE constexpr std::int32_t block_rows() const { return block_rows_.value(); }
  MHLA_HOST_DEVICE constexpr std::int32_t block_columns() const { return block_columns_.value(); }

  /// Number of blocks, M.
  MHLA_HOST_DEVICE constexpr std::int32_t blocks() const { return blocks_; }
  /// Slots per block, W.
  MHLA_HOST_DEVICE constexpr std::int32_t slots() const {
    return block_frames() * block_rows() * block_columns();
  }

  MHLA_HOST_DEVICE constexpr BlockOrigin origin(std::int32_t block) const {
    const std::int32_t line = column_counts_.quotient(block);
    const std::int32_t plane = row_counts_.quotient(line);
    return {plane * block_frames(), (line - plane * row_counts_.value()) * block_rows(),
            (block - line * column_counts_.value()) * block_columns()};
  }

  /// Returns the token in a slot of the block at `at`, or -1 if the slot is empty or outside the
  /// block.
  MHLA_HOST_DEVICE constexpr std::int32_t token(BlockOrigin at, std::int32_t slot) const {
    if (runs_) {
      const bool filled = slot < block_columns() && slot < columns_.value() - at.column;
      return filled ? at.column + slot : -1;
    }
    const std::int32_t line = block_columns_.quotient(slot);
    const std::int32_t plane = block_rows_.quotient(line);
    const std::int32_t row = line - plane * block_rows();
    const std::int32_t column = slot - line * block_columns();
    const bool filled = plane < block_frames() && plane < frames_ - at.frame &&
                        row < rows_.value() - at.row && column < columns_.value() - at.column;
    return filled ? ((at.frame + plane) * rows_.value() + at.row + row) * columns_.value() +
                        at.column + column
                  : -1;
  }

  /// Returns the block of a token.
  MHLA_HOST_DEVICE constexpr std::int32_t block_of(std::int32_t token) const {
    const std::int32_t line = columns_.quotient(token);
    const std::int32_t frame = rows_.quotient(line);
    const std::int32_t row = line - frame * rows_.value();
    const std::int32_t column = token - line * columns_.value();
    return (block_frames_.quotient(frame) * row_counts_.value() + block_rows_.quotient(row)) *
               column_counts_.value() +
           block_columns_.quotient(column);
  }

  /// Returns the slot of a token in its block.
  MHLA_HOST_DEVICE constexpr std::int32_t slot_of(std::int32_t token) const {
    const std::int32_t line = columns_.quotient(token);
    const std::int32_t frame = rows_.quotient(line);
    const auto rest = [](std::int32_t n, const Divisor& by) {
      return n - by.quotient(n) * by.value();
    };
    return (rest(frame, block_frames_) * block_rows() +
            rest(line - frame * rows_.value(), block_rows_)) *
               block_columns() +
           rest(token - line * columns_.value(), block_columns_);
  }

  bool operator==(const TokenBlocks&) const = default;

 private:
  std::int32_t frames_;
  Divisor rows_;
  Divisor columns_;
  Divisor block_frames_;
  Divisor block_rows_;
  Divisor block_columns_;
  Divisor row_counts_;
  Divisor column_counts_;
  std::int32_t blocks_;
  bool runs_;  // blocks are consecutive tokens
};

}  // namespace mhla::cuda

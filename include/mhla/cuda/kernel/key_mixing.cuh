#pragma once

/// \file
/// Table of m for every block of queries and every single key, as floats in shared memory. It
/// multiplies scores where keys are processed in sequence order, whatever their blocks are.
///
///     a row per block of queries, 16 keys in 64 bytes:
///     keys p, p + 1, p + 8 and p + 9 in 16 bytes at 8 p, p = 0, 2, 4, 6
///
/// so that one load gives a thread the coefficients of its sums of a row (ptx/mma.cuh). Adjacent
/// rows begin half of the banks apart, since they are read together. The 64 bytes between rows have
/// a bit per key of up to 256 keys, set if its block has the number of the row: for p / 2 = 0..3,
/// four words of 64 keys each, with bit j for key 8 (j / 2) + p + j % 2.

#include <cstdint>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/kernel/parameters.cuh"
#include "mhla/cuda/ptx/global.cuh"
#include "mhla/cuda/ptx/shared.cuh"
#include "mhla/cuda/tile/token_blocks.cuh"

namespace mhla::cuda {

struct KeyMixing {
  static constexpr std::int32_t kMostOwnKeys = 256;  ///< most keys that have bits

  std::uint32_t begin;  ///< shared address, a multiple of 128
  std::int32_t keys;    ///< keys per row, a multiple of 32; zeros after the last key

  static MHLA_HOST_DEVICE constexpr std::int32_t pitch(std::int32_t keys) { return 4 * keys + 64; }

  /// Shared address of m of a block of queries and a key.
  MHLA_HOST_DEVICE constexpr std::uint32_t at(std::int32_t block, std::int32_t key) const {
    return row(block) + static_cast<std::uint32_t>(key / 16 * 64 + key % 8 / 2 * 16 +
                                                   key / 8 % 2 * 8 + key % 2 * 4);
  }
  MHLA_HOST_DEVICE constexpr std::uint32_t row(std::int32_t block) const {
    return begin + static_cast<std::uint32_t>(block * pitch(keys));
  }

  /// Shared addresses of the first m of a thread's rows, queries first + lane / 4 and 8 later.
  MHLA_DEVICE void find_rows(const TokenBlocks& query_blocks, std::int32_t first,
                             std::uint32_t lane, std::uint32_t (&rows)[2]) const {
    MHLA_CUDA_UNROLL
    for (int i = 0; i < 2; ++i) {
      const std::int32_t query = first + static_cast<std::int32_t>(lane / 4) + 8 * i;
      const std::int32_t block = query < query_blocks.tokens() ? query_blocks.block_of(query) : 0;
      rows[i] = at(block, static_cast<std::int32_t>(lane) % 4 * 2);
    }
  }

  /// Loads the bits of the `part`-th 64 keys, given the addresses that find_rows() returns.
  MHLA_DEVICE void load_own_keys(const std::uint32_t (&rows)[2], std::int32_t part,
                                 std::uint32_t (&bits)[2]) const {
    const auto offset = 4 * static_cast<std::uint32_t>(keys + part);
    bits[0] = ptx::ld_shared(rows[0] + offset);
    bits[1] = ptx::ld_shared(rows[1] + offset);
  }
  /// Stores these bits, by `threads` threads. A barrier must follow before they are read.
  MHLA_DEVICE void store_own_keys(const TokenBlocks& key_blocks, std::uint32_t thread,
                                  std::uint32_t threads) const {
    const std::int32_t count = key_blocks.blocks() * 16;
    MHLA_CUDA_LOOP
    for (auto i = static_cast<std::int32_t>(thread); i < count;
         i += static_cast<std::int32_t>(threads)) {
      const std::int32_t block = i / 16, pair = i / 4 % 4, part = i % 4;
      std::uint32_t bits = 0;
      MHLA_CUDA_LOOP
      for (std::int32_t j = 0; j < 16; ++j) {
        const std::int32_t key = 64 * part + j / 2 * 8 + 2 * pair + j % 2;
        if (key < key_blocks.tokens() && key_blocks.block_of(key) == block) bits |= 1u << j;
      }
      ptx::st_shared(at(block, 2 * pair) + 4 * static_cast<std::uint32_t>(keys + part), bits);
    }
  }

  /// Fills the table, by `threads` threads. A barrier must follow before it is read.
  MHLA_DEVICE void store(const MixingArray& mixing, const TokenBlocks& query_blocks,
                         const TokenBlocks& key_blocks, std::uint32_t thread,
                         std::uint32_t threads) const {
    constexpr int kAhead = 8;  // rows loaded together
    const std::int32_t rows = query_blocks.blocks();
    MHLA_CUDA_LOOP
    for (auto key = static_cast<std::int32_t>(thread); key < keys;
         key += static_cast<std::int32_t>(threads)) {
      const bool is_one = key < key_blocks.tokens();
      const std::int32_t block = is_one ? key_blocks.block_of(key) : 0;
      MHLA_CUDA_LOOP
      for (std::int32_t first = 0; first < rows; first += kAhead) {
        float m[kAhead];
        MHLA_CUDA_UNROLL
        for (int i = 0; i < kAhead; ++i) {
          const bool counts = is_one && first + i < rows;
          m[i] = counts ? ptx::ld_global_nc_f32(mixing.row(first + i) + block) : 0;
        }
        MHLA_CUDA_UNROLL
        for (int i = 0; i < kAhead; ++i) {
          if (first + i < rows) ptx::st_shared_f32(at(first + i, key), m[i]);
        }
      }
    }
  }
};

}  // namespace mhla::cuda

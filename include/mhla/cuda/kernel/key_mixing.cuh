#pragma once

/// \file
/// Table of m for every block of queries and every single key, as floats in shared memory. It
/// multiplies scores where keys are processed in sequence order, whatever their blocks are.
///
///     a row per block of queries, 16 keys in 64 bytes:
///     keys p, p + 1, p + 8 and p + 9 in 16 bytes at 8 p, p = 0, 2, 4, 6
///
/// so that one load gives a thread the coefficients of its sums of a row (ptx/mma.cuh). Adjacent
/// rows begin half of the banks apart, since they are read together.

#include <cstdint>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/kernel/parameters.cuh"
#include "mhla/cuda/ptx/global.cuh"
#include "mhla/cuda/ptx/shared.cuh"
#include "mhla/cuda/tile/token_blocks.cuh"

namespace mhla::cuda {

struct KeyMixing {
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

#pragma once

/// \file
/// phi of rows in shared memory, by those who copied them: a thread works on the pieces that its
/// own copy_rows (token_rows.cuh) started, which it sees without a barrier once it has waited. The
/// barrier that shows the rows to the others shows phi of them.

#include <cstdint>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/ptx/shared.cuh"
#include "mhla/cuda/tile/feature_map.cuh"

namespace mhla::cuda {

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
      ptx::Words4 words = ptx::load_shared_4(at);
      apply<T>(phi, words.x);
      ptx::store_shared_4(at, words);
    }
  });
}

}  // namespace mhla::cuda

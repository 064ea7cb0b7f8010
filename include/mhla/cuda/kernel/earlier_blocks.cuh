#pragma once

/// \file
/// Earlier blocks of a stream that mixes by a matrix of coefficients. The state has the summaries
/// of all M blocks. kTeams threads add their products by a row of the matrix, each thread those of
/// every kTeams-th block.

#include <cstdint>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/kernel/parameters.cuh"
#include "mhla/cuda/kernel/streaming_slice.cuh"
#include "mhla/cuda/kernel/streaming_state.cuh"
#include "mhla/cuda/kernel/summary_piece.cuh"
#include "mhla/cuda/ptx/global.cuh"

namespace mhla::cuda {

template <class T, int D, int E, Precision P>
struct EarlierBlocks {
  using Place = StreamingSlice<D, E>;
  using Piece = SummaryPiece<T, P>;
  static constexpr int kTeams = 8;
  static constexpr int kParts = 8;           ///< thread blocks that restore the mixtures of a slice
  static constexpr bool kHasStates = false;  ///< mixtures are sums of states

  const StreamingStepParameters& p;
  const Place& at;

  /// m_ib
  static MHLA_DEVICE float coefficient(const StreamingStepParameters& p, const Place& at,
                                       std::int32_t i, std::int32_t b) {
    return ptx::ld_global_nc_f32(p.matrix(at.head).row(i) + b);
  }
  /// Index of the summary of block b among those of the state.
  static MHLA_DEVICE std::int64_t index(const StreamingStepParameters& p, const Place& at,
                                        std::int32_t b) {
    return at.pair * p.blocks.blocks() + b;
  }
  /// Counter of a stream that has seen `tokens` tokens.
  static MHLA_DEVICE std::int32_t counter(const StreamingStepParameters&, std::int32_t tokens) {
    return tokens;
  }

  /// A matrix has no states.
  MHLA_DEVICE std::int32_t done() const { return 0; }
  MHLA_DEVICE Piece summary(std::int32_t b, std::int64_t offset) const {
    return Piece::load(p.state.summaries, index(p, at, b) * Place::kMatrixBytes + offset);
  }

  /// Adds a team's part of sum_(b < block - 1) m_(block)b S_b to `sums`, if the piece is `mine`.
  MHLA_DEVICE void add(float (&sums)[8], bool mine, std::int32_t block, std::int32_t /*done*/,
                       std::int32_t team, std::int64_t offset) const {
    const std::int32_t count = block - 1;
    const std::int64_t first = index(p, at, 0) * Place::kMatrixBytes + offset;
    const float* const row = p.matrix(at.head).row(block);
    MHLA_CUDA_LOOP
    for (std::int32_t b = team; mine && b < count; b += kTeams * kTogether) {
      Piece x[kTogether];
      float m[kTogether];
      MHLA_CUDA_UNROLL
      for (int j = 0; j < kTogether; ++j) {
        x[j] = {};
        if (b + j * kTeams >= count) continue;
        x[j] = Piece::load(p.state.summaries, first + (b + j * kTeams) * Place::kMatrixBytes);
        m[j] = ptx::ld_global_nc_f32(row + b + j * kTeams);
      }
      MHLA_CUDA_UNROLL
      for (int j = 0; j < kTogether; ++j) {
        if (b + j * kTeams >= count) break;
        x[j].add_to(sums, m[j]);
      }
    }
  }

  /// Returns a team's part of the same sum of z_b.
  MHLA_DEVICE float key_sum(bool mine, std::int32_t block, std::int32_t /*done*/, std::int32_t team,
                            std::int32_t number) const {
    const float* const z = p.state.summaries.key_sum + index(p, at, 0) * D;
    float sum = 0;
    MHLA_CUDA_LOOP
    for (std::int32_t b = team; mine && b < block - 1; b += kTeams) {
      sum += coefficient(p, at, block, b) *
             ptx::ld_global_f32(z + static_cast<std::int64_t>(b) * D + number);
    }
    return sum;
  }

 private:
  static constexpr int kTogether = Piece::kPair ? 2 : 4;  // blocks whose pieces are in flight
};

}  // namespace mhla::cuda

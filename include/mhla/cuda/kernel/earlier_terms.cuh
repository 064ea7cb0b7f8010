#pragma once

/// \file
/// Earlier blocks of a stream that mixes by R decaying terms, m_ib = sum_r a_r lambda_r^(i-b). The
/// state has one sum per term, and the summaries of two blocks:
///
///     U_r(i) = lambda_r U_r(i-1) + S_(i-1)     U_r(0) = 0     in float
///     S~'_(i+1) = sum_(b < i) m_(i+1)b S_b = sum_r a_r lambda_r^2 U_r(i)
///
/// Steps of block i replace U(i-1) by U(i), a part each, and add the products. The summaries of
/// even and of odd blocks have one place each, so S_i may be written while S_(i-1) is still needed.
/// Memory does not grow with the number of blocks, and the stream has no end. kTeams threads add
/// the terms, each thread every kTeams-th.
///
/// A counter of tokens continues from 2 W when it reaches 4 W: only the slot, and whether the block
/// is even or the first, are needed.

#include <cstdint>
#include <limits>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/kernel/parameters.cuh"
#include "mhla/cuda/kernel/streaming_slice.cuh"
#include "mhla/cuda/kernel/streaming_state.cuh"
#include "mhla/cuda/kernel/summary_piece.cuh"
#include "mhla/cuda/ptx/global.cuh"
#include "mhla/cuda/tile/pieces.cuh"

namespace mhla::cuda {

/// \tparam kAhead  summaries that are loaded together where several blocks pass
template <class T, int D, int E, Precision P, int kAhead = 1>
struct EarlierTerms {
  using Place = StreamingSlice<D, E>;
  using Piece = SummaryPiece<T, P>;
  static constexpr int kTeams = 8;
  static constexpr int kParts = (D * Place::kPieces * kTeams - 1) / Place::kThreads + 1;
  static constexpr bool kHasStates = true;
  static constexpr std::int32_t kMostBlocks = std::numeric_limits<std::int32_t>::max();

  const StreamingStepParameters& p;
  const Place& at;
  /// Summaries of the blocks from `begin` on, if a prefill has written them elsewhere. The state
  /// has U(begin - 1).
  SummaryArray written{};
  std::int64_t written_pair = 0;
  std::int32_t begin = kMostBlocks;

  /// m_ib for b = i and b = i - 1
  static MHLA_DEVICE float coefficient(const StreamingStepParameters& p, const Place& at,
                                       std::int32_t i, std::int32_t b) {
    const MixingArray terms = p.matrix(at.head);
    float sum = 0;
    MHLA_CUDA_LOOP
    for (std::int32_t r = 0; r < p.terms; ++r) {
      const float weight = ptx::ld_global_nc_f32(terms.row(0) + r);
      sum += b == i ? weight : weight * ptx::ld_global_nc_f32(terms.row(1) + r);
    }
    return sum;
  }
  static MHLA_DEVICE std::int64_t index(const StreamingStepParameters&, const Place& at,
                                        std::int32_t b) {
    return at.pair * 2 + b % 2;
  }
  static MHLA_DEVICE std::int32_t counter(const StreamingStepParameters& p, std::int32_t tokens) {
    return endless_counter(tokens, p.blocks.slots());
  }

  /// Block i of the states U(i) before a prefill.
  MHLA_DEVICE std::int32_t done() const { return begin - 1; }
  MHLA_DEVICE Piece summary(std::int32_t b, std::int64_t offset) const {
    if (b < begin) {
      return Piece::load(p.state.summaries, index(p, at, b) * Place::kMatrixBytes + offset);
    }
    return Piece::load(written, written_index(b) * Place::kMatrixBytes + offset);
  }

  /// Replaces a team's U(done) by U(block - 1), and adds its products to `sums`. Without a block
  /// (`done` is -1), U(0) is 0.
  MHLA_DEVICE void add(float (&sums)[8], bool mine, std::int32_t block, std::int32_t done,
                       std::int32_t team, std::int64_t offset) const {
    const MixingArray terms = p.matrix(at.head);
    MHLA_CUDA_LOOP
    for (std::int32_t r = team; mine && r < p.terms; r += kTeams) {
      const float decay = ptx::ld_global_nc_f32(terms.row(1) + r);
      float* const state = p.state.terms + (at.pair * p.terms + r) * (D * E) + offset / 2;
      float u[8] = {};
      if (done >= 0) {
        const Eight<float> stored{{ptx::ld_global_v4(state), ptx::ld_global_v4(state + 4)}};
        stored.to_floats(u);
      }
      MHLA_CUDA_LOOP
      for (std::int32_t b = done < 0 ? 0 : done; b < block - 1; b += kAhead) {
        Piece ahead[kAhead];
        MHLA_CUDA_UNROLL
        for (int j = 0; j < kAhead; ++j) {
          ahead[j] = {};
          if (b + j < block - 1) ahead[j] = summary(b + j, offset);
        }
        MHLA_CUDA_UNROLL
        for (int j = 0; j < kAhead; ++j) {
          if (b + j >= block - 1) break;
          float x[8];
          ahead[j].to_floats(x);
          MHLA_CUDA_UNROLL
          for (int n = 0; n < 8; ++n) u[n] = decay * u[n] + x[n];
        }
      }
      ptx::st_global_v4(state, four_floats(u));
      ptx::st_global_v4(state + 4, four_floats(u + 4));
      const float weight = ptx::ld_global_nc_f32(terms.row(0) + r) * decay * decay;
      MHLA_CUDA_UNROLL
      for (int n = 0; n < 8; ++n) sums[n] += weight * u[n];
    }
  }

  /// The same for a number of the key sums. Returns the team's sum.
  MHLA_DEVICE float key_sum(bool mine, std::int32_t block, std::int32_t done, std::int32_t team,
                            std::int32_t number) const {
    const MixingArray terms = p.matrix(at.head);
    float sum = 0;
    MHLA_CUDA_LOOP
    for (std::int32_t r = team; mine && r < p.terms; r += kTeams) {
      const float decay = ptx::ld_global_nc_f32(terms.row(1) + r);
      float* const state = p.state.term_key_sums + (at.pair * p.terms + r) * D + number;
      float u = done < 0 ? 0 : ptx::ld_global_f32(state);
      MHLA_CUDA_LOOP
      for (std::int32_t b = done < 0 ? 0 : done; b < block - 1; ++b) {
        u = decay * u + ptx::ld_global_f32(key_sum_of(b) + number);
      }
      ptx::st_global_f32(state, u);
      sum += ptx::ld_global_nc_f32(terms.row(0) + r) * decay * decay * u;
    }
    return sum;
  }

  /// Copies a piece of the summary of block b to the state, if a prefill has written it elsewhere.
  MHLA_DEVICE void keep(std::int32_t b, std::int64_t offset) const {
    if (b < begin) return;
    summary(b, offset).store(p.state.summaries, index(p, at, b) * Place::kMatrixBytes + offset);
  }
  /// The same for a number of its key sums.
  MHLA_DEVICE void keep_key_sum(std::int32_t b, std::int32_t number) const {
    if (b < begin) return;
    ptx::st_global_f32(p.state.summaries.key_sum + index(p, at, b) * D + number,
                       ptx::ld_global_f32(key_sum_of(b) + number));
  }

 private:
  MHLA_DEVICE std::int64_t written_index(std::int32_t b) const {
    return written_pair * written.capacity + b - begin;
  }
  MHLA_DEVICE const float* key_sum_of(std::int32_t b) const {
    return b < begin ? p.state.summaries.key_sum + index(p, at, b) * D
                     : written.key_sum + written_index(b) * D;
  }
};

}  // namespace mhla::cuda

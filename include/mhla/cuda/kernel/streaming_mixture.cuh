#pragma once

/// \file
/// Mixtures of a stream, by the thread blocks of a step, kColumns columns of values each. Tokens of
/// block i read S~_i and prepare S~_(i+1).
///
///     S~'_t = sum_(b < t-1) m_tb S_b             by the steps of block t - 1, a part each
///     S~_t  = S~'_t + m_t(t-1) S_(t-1)           in its place, by the first steps of block t
///     z~_t  = z~'_t + m_t(t-1) z_(t-1)           z~' likewise; z~ in every step
///
/// Every step therefore reads i / W summaries. Even and odd blocks have separate mixtures. Both
/// sums of S~ are rounded. A step's part of S~' consists of pieces of 16 bytes. kTeams threads
/// compute each piece, each thread from every kTeams-th block. S~'_t becomes S~_t row by row: step
/// r adds to each thread's rows with index r. Until then a step reads these rows as both addends.

#include <cstdint>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/kernel/parameters.cuh"
#include "mhla/cuda/kernel/streaming_slice.cuh"
#include "mhla/cuda/kernel/streaming_state.cuh"
#include "mhla/cuda/ptx/barrier.cuh"
#include "mhla/cuda/ptx/global.cuh"
#include "mhla/cuda/ptx/shared.cuh"
#include "mhla/cuda/tile/pieces.cuh"

namespace mhla::cuda {

template <class T, int D, int E, Precision P>
struct StreamingMixture {
  using Place = StreamingSlice<D, E>;
  static constexpr int kThreads = Place::kThreads;
  static constexpr int kTeamBytes = kThreads * 32;  ///< bytes of shared memory
  static constexpr int kParts = 8;

  /// A piece of a summary or a mixture.
  struct Piece {
    ptx::Words4 high;
    ptx::Words4 low;  ///< for Precision::kPair
  };
  /// A thread's part of S~.
  struct Rows {
    Piece x[Place::kRowPairs][2];
  };

  /// Loads S~ of the open block.
  static MHLA_DEVICE Rows load(const StreamingStepParameters& p, const Place& at,
                               StreamPosition now);
  /// Loads number d of z~ of the open block.
  static MHLA_DEVICE float load_key_sum(const StreamingStepParameters& p, const Place& at,
                                        StreamPosition now, std::uint32_t d);
  /// Computes the step's part of S~' and z~' of the next block. It uses kTeamBytes of shared memory
  /// from `shared` on.
  static MHLA_DEVICE void prepare(const StreamingStepParameters& p, const Place& at,
                                  StreamPosition now, std::uint32_t shared);
  /// Computes both mixtures as the steps up to position `now` would leave them; part `part` of
  /// kParts.
  static MHLA_DEVICE void restore(const StreamingStepParameters& p, const Place& at,
                                  StreamPosition now, std::int32_t part, std::uint32_t shared);

 private:
  static constexpr bool kPair = P == Precision::kPair;
  static constexpr int kRowPairs = Place::kRowPairs;
  static constexpr int kPieces = Place::kPieces;
  static constexpr std::int64_t kMatrixBytes = Place::kMatrixBytes;
  static constexpr int kTeams = 8;
  static constexpr int kTogether = kPair ? 2 : 4;  // blocks whose pieces are in flight
  static constexpr int kMembers = kThreads / kTeams;

  static MHLA_DEVICE Piece load(const SummaryArray& array, std::int64_t offset) {
    Piece x;
    x.high = ptx::ld_global_v4(array.high + offset);
    if constexpr (kPair) x.low = ptx::ld_global_v4(array.low + offset);
    return x;
  }
  static MHLA_DEVICE void store(const SummaryArray& array, std::int64_t offset, const Piece& x) {
    ptx::st_global_v4(array.high + offset, x.high);
    if constexpr (kPair) ptx::st_global_v4(array.low + offset, x.low);
  }
  static MHLA_DEVICE void add(float (&sums)[8], float factor, const Piece& x) {
    if constexpr (kPair) add_scaled<T>(sums, factor, x.low);
    add_scaled<T>(sums, factor, x.high);
  }
  static MHLA_DEVICE Piece rounded_piece(const float (&sums)[8]) {
    Piece x;
    x.high = rounded<T>(sums);
    if constexpr (kPair) x.low = rounded_rest<T>(sums, x.high);
    return x;
  }
  /// Returns S~' + m S for one piece.
  static MHLA_DEVICE Piece with_latest(const Piece& mixture, float m, const Piece& summary) {
    float sums[8] = {};
    add(sums, 1, mixture);
    add(sums, m, summary);
    return rounded_piece(sums);
  }
  /// Offset in bytes of S~ of a block.
  static MHLA_DEVICE std::int64_t mixture(const Place& at, std::int32_t block) {
    return (2 * at.pair + block % 2) * kMatrixBytes;
  }
  /// Address of z~' of a block.
  static MHLA_DEVICE float* key_sum(const StreamingStepParameters& p, const Place& at,
                                    std::int32_t block) {
    return p.state.mixture.key_sum + (2 * at.pair + block % 2) * D;
  }

  /// A range from `begin` to before `end`.
  struct Range {
    std::int32_t begin;
    std::int32_t end;
  };
  /// Range of a mixture's pieces or numbers (`size` in all) that the step in `slot` computes.
  static MHLA_DEVICE Range share(const StreamingStepParameters& p, std::int32_t slot,
                                 std::int32_t size) {
    const std::int32_t each = (size - 1) / p.blocks.slots() + 1;
    if (slot > (size - 1) / each) return {size, size};  // earlier steps compute all
    const std::int32_t begin = slot * each;
    return {begin, begin + each < size ? begin + each : size};
  }

  static MHLA_DEVICE void mix(const StreamingStepParameters& p, const Place& at, std::int32_t block,
                              Range pieces, std::int32_t turns, std::uint32_t shared);
  static MHLA_DEVICE void mix_key_sums(const StreamingStepParameters& p, const Place& at,
                                       std::int32_t block, Range numbers, std::uint32_t shared);
};

// -------------------------------------------------------------------------------------------------

template <class T, int D, int E, Precision P>
MHLA_DEVICE auto StreamingMixture<T, D, E, P>::load(const StreamingStepParameters& p,
                                                    const Place& at, StreamPosition now) -> Rows {
  Rows rows{};
  if (now.block == 0) return rows;  // there is no earlier block
  const std::int64_t begin = mixture(at, now.block);
  MHLA_CUDA_UNROLL
  for (int r = 0; r < kRowPairs; ++r) {
    MHLA_CUDA_UNROLL
    for (int i = 0; i < 2; ++i) {
      if (!at.has(r)) continue;
      rows.x[r][i] = load(p.state.mixture, begin + at.offset(2 * at.row_pair(r) + i));
    }
  }
  if (now.slot >= kRowPairs) return rows;
  const float m = ptx::ld_global_nc_f32(p.matrix(at.head).row(now.block) + now.block - 1);
  const std::int64_t latest = (at.pair * p.blocks.blocks() + now.block - 1) * kMatrixBytes;
  const bool last = now.slot + 1 == p.blocks.slots();
  MHLA_CUDA_UNROLL
  for (int r = 0; r < kRowPairs; ++r) {
    if (r < now.slot || !at.has(r)) continue;
    MHLA_CUDA_UNROLL
    for (int i = 0; i < 2; ++i) {
      const Piece summary = load(p.state.summaries, latest + at.offset(2 * at.row_pair(r) + i));
      rows.x[r][i] = with_latest(rows.x[r][i], m, summary);
    }
  }
  MHLA_CUDA_UNROLL
  for (int r = 0; r < kRowPairs; ++r) {
    if (r < now.slot || (r > now.slot && !last) || !at.has(r)) continue;
    MHLA_CUDA_UNROLL
    for (int i = 0; i < 2; ++i) {
      store(p.state.mixture, begin + at.offset(2 * at.row_pair(r) + i), rows.x[r][i]);
    }
  }
  return rows;
}

template <class T, int D, int E, Precision P>
MHLA_DEVICE float StreamingMixture<T, D, E, P>::load_key_sum(const StreamingStepParameters& p,
                                                             const Place& at, StreamPosition now,
                                                             std::uint32_t d) {
  if (now.block == 0) return 0;
  const std::int64_t latest = at.pair * p.blocks.blocks() + now.block - 1;
  return ptx::ld_global_f32(key_sum(p, at, now.block) + d) +
         ptx::ld_global_nc_f32(p.matrix(at.head).row(now.block) + now.block - 1) *
             ptx::ld_global_f32(p.state.summaries.key_sum + latest * D + d);
}

template <class T, int D, int E, Precision P>
MHLA_DEVICE void StreamingMixture<T, D, E, P>::prepare(const StreamingStepParameters& p,
                                                       const Place& at, StreamPosition now,
                                                       std::uint32_t shared) {
  if (now.block + 1 == p.blocks.blocks()) return;
  mix(p, at, now.block + 1, share(p, now.slot, D * kPieces), 0, shared);
  if (at.slice != 0 || p.normalization.denominator != Denominator::kKeySum) return;
  mix_key_sums(p, at, now.block + 1, share(p, now.slot, D), shared);
}

template <class T, int D, int E, Precision P>
MHLA_DEVICE void StreamingMixture<T, D, E, P>::restore(const StreamingStepParameters& p,
                                                       const Place& at, StreamPosition now,
                                                       std::int32_t part, std::uint32_t shared) {
  const auto of_part = [part](std::int32_t size) {
    return Range{size * part / kParts, size * (part + 1) / kParts};
  };
  const bool sums = at.slice == 0 && p.normalization.denominator == Denominator::kKeySum;
  const std::int32_t blocks = p.blocks.blocks();
  if (now.block > 0 && now.block < blocks) {
    mix(p, at, now.block, of_part(D * kPieces), now.slot, shared);
    if (sums) mix_key_sums(p, at, now.block, of_part(D), shared);
  }
  if (now.block + 1 < blocks) {
    mix(p, at, now.block + 1, of_part(share(p, now.slot, D * kPieces).begin), 0, shared);
    if (sums) mix_key_sums(p, at, now.block + 1, of_part(share(p, now.slot, D).begin), shared);
  }
}

/// Computes pieces of S~' of a block, and of S~ where the first `turns` steps of the block add.
template <class T, int D, int E, Precision P>
MHLA_DEVICE void StreamingMixture<T, D, E, P>::mix(const StreamingStepParameters& p,
                                                   const Place& at, std::int32_t block,
                                                   Range pieces, std::int32_t turns,
                                                   std::uint32_t shared) {
  const std::int64_t all = at.pair * p.blocks.blocks() * kMatrixBytes;
  const std::int32_t member = at.thread % kMembers, team = at.thread / kMembers;
  const std::int32_t count = block - 1;  // number of blocks in S~'
  MHLA_CUDA_LOOP
  for (std::int32_t first = pieces.begin; first < pieces.end; first += kMembers) {
    const auto piece = static_cast<std::uint32_t>(first + member);
    const std::int64_t offset = at.offset(piece / kPieces, piece % kPieces);
    const bool mine = first + member < pieces.end;
    float sums[8] = {};
    MHLA_CUDA_LOOP
    for (std::int32_t b = team; mine && b < count; b += kTeams * kTogether) {
      Piece x[kTogether];
      float m[kTogether];
      MHLA_CUDA_UNROLL
      for (int j = 0; j < kTogether; ++j) {
        x[j] = {};
        if (b + j * kTeams >= count) continue;
        x[j] = load(p.state.summaries, all + (b + j * kTeams) * kMatrixBytes + offset);
        m[j] = ptx::ld_global_nc_f32(p.matrix(at.head).row(block) + b + j * kTeams);
      }
      MHLA_CUDA_UNROLL
      for (int j = 0; j < kTogether; ++j) {
        if (b + j * kTeams >= count) break;
        add(sums, m[j], x[j]);
      }
    }
    ptx::bar_sync();  // earlier contents have been read
    ptx::st_shared_v4(shared + at.thread * 16, four_floats(sums));
    ptx::st_shared_v4(shared + (kThreads + at.thread) * 16, four_floats(sums + 4));
    ptx::bar_sync();
    if (team != 0 || !mine) continue;
    MHLA_CUDA_UNROLL
    for (int t = 1; t < kTeams; ++t) {
      MHLA_CUDA_UNROLL
      for (int i = 0; i < 8; i += 4) {
        const ptx::Words4 four =
            ptx::ld_shared_v4(shared + (i / 4 * kThreads + t * kMembers + at.thread) * 16);
        MHLA_CUDA_UNROLL
        for (int j = 0; j < 4; ++j) sums[i + j] += as_float(four.x[j]);
      }
    }
    Piece x = rounded_piece(sums);
    if (static_cast<std::int32_t>(piece / kPieces / 2 / Place::kGroups) < turns) {
      const float m = ptx::ld_global_nc_f32(p.matrix(at.head).row(block) + count);
      x = with_latest(x, m, load(p.state.summaries, all + count * kMatrixBytes + offset));
    }
    store(p.state.mixture, mixture(at, block) + offset, x);
  }
}

/// Computes numbers of z~' of a block.
template <class T, int D, int E, Precision P>
MHLA_DEVICE void StreamingMixture<T, D, E, P>::mix_key_sums(const StreamingStepParameters& p,
                                                            const Place& at, std::int32_t block,
                                                            Range numbers, std::uint32_t shared) {
  const float* const z = p.state.summaries.key_sum + at.pair * p.blocks.blocks() * D;
  const std::int32_t member = at.thread % kMembers, team = at.thread / kMembers;
  MHLA_CUDA_LOOP
  for (std::int32_t first = numbers.begin; first < numbers.end; first += kMembers) {
    const std::int32_t number = first + member;
    float sum = 0;
    MHLA_CUDA_LOOP
    for (std::int32_t b = team; number < numbers.end && b < block - 1; b += kTeams) {
      sum += ptx::ld_global_nc_f32(p.matrix(at.head).row(block) + b) *
             ptx::ld_global_f32(z + static_cast<std::int64_t>(b) * D + number);
    }
    ptx::bar_sync();
    ptx::st_shared_f32(shared + at.thread * 4, sum);
    ptx::bar_sync();
    if (team != 0 || number >= numbers.end) continue;
    MHLA_CUDA_UNROLL
    for (int t = 1; t < kTeams; ++t) {
      sum += ptx::ld_shared_f32(shared + (t * kMembers + at.thread) * 4);
    }
    ptx::st_global_f32(key_sum(p, at, block) + number, sum);
  }
}

}  // namespace mhla::cuda

#pragma once

/// \file
/// Mixtures of a stream, by the thread blocks of a step, kColumns columns of values each. Tokens of
/// block i read S~_i and prepare S~_(i+1).
///
///     S~'_t = sum_(b < t-1) m_tb S_b             by the steps of block t - 1, a part each
///     S~_t  = S~'_t + m_t(t-1) S_(t-1)           in its place, by the first steps of block t
///     z~_t  = z~'_t + m_t(t-1) z_(t-1)           z~' likewise; z~ in every step
///
/// earlier_blocks.cuh sums S~' over the summaries of a state, of which every step therefore reads
/// i / W. With decaying terms, earlier_terms.cuh sums it over the terms.
///
/// Even and odd blocks have separate mixtures. Both sums of S~ are rounded. A step's part of S~'
/// consists of pieces of 16 bytes. kTeams threads compute each piece. S~'_t becomes S~_t row by
/// row: step r adds to each thread's rows with index r. Until then a step reads these rows as both
/// addends.

#include <cstdint>
#include <limits>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/kernel/earlier_blocks.cuh"
#include "mhla/cuda/kernel/parameters.cuh"
#include "mhla/cuda/kernel/streaming_slice.cuh"
#include "mhla/cuda/kernel/streaming_state.cuh"
#include "mhla/cuda/kernel/summary_piece.cuh"
#include "mhla/cuda/ptx/barrier.cuh"
#include "mhla/cuda/ptx/global.cuh"
#include "mhla/cuda/ptx/shared.cuh"
#include "mhla/cuda/tile/pieces.cuh"

namespace mhla::cuda {

/// \tparam Earlier  EarlierBlocks or EarlierTerms
template <class T, int D, int E, Precision P, class Earlier = EarlierBlocks<T, D, E, P>>
struct StreamingMixture {
  using Place = StreamingSlice<D, E>;
  using Piece = SummaryPiece<T, P>;
  static constexpr int kThreads = Place::kThreads;
  static constexpr int kTeamBytes = kThreads * 32;  ///< bytes of shared memory
  static constexpr int kParts = Earlier::kParts;

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
  static MHLA_DEVICE void restore(const Earlier& earlier, StreamPosition now, std::int32_t part,
                                  std::uint32_t shared);

 private:
  static constexpr int kRowPairs = Place::kRowPairs;
  static constexpr int kPieces = Place::kPieces;
  static constexpr std::int64_t kMatrixBytes = Place::kMatrixBytes;
  static constexpr int kTeams = Earlier::kTeams;
  static constexpr int kMembers = kThreads / kTeams;
  static constexpr std::int32_t kEndless = std::numeric_limits<std::int32_t>::max();

  /// Returns S~' + m S for one piece.
  static MHLA_DEVICE Piece with_latest(const Piece& mixture, float m, const Piece& summary) {
    float sums[8] = {};
    mixture.add_to(sums, 1);
    summary.add_to(sums, m);
    return Piece::rounded(sums);
  }
  /// Offset in bytes of S~ of a block.
  static MHLA_DEVICE std::int64_t mixture(const Place& at, std::int32_t block) {
    return (2 * at.pair + block % 2) * kMatrixBytes;
  }
  /// Offset in bytes of a piece of the slice in a summary.
  static MHLA_DEVICE std::int64_t piece_offset(const Place& at, std::uint32_t piece) {
    return at.offset(piece / kPieces, piece % kPieces);
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
  /// Part `part` of `size` in all.
  static MHLA_DEVICE Range part_of(std::int32_t size, std::int32_t part) {
    return {size * part / kParts, size * (part + 1) / kParts};
  }
  /// Part of the first `taken` of `size`. With states it is within part_of(size, part), so that one
  /// thread block replaces the states of a piece.
  static MHLA_DEVICE Range part_of_first(std::int32_t taken, std::int32_t size, std::int32_t part) {
    if constexpr (!Earlier::kHasStates) return part_of(taken, part);
    const Range all = part_of(size, part);
    return {all.begin < taken ? all.begin : taken, all.end < taken ? all.end : taken};
  }

  static MHLA_DEVICE void mix(const Earlier& earlier, std::int32_t block, std::int32_t done,
                              Range pieces, std::int32_t turns, std::uint32_t shared);
  static MHLA_DEVICE void mix_key_sums(const Earlier& earlier, std::int32_t block,
                                       std::int32_t done, Range numbers, std::uint32_t shared);
};

// -------------------------------------------------------------------------------------------------

template <class T, int D, int E, Precision P, class Earlier>
MHLA_DEVICE auto StreamingMixture<T, D, E, P, Earlier>::load(const StreamingStepParameters& p,
                                                             const Place& at, StreamPosition now)
    -> Rows {
  Rows rows{};
  if (now.block == 0) return rows;  // there is no earlier block
  const std::int64_t begin = mixture(at, now.block);
  MHLA_CUDA_UNROLL
  for (int r = 0; r < kRowPairs; ++r) {
    MHLA_CUDA_UNROLL
    for (int i = 0; i < 2; ++i) {
      if (!at.has(r)) continue;
      rows.x[r][i] = Piece::load(p.state.mixture, begin + at.offset(2 * at.row_pair(r) + i));
    }
  }
  if (now.slot >= kRowPairs) return rows;
  const float m = Earlier::coefficient(p, at, now.block, now.block - 1);
  const std::int64_t latest = Earlier::index(p, at, now.block - 1) * kMatrixBytes;
  const bool last = now.slot + 1 == p.blocks.slots();
  MHLA_CUDA_UNROLL
  for (int r = 0; r < kRowPairs; ++r) {
    if (r < now.slot || !at.has(r)) continue;
    MHLA_CUDA_UNROLL
    for (int i = 0; i < 2; ++i) {
      const Piece summary =
          Piece::load(p.state.summaries, latest + at.offset(2 * at.row_pair(r) + i));
      rows.x[r][i] = with_latest(rows.x[r][i], m, summary);
    }
  }
  MHLA_CUDA_UNROLL
  for (int r = 0; r < kRowPairs; ++r) {
    if (r < now.slot || (r > now.slot && !last) || !at.has(r)) continue;
    MHLA_CUDA_UNROLL
    for (int i = 0; i < 2; ++i) {
      rows.x[r][i].store(p.state.mixture, begin + at.offset(2 * at.row_pair(r) + i));
    }
  }
  return rows;
}

template <class T, int D, int E, Precision P, class Earlier>
MHLA_DEVICE float StreamingMixture<T, D, E, P, Earlier>::load_key_sum(
    const StreamingStepParameters& p, const Place& at, StreamPosition now, std::uint32_t d) {
  if (now.block == 0) return 0;
  const std::int64_t latest = Earlier::index(p, at, now.block - 1);
  return ptx::ld_global_f32(key_sum(p, at, now.block) + d) +
         Earlier::coefficient(p, at, now.block, now.block - 1) *
             ptx::ld_global_f32(p.state.summaries.key_sum + latest * D + d);
}

template <class T, int D, int E, Precision P, class Earlier>
MHLA_DEVICE void StreamingMixture<T, D, E, P, Earlier>::prepare(const StreamingStepParameters& p,
                                                                const Place& at, StreamPosition now,
                                                                std::uint32_t shared) {
  if (now.block + 1 == p.blocks.blocks()) return;
  const Earlier earlier{p, at};
  mix(earlier, now.block + 1, now.block - 1, share(p, now.slot, D * kPieces), 0, shared);
  if (at.slice != 0 || p.normalization.denominator != Denominator::kKeySum) return;
  mix_key_sums(earlier, now.block + 1, now.block - 1, share(p, now.slot, D), shared);
}

template <class T, int D, int E, Precision P, class Earlier>
MHLA_DEVICE void StreamingMixture<T, D, E, P, Earlier>::restore(const Earlier& earlier,
                                                                StreamPosition now,
                                                                std::int32_t part,
                                                                std::uint32_t shared) {
  const StreamingStepParameters& p = earlier.p;
  constexpr std::int32_t kSize = D * kPieces;
  const bool sums = earlier.at.slice == 0 && p.normalization.denominator == Denominator::kKeySum;
  const std::int32_t blocks = Earlier::kHasStates ? kEndless : p.blocks.blocks();
  if (now.block > 0 && now.block < blocks) {
    const std::int32_t done = earlier.done();
    mix(earlier, now.block, done, part_of(kSize, part), now.slot, shared);
    if (sums) mix_key_sums(earlier, now.block, done, part_of(D, part), shared);
  }
  if (now.block + 1 < blocks) {
    const auto first = [&](std::int32_t size) {
      return part_of_first(share(p, now.slot, size).begin, size, part);
    };
    mix(earlier, now.block + 1, now.block - 1, first(kSize), 0, shared);
    if (sums) mix_key_sums(earlier, now.block + 1, now.block - 1, first(D), shared);
  }
  if constexpr (Earlier::kHasStates) {
    const std::int32_t thread = static_cast<std::int32_t>(earlier.at.thread);
    const Range pieces = part_of(kSize, part), numbers = part_of(D, part);
    MHLA_CUDA_LOOP
    for (std::int32_t n = pieces.begin + thread; n < pieces.end; n += kThreads) {
      earlier.keep(now.block - 1, piece_offset(earlier.at, static_cast<std::uint32_t>(n)));
    }
    MHLA_CUDA_LOOP
    for (std::int32_t n = numbers.begin + thread; sums && n < numbers.end; n += kThreads) {
      earlier.keep_key_sum(now.block - 1, n);
    }
  }
}

/// Computes pieces of S~' of a block, and of S~ where the first `turns` steps of the block add.
/// \param done  block i of the states U(i)
template <class T, int D, int E, Precision P, class Earlier>
MHLA_DEVICE void StreamingMixture<T, D, E, P, Earlier>::mix(const Earlier& earlier,
                                                            std::int32_t block, std::int32_t done,
                                                            Range pieces, std::int32_t turns,
                                                            std::uint32_t shared) {
  const StreamingStepParameters& p = earlier.p;
  const Place& at = earlier.at;
  const std::int32_t member = at.thread % kMembers, team = at.thread / kMembers;
  MHLA_CUDA_LOOP
  for (std::int32_t first = pieces.begin; first < pieces.end; first += kMembers) {
    const auto piece = static_cast<std::uint32_t>(first + member);
    const std::int64_t offset = piece_offset(at, piece);
    const bool mine = first + member < pieces.end;
    float sums[8] = {};
    earlier.add(sums, mine, block, done, team, offset);
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
    Piece x = Piece::rounded(sums);
    if (static_cast<std::int32_t>(piece / kPieces / 2 / Place::kGroups) < turns) {
      const float m = Earlier::coefficient(p, at, block, block - 1);
      x = with_latest(x, m, earlier.summary(block - 1, offset));
    }
    x.store(p.state.mixture, mixture(at, block) + offset);
  }
}

/// Computes numbers of z~' of a block.
template <class T, int D, int E, Precision P, class Earlier>
MHLA_DEVICE void StreamingMixture<T, D, E, P, Earlier>::mix_key_sums(const Earlier& earlier,
                                                                     std::int32_t block,
                                                                     std::int32_t done,
                                                                     Range numbers,
                                                                     std::uint32_t shared) {
  const Place& at = earlier.at;
  const std::int32_t member = at.thread % kMembers, team = at.thread / kMembers;
  MHLA_CUDA_LOOP
  for (std::int32_t first = numbers.begin; first < numbers.end; first += kMembers) {
    const std::int32_t number = first + member;
    const bool mine = number < numbers.end;
    float sum = earlier.key_sum(mine, block, done, team, number);
    ptx::bar_sync();
    ptx::st_shared_f32(shared + at.thread * 4, sum);
    ptx::bar_sync();
    if (team != 0 || !mine) continue;
    MHLA_CUDA_UNROLL
    for (int t = 1; t < kTeams; ++t) {
      sum += ptx::ld_shared_f32(shared + (t * kMembers + at.thread) * 4);
    }
    ptx::st_global_f32(key_sum(earlier.p, at, block) + number, sum);
  }
}

}  // namespace mhla::cuda

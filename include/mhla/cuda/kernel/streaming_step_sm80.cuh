#pragma once

/// \file
/// Decoding: one token of every pair, in block i of its stream.
///
///     o_t = (phi(q)^T S~ + sum_j m_ii (phi(q) . phi(k_j)) v_j) / den
///     den =  phi(q)^T z~ + sum_j m_ii (phi(q) . phi(k_j))          j <= t in block i
///
/// with S~ = sum_(b < i) m_ib S_b, which the first token of a block makes, from summaries S_b,
/// which the last token of a block makes (kernel/streaming_state.cuh).
///
/// Grid: x is pair * slices + slice, of kColumns columns of values. Thread blocks of a step tell
/// each other nothing: each has its own counter of tokens, from which it knows what to do, so that
/// a captured graph can be replayed; what slice 0 alone writes, phi(k), z and z~, the others make
/// again for themselves and read in later steps only. A step is one launch, and steps of a stream
/// are ordered.
///
/// A thread has a piece of eight columns and, of S~, pairs of rows kGroups apart; of v, every
/// kGroups-th row. Eight threads together make phi(q) . phi(k_j). All sums are floats, added in an
/// order that depends on nothing but the sizes and the position. S~ comes before the position is
/// known, keys and values of the open block in chunks of kKeys.
///
/// Device memory: a step reads 2 D E bytes of S~ and 2 (D slices + E) of each token of the open
/// block for a pair; the first of a block also 2 i D E, and the last writes 2 D E.
///
/// After the last of the M W tokens that a stream can take, outputs are NaN and the state stays as
/// it is. Nothing tells the host: it has to count too.

#include <cstdint>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/kernel/parameters.cuh"
#include "mhla/cuda/kernel/streaming_slice_sm80.cuh"
#include "mhla/cuda/kernel/streaming_state.cuh"
#include "mhla/cuda/kernel/widths.cuh"
#include "mhla/cuda/ptx/barrier.cuh"
#include "mhla/cuda/ptx/global.cuh"
#include "mhla/cuda/ptx/shared.cuh"
#include "mhla/cuda/tile/pieces.cuh"

namespace mhla::cuda {

template <class T, int D, int E, Precision P>
class StreamingStepSm80 {
  static_assert(has_kernels(D, E), "steps have widths (64,64), (72,72), (128,128) and (128,256)");

 public:
  using Params = StreamingStepParameters;
  static constexpr Arch kArchitecture = Arch::kSm80;
  static constexpr int kThreads = StreamingSlice<T, D, E, P>::kThreads;
  static constexpr int kBlocksPerMultiprocessor =
      (D == 64 ? 5 : 4) - (P == Precision::kPair ? 1 : 0);
  static constexpr int kRegisters = 65536 / kThreads / kBlocksPerMultiprocessor / 8 * 8;
  static constexpr int kColumns = streaming_slice(E);
  static constexpr int kSlices = E / kColumns;

 private:
  using Slice = StreamingSlice<T, D, E, P>;
  using WorkTile = typename Slice::WorkTile;
  using Position = typename Slice::Position;
  using Rows = typename Slice::Rows;
  static constexpr int kWarps = kThreads / 32;
  static constexpr int kPieces = Slice::kPieces;
  static constexpr int kGroups = Slice::kGroups;
  static constexpr int kKeyPieces = Slice::kKeyPieces;
  static constexpr int kKeys = 64;  // of a chunk
  static constexpr int kPasses = kKeys / (kThreads / 8);
  static constexpr int kOwnPieces = (kKeyPieces + 7) / 8;          // of a key, to a thread
  static constexpr int kValues = (kKeys + kGroups - 1) / kGroups;  // rows of a chunk

  // The plan of shared memory, in bytes.
  static constexpr int kQuery = 0;             // phi(q) in T
  static constexpr int kKey = kQuery + D * 2;  // phi(k)
  static constexpr int kPosition = kKey + D * 2;
  static constexpr int kScores = kPosition + 16;         // of warps, for the denominator
  static constexpr int kWeights = kScores + kWarps * 4;  // of the keys of a chunk
  static constexpr int kSums = kWeights + kKeys * 4;  // of groups: the first four columns of each
  static constexpr int kSums4 = kSums + kThreads * 16 + 64;  // piece, and the others, 16 banks on
  static constexpr int kClosingKeys = kSums4 + kThreads * 16;
  static_assert(kSums % 16 == 0, "pieces begin at multiples of 16 bytes");

 public:
  static constexpr int kSharedBytes = kClosingKeys + Slice::kClosing * D * 2;

  static unsigned grid(const Params&, int pairs) { return static_cast<unsigned>(pairs) * kSlices; }
  MHLA_DEVICE void operator()(const Params& p) const {
    const WorkTile at = Slice::work_tile();
    const BatchHead pair = batch_head(static_cast<std::int32_t>(at.pair), p.heads);
    const bool normalized = p.normalization.denominator == Denominator::kKeySum;
    map_token(p, at, pair);
    Rows mixture = Slice::load_mixture(p, at);
    const ptx::Words4 own_value =
        ptx::ld_global_nc_v4(p.v.head(pair) + at.slice * (kColumns * 2) + at.piece * 16);
    ptx::bar_sync();  // phi(q), phi(k) and the position are there
    const Position now = position(p, at);
    if (now.position >= p.blocks.tokens()) {
      write_nan(p, at, pair);
      return;
    }
    if (now.slot == 0) mixture = Slice::mix(p, at, now.block);
    Chunk chunk = load_chunk(p, at, now, 0, own_value);

    float score = 0;  // a part of the denominator
    if (normalized && at.thread < D) {
      float* const key_sum = p.state.mixture.key_sum + at.pair * D + at.thread;
      const float z =
          now.slot == 0 ? Slice::mix_key_sum(p, at, now.block) : ptx::ld_global_f32(key_sum);
      if (now.slot == 0 && at.slice == 0) ptx::st_global_f32(key_sum, z);
      const std::uint32_t q = ptx::ld_shared(at.shared + kQuery + at.thread / 2 * 4);
      score = (at.thread % 2 == 0 ? ptx::low<T>(q) : ptx::high<T>(q)) * z;
    }

    float sums[8] = {};
    add_mixture(sums, at, mixture, inverse_power(p.state.mixture.scale));
    const float m = ptx::ld_global_nc_f32(p.mixing.row(now.block) + now.block);
    MHLA_CUDA_LOOP
    for (std::int32_t first = 0;;) {
      score += weigh_keys(at, chunk, m);
      ptx::bar_sync();  // all weights are there
      add_values(sums, at, chunk);
      first += kKeys;
      if (first > now.slot) break;
      chunk = load_chunk(p, at, now, first, own_value);
      ptx::bar_sync();  // the weights have been read
    }
    write(p, at, pair, sums, score);
    if (now.slot + 1 == p.blocks.slots() && now.block + 1 < p.blocks.blocks()) {
      Slice::close(p, at, now, at.shared + kKey, own_value, at.shared + kClosingKeys);
    }
    keep(p, at, now, own_value);
  }

 private:
  /// A thread's part of a chunk of keys and values.
  struct Chunk {
    ptx::Words4 keys[kPasses][kOwnPieces];
    ptx::Words4 values[kValues];
  };

  static MHLA_DEVICE void map_token(const Params& p, const WorkTile& at, BatchHead pair) {
    const std::uint32_t lane = at.thread % 32, warp = at.thread / 32;
    if (warp == 0 && lane < kKeyPieces) {
      const ptx::Words4 q = ptx::ld_global_nc_v4(p.q.head(pair) + lane * 16);
      ptx::st_shared_v4(at.shared + kQuery + lane * 16, apply<T>(p.query_map, q));
    } else if (warp == 1 && lane < kKeyPieces) {
      const ptx::Words4 k = ptx::ld_global_nc_v4(p.k.head(pair) + lane * 16);
      ptx::st_shared_v4(at.shared + kKey + lane * 16, apply<T>(p.key_map, k));
    } else if (warp == 2 && lane == 0) {
      const auto position = static_cast<std::uint64_t>(
          ptx::ld_global_s64(p.state.positions + at.pair * kSlices + at.slice));
      ptx::st_shared(at.shared + kPosition, static_cast<std::uint32_t>(position));
      ptx::st_shared(at.shared + kPosition + 4, static_cast<std::uint32_t>(position >> 32));
    }
  }

  static MHLA_DEVICE Position position(const Params& p, const WorkTile& at) {
    const ptx::Words2 words = ptx::ld_shared_v2(at.shared + kPosition);
    const auto position =
        static_cast<std::int64_t>(words.x[0] | static_cast<std::uint64_t>(words.x[1]) << 32);
    if (position >= p.blocks.tokens()) return {position, 0, 0};
    const auto token = static_cast<std::int32_t>(position);
    const std::int32_t block = p.blocks.block_of(token);
    return {position, block, token - block * p.blocks.slots()};
  }

  static MHLA_DEVICE void add_mixture(float (&sums)[8], const WorkTile& at, const Rows& mixture,
                                      float unit) {
    MHLA_CUDA_UNROLL
    for (int r = 0; r < Slice::kRowPairs; ++r) {
      if (!at.has(r)) break;
      const std::uint32_t q = ptx::ld_shared(at.shared + kQuery + at.row_pair(r) * 4);
      MHLA_CUDA_UNROLL
      for (int i = 0; i < 2; ++i) {
        const float factor = (i == 0 ? ptx::low<T>(q) : ptx::high<T>(q)) * unit;
        add_scaled<T>(sums, factor, mixture.high[r][i]);
        if constexpr (P == Precision::kPair) add_scaled<T>(sums, factor, mixture.low[r][i]);
      }
    }
  }

  static MHLA_DEVICE Chunk load_chunk(const Params& p, const WorkTile& at, Position now,
                                      std::int32_t first, ptx::Words4 own_value) {
    const std::int64_t rows = at.pair * p.blocks.slots();
    Chunk chunk;
    MHLA_CUDA_UNROLL
    for (int u = 0; u < kPasses; ++u) {
      const auto j = first + static_cast<std::int32_t>(u * (kThreads / 8) + at.thread / 8);
      MHLA_CUDA_UNROLL
      for (int o = 0; o < kOwnPieces; ++o) {
        const std::uint32_t piece = o * 8 + at.thread % 8;
        chunk.keys[u][o] = {};
        if (piece >= kKeyPieces || j > now.slot) continue;
        chunk.keys[u][o] = j < now.slot
                               ? ptx::ld_global_v4(p.state.keys + (rows + j) * (D * 2) + piece * 16)
                               : ptx::ld_shared_v4(at.shared + kKey + piece * 16);
      }
    }
    MHLA_CUDA_UNROLL
    for (int s = 0; s < kValues; ++s) {
      const std::uint32_t row = s * kGroups + at.group;
      const auto j = first + static_cast<std::int32_t>(row);
      chunk.values[s] = {};
      if (at.group >= kGroups || row >= kKeys || j > now.slot) continue;
      chunk.values[s] = j < now.slot ? ptx::ld_global_v4(p.state.values + rows * (E * 2) +
                                                         at.offset(static_cast<std::uint32_t>(j)))
                                     : own_value;
    }
    return chunk;
  }

  static MHLA_DEVICE float weigh_keys(const WorkTile& at, const Chunk& chunk, float m) {
    ptx::Words4 query[kOwnPieces];
    MHLA_CUDA_UNROLL
    for (int o = 0; o < kOwnPieces; ++o) {
      const std::uint32_t piece = o * 8 + at.thread % 8;
      query[o] = {};
      if (piece < kKeyPieces) query[o] = ptx::ld_shared_v4(at.shared + kQuery + piece * 16);
    }
    float own = 0;
    MHLA_CUDA_UNROLL
    for (int u = 0; u < kPasses; ++u) {
      float weight = 0;
      MHLA_CUDA_UNROLL
      for (int o = 0; o < kOwnPieces; ++o) {
        weight = add_product<T>(weight, query[o], chunk.keys[u][o]);
      }
      MHLA_CUDA_UNROLL
      for (std::uint32_t mask = 1; mask < 8; mask *= 2) weight += ptx::shfl_bfly(weight, mask);
      if (at.thread % 8 == 0) {
        const std::uint32_t j = u * (kThreads / 8) + at.thread / 8;
        ptx::st_shared_f32(at.shared + kWeights + j * 4, m * weight);
        own += m * weight;
      }
    }
    return own;
  }

  static MHLA_DEVICE void add_values(float (&sums)[8], const WorkTile& at, const Chunk& chunk) {
    MHLA_CUDA_UNROLL
    for (int s = 0; s < kValues; ++s) {
      const std::uint32_t row = s * kGroups + at.group;
      if (at.group >= kGroups || row >= kKeys) break;
      add_scaled<T>(sums, ptx::ld_shared_f32(at.shared + kWeights + row * 4), chunk.values[s]);
    }
  }

  static MHLA_DEVICE void write(const Params& p, const WorkTile& at, BatchHead pair,
                                const float (&sums)[8], float score) {
    ptx::st_shared_v4(at.shared + kSums + at.thread * 16, four_floats(sums));
    ptx::st_shared_v4(at.shared + kSums4 + at.thread * 16, four_floats(sums + 4));
    MHLA_CUDA_UNROLL
    for (std::uint32_t mask = 16; mask > 0; mask /= 2) score += ptx::shfl_bfly(score, mask);
    if (at.thread % 32 == 0) ptx::st_shared_f32(at.shared + kScores + at.thread / 8, score);
    ptx::bar_sync();
    if (at.thread >= kColumns / 2) return;
    float denominator = 0;
    MHLA_CUDA_UNROLL
    for (int w = 0; w < kWarps; ++w) {
      denominator += ptx::ld_shared_f32(at.shared + kScores + w * 4);
    }
    const std::uint32_t piece = at.thread / 4, column = at.thread % 4 * 2;  // two columns
    const std::uint32_t from =
        at.shared + (column < 4 ? kSums : kSums4) + piece * 16 + column % 4 * 4;
    float x = 0, y = 0;
    MHLA_CUDA_UNROLL
    for (int g = 0; g < kGroups; ++g) {
      const ptx::Words2 two = ptx::ld_shared_v2(from + g * (kPieces * 16));
      x += as_float(two.x[0]);
      y += as_float(two.x[1]);
    }
    const float factor = p.normalization.factor(denominator);
    ptx::st_global(p.o.head(pair) + at.slice * (kColumns * 2) + at.thread * 4,
                   ptx::pack<T>(x * factor, y * factor));
  }

  static MHLA_DEVICE void write_nan(const Params& p, const WorkTile& at, BatchHead pair) {
    constexpr std::uint32_t kNan = 0x7FFF7FFF;  // two of either type
    if (at.thread >= kColumns / 2) return;
    ptx::st_global(p.o.head(pair) + at.slice * (kColumns * 2) + at.thread * 4, kNan);
  }

  static MHLA_DEVICE void keep(const Params& p, const WorkTile& at, Position now,
                               ptx::Words4 own_value) {
    const std::int64_t row = at.pair * p.blocks.slots() + now.slot;
    if (at.slice == 0 && at.thread < kKeyPieces) {
      ptx::st_global_v4(p.state.keys + row * (D * 2) + at.thread * 16,
                        ptx::ld_shared_v4(at.shared + kKey + at.thread * 16));
    }
    if (at.group == 0) {
      ptx::st_global_v4(p.state.values + (row * E + at.slice * kColumns) * 2 + at.piece * 16,
                        own_value);
    }
    if (at.thread == 64) {  // who has read it
      ptx::st_global_s64(p.state.positions + at.pair * kSlices + at.slice, now.position + 1);
    }
  }
};

}  // namespace mhla::cuda

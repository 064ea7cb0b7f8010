#pragma once

/// \file
/// The open block of a stream, in a thread block of a step. Its keys and values, including the
/// token's, pass through shared memory in chunks of kKeys.
///
///     weights    m_ii (phi(q) . phi(k_j)), by eight threads each
///     values     sum_j weight_j v_j: a thread has a piece and every kGroups-th row
///     summary    S_i and z_i of a full block, as matrix products, with the order of sums and the
///                roundings of kernel/summary_sm80.cuh: the same bits

#include <cstdint>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/kernel/parameters.cuh"
#include "mhla/cuda/kernel/streaming_slice.cuh"
#include "mhla/cuda/kernel/streaming_state.cuh"
#include "mhla/cuda/ptx/barrier.cuh"
#include "mhla/cuda/ptx/copy_async.cuh"
#include "mhla/cuda/ptx/global.cuh"
#include "mhla/cuda/ptx/mma.cuh"
#include "mhla/cuda/ptx/shared.cuh"
#include "mhla/cuda/tile/fragment.cuh"
#include "mhla/cuda/tile/layout.cuh"
#include "mhla/cuda/tile/outputs.cuh"
#include "mhla/cuda/tile/pieces.cuh"
#include "mhla/cuda/tile/product.cuh"
#include "mhla/cuda/tile/tokens.cuh"

namespace mhla::cuda {

template <class T, int D, int E, Precision P>
class StreamingBlock {
  using Params = StreamingStepParameters;
  using Place = StreamingSlice<D, E>;
  static constexpr int kThreads = Place::kThreads;
  static constexpr int kWarps = kThreads / 32;
  static constexpr int kColumns = Place::kColumns;
  static constexpr int kPieces = Place::kPieces;
  static constexpr int kGroups = Place::kGroups;
  static constexpr int kPiecesPerThread = (D / 8 + 7) / 8;            // pieces of a key per thread
  static constexpr int kRowTiles = ((D + 15) / 16 - 1) / kWarps + 1;  // row tiles of S_i per warp
  static constexpr int kStep = 16;  // rows that are weighed or multiplied together
  static_assert(kStep == kThreads / 8);

 public:
  static constexpr int kKeys = 64;          ///< keys per chunk
  static constexpr int kKeyPieces = D / 8;  ///< pieces of 16 bytes per key

 private:
  // Layout of shared memory, in bytes.
  using Keys = SharedTile<kKeys, D>;
  using Values = SharedTile<kKeys, kColumns>;
  using Out = SharedTile<16, kColumns>;  // staging tile of a warp for 16 rows of S_i
  static constexpr int kValues = Keys::kBytes;
  static constexpr int kQuery = kValues + Values::kBytes;  // phi(q) in T
  static constexpr int kKey = kQuery + D * 2;              // phi(k)
  static constexpr int kValue = kKey + D * 2;              // v
  static constexpr int kWeights = kValue + kColumns * 2;   // weights of the keys of a chunk

 public:
  static constexpr int kSharedBytes = kWeights + kKeys * 4;
  static constexpr int kOutBytes = kWarps / 2 * Out::kBytes;  ///< staging tiles of S_i

  /// \param shared  address of kSharedBytes, a multiple of 1024
  MHLA_DEVICE StreamingBlock(const Place& place, std::uint32_t shared)
      : at_(place), shared_(shared) {}

  /// Shared addresses of phi(q), phi(k) and v of the token.
  MHLA_DEVICE std::uint32_t query() const { return shared_ + kQuery; }
  MHLA_DEVICE std::uint32_t key() const { return shared_ + kKey; }
  MHLA_DEVICE std::uint32_t value() const { return shared_ + kValue; }

  /// Starts copies of earlier keys and values of the open block from slot `first` on. The rows
  /// after the token's own are zeros, up to a multiple of kStep rows.
  MHLA_DEVICE void copy_chunk(const Params& p, StreamPosition now, std::int32_t first) const {
    const std::int64_t row = at_.pair * p.blocks.slots() + first;
    const std::int32_t token_row = now.slot - first, rows = (token_row / kStep + 1) * kStep;
    const auto copy = [&](auto tile, const unsigned char* begin, std::int64_t stride) {
      const auto act = [&](std::uint32_t to, std::uint32_t piece, std::int32_t token) {
        const auto j = static_cast<std::int32_t>(to);
        if (j != token_row && j < rows) copy_piece(tile, to, piece, begin, stride, token);
      };
      for_pieces<kThreads, decltype(tile)>(ConsecutiveTokens{0, token_row}, at_.thread, act);
    };
    copy(keys(), p.state.keys + row * (2 * D), 2 * D);
    copy(values(), p.state.values + row * (2 * E) + at_.slice * (2 * kColumns), 2 * E);
    ptx::cp_async_commit_group();
  }

  /// Stores the token's own key and value in the chunk, if that contains them. The threads that put
  /// them into shared memory do so: those of warp 0 for the value, of warp 1 for the key.
  MHLA_DEVICE void put_token(std::int32_t row) const {
    if (row >= kKeys) return;
    const std::uint32_t lane = at_.thread % 32, warp = at_.thread / 32;
    const auto j = static_cast<std::uint32_t>(row);
    if (warp == 0 && lane < kPieces) {
      ptx::st_shared_v4(values().piece(j, lane), ptx::ld_shared_v4(value() + lane * 16));
    }
    if (warp == 1 && lane < kKeyPieces) {
      ptx::st_shared_v4(keys().piece(j, lane), ptx::ld_shared_v4(key() + lane * 16));
    }
  }

  /// Computes the weights m (phi(q) . phi(k_j)) of the keys of a chunk up to row `end`. Returns the
  /// sum of the weights that the thread wrote.
  MHLA_DEVICE float weigh_keys(std::int32_t end, float m) const {
    const std::uint32_t member = at_.thread % 8;
    ptx::Words4 q[kPiecesPerThread];
    MHLA_CUDA_UNROLL
    for (int o = 0; o < kPiecesPerThread; ++o) {
      const std::uint32_t piece = o * 8 + member;
      q[o] = {};
      if (piece < kKeyPieces) q[o] = ptx::ld_shared_v4(query() + piece * 16);
    }
    float per_thread = 0;
    MHLA_CUDA_UNROLL
    for (std::int32_t row = 0; row < kKeys; row += kStep) {
      if (row > end) break;  // the same in all threads, so that shuffles are complete
      const std::uint32_t j = static_cast<std::uint32_t>(row) + at_.thread / 8;
      float weight = 0;
      MHLA_CUDA_UNROLL
      for (int o = 0; o < kPiecesPerThread; ++o) {
        const std::uint32_t piece = o * 8 + member;
        if (piece >= kKeyPieces) break;
        weight = add_product<T>(weight, q[o], ptx::ld_shared_v4(keys().piece(j, piece)));
      }
      MHLA_CUDA_UNROLL
      for (std::uint32_t mask = 1; mask < 8; mask *= 2) weight += ptx::shfl_bfly(weight, mask);
      if (member == 0) {
        ptx::st_shared_f32(shared_ + kWeights + j * 4, m * weight);
        per_thread += m * weight;
      }
    }
    return per_thread;
  }

  /// Adds weight_j v_j of a chunk up to row `end` to sums.
  MHLA_DEVICE void add_values(std::int32_t end, float (&sums)[8]) const {
    if (at_.group >= kGroups) return;
    MHLA_CUDA_UNROLL
    for (int s = 0; s < (kKeys + kGroups - 1) / kGroups; ++s) {
      const std::uint32_t j = s * kGroups + at_.group;
      if (j >= kKeys || static_cast<std::int32_t>(j) > end) break;
      add_scaled<T>(sums, ptx::ld_shared_f32(shared_ + kWeights + j * 4),
                    ptx::ld_shared_v4(values().piece(j, at_.piece)));
    }
  }

  /// Computes S_i and z_i of a full block, whose last chunk is in shared memory, and writes them
  /// where Earlier has them. It overwrites kOutBytes at shared address `out` after its first
  /// barrier.
  template <class Earlier>
  MHLA_DEVICE void write_summary(const Params& p, StreamPosition now, std::uint32_t out) const {
    ptx::bar_sync();
    MHLA_CUDA_LOOP
    for (int r = 0; r < kRowTiles; ++r) {
      const std::uint32_t tile = at_.thread / 32 + r * kWarps;
      Summary sums{};
      MHLA_CUDA_LOOP
      for (std::int32_t first = 0; first <= now.slot; first += kKeys) {
        if (now.slot >= kKeys) {  // there are several chunks
          ptx::bar_sync();
          copy_chunk(p, now, first);
          put_token(now.slot - first);
          ptx::cp_async_wait_group<0>();
          ptx::bar_sync();
        }
        if (16 * tile < D) add_keys(now.slot - first, tile, sums);
      }
      const std::uint32_t warp = at_.thread / 32;
      const bool later = warp % 2 != 0;  // half of the warps writes after the other half
      if (later) ptx::bar_sync();
      if (16 * tile < D) write<Earlier>(p, now, tile, sums, {out + warp / 2 * Out::kBytes});
      if (!later) ptx::bar_sync();
      ptx::bar_sync();
    }
  }

 private:
  /// 16 rows of S_i and z_i.
  struct Summary {
    float s[kPieces][4];
    float z[4];  // in every column
  };

  /// Adds the keys of a chunk, up to row `end`, to rows 16 tile.. of S_i and z_i.
  MHLA_DEVICE void add_keys(std::int32_t end, std::uint32_t tile, Summary& sums) const {
    const std::uint32_t lane = at_.thread % 32, one = ptx::pack<T>(1, 1);
    MHLA_CUDA_LOOP
    for (std::uint32_t j = 0; j < kKeys && static_cast<std::int32_t>(j) <= end; j += kStep) {
      const ptx::Words4 a = load_transposed_rows(keys(), j, 2 * tile, lane);
      ptx::mma_m16n8k16<T>(sums.z, a.x[0], a.x[1], a.x[2], a.x[3], one, one);
      multiply_step<T>(sums.s, a.x[0], a.x[1], a.x[2], a.x[3], values(), j, 0, lane);
    }
  }

  template <class Earlier>
  MHLA_DEVICE void write(const Params& p, StreamPosition now, std::uint32_t tile, Summary& sums,
                         Out out) const {
    const std::uint32_t lane = at_.thread % 32;
    const std::int64_t index = Earlier::index(p, at_, now.block);
    const std::int64_t begin = index * Place::kMatrixBytes + at_.offset(0, 0);
    const auto row = static_cast<std::int32_t>(16 * tile);
    const ConsecutiveTokens rows{row, D};
    scale_sums(sums.s, p.state.summaries.scale);
    write_sums<T>(sums.s, {1, 1}, out, p.state.summaries.high + begin, 2 * E, rows, lane);
    if constexpr (P == Precision::kPair) {
      keep_rest<T>(sums.s);
      write_sums<T>(sums.s, {1, 1}, out, p.state.summaries.low + begin, 2 * E, rows, lane);
    }
    if (at_.slice != 0 || lane % 4 != 0) return;
    float* const z = p.state.summaries.key_sum + index * D + row + lane / 4;
    ptx::st_global_f32(z, sums.z[0]);
    if (row + 8 < D) ptx::st_global_f32(z + 8, sums.z[2]);
  }

  MHLA_DEVICE Keys keys() const { return {shared_}; }
  MHLA_DEVICE Values values() const { return {shared_ + kValues}; }

  Place at_;
  std::uint32_t shared_;
};

}  // namespace mhla::cuda

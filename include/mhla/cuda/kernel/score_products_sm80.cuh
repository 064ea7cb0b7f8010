#pragma once

/// \file
/// Gradient of mixing coefficients by scores, token by token:
///
///     dm_ib = sum over the matrix's pairs, t in i and j in b of (phi(q_t) . phi(k_j)) (dN_t . v_j
///     + c_t)
///
/// for all blocks, or with `own` for b = i and j <= t alone (causal forms). It takes 2 Nq Nk (D +
/// E) flops per pair. Products of summaries take over if they need fewer.
///
/// A warp has 64 rows of a block of queries, all blocks of keys and the pairs of a chunk. Warps of
/// a thread block have the same pairs, whose keys and values they read from L1. ordered_sums.cuh
/// adds the parts in order. Shared memory: sums of the blocks of keys, per warp.

#include <cstdint>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/kernel/occupancy.cuh"
#include "mhla/cuda/kernel/parameters.cuh"
#include "mhla/cuda/ptx/barrier.cuh"
#include "mhla/cuda/ptx/index.cuh"
#include "mhla/cuda/ptx/shared.cuh"
#include "mhla/cuda/tile/row_pieces.cuh"

namespace mhla::cuda {

struct ScoreProductParameters {
  ConstTokenTensor q;    ///< phi(q) [B, Nq, H, D]
  ConstTokenTensor k;    ///< phi(k) [B, Nk, H, D]
  ConstTokenTensor v;    ///< [B, Nk, H, E]
  ConstTokenTensor dn;   ///< [B, Nq, H, E]
  const float* weights;  ///< c [pairs, Mq, W], or null
  TokenBlocks query_blocks;
  TokenBlocks key_blocks;
  std::int32_t heads;
  std::int32_t pairs;   ///< pairs per matrix
  std::int32_t chunks;  ///< chunks of these pairs
  bool intra;
  float* parts;  ///< [chunks row_parts(), Mq, Mk] of the first matrix; with `intra` [.., Mq]
  std::int32_t matrices = 1;      ///< matrix g has pairs g, g + matrices, ...
  std::int64_t matrix_parts = 0;  ///< numbers from a matrix's parts to the next

  static constexpr std::int32_t kRows = 64;
  static constexpr std::int32_t kMostBlocks = 32;  ///< blocks of keys
  /// Parts per block of queries.
  MHLA_HOST_DEVICE constexpr std::int32_t row_parts() const {
    return (query_blocks.slots() - 1) / kRows + 1;
  }
  /// Coefficients per block of queries.
  MHLA_HOST_DEVICE constexpr std::int32_t columns() const {
    return intra ? 1 : key_blocks.blocks();
  }
  /// Warps per chunk.
  MHLA_HOST_DEVICE constexpr std::int32_t items() const {
    return query_blocks.blocks() * row_parts();
  }
};

template <class T, int D, int E>
struct ScoreProductsSm80 {
  using Params = ScoreProductParameters;
  static constexpr Arch kArchitecture = Arch::kSm80;
  static constexpr int kThreads = 256;
  static constexpr int kSharedBytes = 4 * kThreads / 32 * Params::kMostBlocks;
  /// Registers of rows and columns, per thread. Floats have two parts.
  static constexpr int kHeldRegisters = (std::is_same_v<T, float> ? 2 : 1) * 3 * (D + E) / 8;
  static constexpr int kBlocksPerMultiprocessor =
      resident_blocks(kThreads, kHeldRegisters + 72, kSharedBytes);

  static constexpr unsigned grid(const Params& p, int) {
    return static_cast<unsigned>(p.matrices * p.chunks) * blocks_of_chunk(p);
  }

  MHLA_DEVICE void operator()(const Params& p) const {
    const std::uint32_t warp = ptx::tid_x() / 32, lane = ptx::tid_x() % 32;
    const auto chunks = static_cast<std::int32_t>(ptx::ctaid_x() / blocks_of_chunk(p));
    const std::int32_t matrix = chunks / p.chunks, chunk = chunks % p.chunks;
    const auto item =
        static_cast<std::int32_t>(ptx::ctaid_x() % blocks_of_chunk(p) * kWarps + warp);
    if (item >= p.items()) return;
    const std::int32_t query_block = item / p.row_parts(), part = item % p.row_parts();
    const std::uint32_t sums = ptx::shared_begin() + warp * (4 * Params::kMostBlocks);
    if (lane == 0) {
      for (std::int32_t b = 0; b < p.columns(); ++b) ptx::st_shared_f32(sums + 4 * b, 0);
    }
    const auto end = static_cast<std::int32_t>(std::int64_t{chunk + 1} * p.pairs / p.chunks);
    MHLA_CUDA_LOOP
    for (auto n = static_cast<std::int32_t>(std::int64_t{chunk} * p.pairs / p.chunks); n < end;
         ++n) {
      MHLA_CUDA_LOOP
      for (std::int32_t row = part * Params::kRows;
           row < (part + 1) * Params::kRows && row < p.query_blocks.slots(); row += 16) {
        add_rows(p, matrix + n * p.matrices, query_block, row, sums);
      }
    }
    if (lane != 0) return;
    float* const to =
        p.parts + matrix * p.matrix_parts +
        ((std::int64_t{chunk} * p.row_parts() + part) * p.query_blocks.blocks() + query_block) *
            p.columns();
    for (std::int32_t b = 0; b < p.columns(); ++b) {
      ptx::st_global_f32(to + b, ptx::ld_shared_f32(sums + 4 * b));
    }
  }

 private:
  using Queries = FactorPieces<T, D>;
  using Values = FactorPieces<T, E>;
  static constexpr unsigned kWarps = kThreads / 32;

  static MHLA_HOST_DEVICE constexpr unsigned blocks_of_chunk(const Params& p) {
    return (static_cast<unsigned>(p.items()) - 1) / kWarps + 1;
  }

  static MHLA_DEVICE std::int32_t token_of(const TokenBlocks& blocks, BlockOrigin origin,
                                           std::int32_t slot) {
    return slot < blocks.slots() ? blocks.token(origin, slot) : -1;
  }

  /// Adds the products of 16 queries of a pair with all blocks of keys.
  static MHLA_DEVICE void add_rows(const Params& p, std::int32_t pair, std::int32_t query_block,
                                   std::int32_t row, std::uint32_t sums) {
    const std::uint32_t lane = ptx::tid_x() % 32;
    const BatchHead head = batch_head(pair, p.heads);
    const BlockOrigin queries = p.query_blocks.origin(query_block);
    const std::int32_t query = row + static_cast<std::int32_t>(lane / 4);
    const auto at = [&](const ConstTokenTensor& x, std::int32_t t) {
      return t >= 0 ? x.head(head) + t * x.token_stride : nullptr;
    };
    const std::int32_t t = token_of(p.query_blocks, queries, query);
    const std::int32_t t_8 = token_of(p.query_blocks, queries, query + 8);
    const PiecesPair<Queries> q{Queries::load(at(p.q, t), lane), Queries::load(at(p.q, t_8), lane)};
    const PiecesPair<Values> dn{Values::load(at(p.dn, t), lane), Values::load(at(p.dn, t_8), lane)};
    float c = 0, c_8 = 0;
    if (p.weights != nullptr) {
      const float* const weights =
          p.weights +
          (std::int64_t{pair} * p.query_blocks.blocks() + query_block) * p.query_blocks.slots();
      if (t >= 0) c = ptx::ld_global_nc_f32(weights + query);
      if (t_8 >= 0) c_8 = ptx::ld_global_nc_f32(weights + query + 8);
    }
    const std::int32_t end =
        p.intra && row + 16 < p.key_blocks.slots() ? row + 16 : p.key_blocks.slots();
    MHLA_CUDA_LOOP
    for (std::int32_t b = 0; b < p.columns(); ++b) {
      const BlockOrigin keys = p.key_blocks.origin(p.intra ? query_block : b);
      float sum = 0;
      MHLA_CUDA_LOOP
      for (std::int32_t column = 0; column < end; column += 8) {
        const std::int32_t j =
            token_of(p.key_blocks, keys, column + static_cast<std::int32_t>(lane / 4));
        float scores[4] = {}, gradients[4] = {};
        if constexpr (std::is_same_v<T, float>) {  // registers hold one of them at a time
          multiply_rows<T>(scores, q, Queries::load(at(p.k, j), lane));
          multiply_rows<T>(gradients, dn, Values::load(at(p.v, j), lane));
        } else {
          const Queries k = Queries::load(at(p.k, j), lane);
          const Values v = Values::load(at(p.v, j), lane);
          multiply_rows<T>(scores, q, k);
          multiply_rows<T>(gradients, dn, v);
        }
        MHLA_CUDA_UNROLL
        for (int i = 0; i < 2; ++i) {  // scores of empty slots are 0
          const std::int32_t slot = column + static_cast<std::int32_t>(lane % 4 * 2) + i;
          if (!p.intra || slot <= query) sum += scores[i] * (gradients[i] + c);
          if (!p.intra || slot <= query + 8) sum += scores[i + 2] * (gradients[i + 2] + c_8);
        }
      }
      MHLA_CUDA_UNROLL
      for (std::uint32_t mask = 1; mask < 32; mask *= 2) sum += ptx::shfl_bfly(sum, mask);
      if (lane == 0) ptx::st_shared_f32(sums + 4 * b, ptx::ld_shared_f32(sums + 4 * b) + sum);
    }
  }
};

}  // namespace mhla::cuda

#pragma once

/// \file
/// The gradient of the gain of normalised outputs (tile/output_norm.cuh):
///
///     dgain_e = sum over pairs and t of dy_te silu(g_te) o_te r_t
///
/// r_t is the inverse norm of output_gradients_sm80.cuh.
///
/// A thread block has a chunk of the blocks of tokens of all pairs. A thread has a piece of 16
/// bytes of every kRows-th token. ordered_sums.cuh adds the parts in order.
/// Shared memory: one sum per thread. Device memory: dy, o and the gate once.

#include <cstdint>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/kernel/parameters.cuh"
#include "mhla/cuda/ptx/global.cuh"
#include "mhla/cuda/ptx/index.cuh"
#include "mhla/cuda/tile/column_sums.cuh"
#include "mhla/cuda/tile/output_norm.cuh"

namespace mhla::cuda {

struct GainSumParameters {
  ConstTokenTensor dout;       ///< [B, Nq, H, E]
  ConstTokenTensor out;        ///< o [B, Nq, H, E]
  const float* inverse_norms;  ///< r [pairs, M, W]
  TokenBlocks blocks;
  std::int32_t heads;
  OutputNorm norm;
  std::int32_t items;   ///< blocks of tokens of all pairs
  std::int32_t chunks;  ///< chunks of these items
  float* parts;         ///< [chunks, E]
};

template <class T, int E>
struct GainSumsSm80 {
  using Params = GainSumParameters;
  static constexpr Arch kArchitecture = Arch::kSm80;
  static constexpr int kThreads = 128;
  using Sums = ColumnSums<kThreads, E>;
  static constexpr int kPieces = Sums::kPieces;
  static constexpr int kRows = Sums::kRows;
  static constexpr int kSharedBytes = Sums::kSharedBytes;
  static constexpr int kBlocksPerMultiprocessor = 6;
  static constexpr int kRegisters = 80;

  static constexpr unsigned grid(const Params& p, int) { return static_cast<unsigned>(p.chunks); }

  MHLA_DEVICE void operator()(const Params& p) const {
    const std::uint32_t thread = ptx::tid_x(), chunk = ptx::ctaid_x();
    const std::uint32_t row = thread / kPieces, piece = thread % kPieces;
    float sums[8] = {};
    const std::int64_t end = std::int64_t{chunk + 1} * p.items / p.chunks;
    MHLA_CUDA_LOOP
    for (std::int64_t item = std::int64_t{chunk} * p.items / p.chunks; row < kRows && item < end;
         ++item) {
      add_block(p, static_cast<std::int32_t>(item), static_cast<std::int32_t>(row), piece, sums);
    }
    Sums::write(sums, p.parts + std::int64_t{chunk} * E);
  }

 private:
  static MHLA_DEVICE void add_block(const Params& p, std::int32_t item, std::int32_t row,
                                    std::uint32_t piece, float (&sums)[8]) {
    const BatchHead pair = batch_head(item / p.blocks.blocks(), p.heads);
    const BlockOrigin origin = p.blocks.origin(item % p.blocks.blocks());
    MHLA_CUDA_LOOP
    for (std::int32_t slot = row; slot < p.blocks.slots(); slot += kRows) {
      const std::int32_t token = p.blocks.token(origin, slot);
      if (token < 0) continue;
      const auto words = [&](const ConstTokenTensor& x) {
        return ptx::ld_global_nc_v4(x.head(pair) + token * x.token_stride + 16 * piece);
      };
      const ptx::Words4 dout = words(p.dout), o = words(p.out);
      const ptx::Words4 gate = p.norm.gated ? words(p.norm.gate) : ptx::Words4{};
      const float inverse =
          ptx::ld_global_nc_f32(p.inverse_norms + std::int64_t{item} * p.blocks.slots() + slot);
      MHLA_CUDA_UNROLL
      for (int i = 0; i < 4; ++i) {
        const float dx = ptx::low<T>(dout.x[i]), x = dx * ptx::low<T>(o.x[i]) * inverse;
        const float dy = ptx::high<T>(dout.x[i]), y = dy * ptx::high<T>(o.x[i]) * inverse;
        const float open_x = p.norm.gated ? silu(ptx::low<T>(gate.x[i])) : 1;
        const float open_y = p.norm.gated ? silu(ptx::high<T>(gate.x[i])) : 1;
        sums[2 * i] += dx != 0 ? x * open_x : 0;  // o may be infinite
        sums[2 * i + 1] += dy != 0 ? y * open_y : 0;
      }
    }
  }
};

}  // namespace mhla::cuda

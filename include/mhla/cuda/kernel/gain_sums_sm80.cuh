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
#include "mhla/cuda/tile/pieces.cuh"

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
      const auto load = [&](const ConstTokenTensor& x) {
        return Eight<T>::load(x.head(pair) + token * x.token_stride + kPieceBytes<T> * piece);
      };
      const Eight<T> douts = load(p.dout), outs = load(p.out);
      const Eight<T> gates = p.norm.gated ? load(p.norm.gate) : Eight<T>{};
      const float inverse =
          ptx::ld_global_nc_f32(p.inverse_norms + std::int64_t{item} * p.blocks.slots() + slot);
      float dout[8], o[8], gate[8];
      douts.to_floats(dout);
      outs.to_floats(o);
      gates.to_floats(gate);
      MHLA_CUDA_UNROLL
      for (int i = 0; i < 8; ++i) {
        const float open = p.norm.gated ? silu(gate[i]) : 1;
        sums[i] += dout[i] != 0 ? dout[i] * o[i] * inverse * open : 0;  // o may be infinite
      }
    }
  }
};

}  // namespace mhla::cuda

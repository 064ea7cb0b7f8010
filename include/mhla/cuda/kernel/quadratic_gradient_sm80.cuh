#pragma once

/// \file
/// All gradients of a bidirectional form over few tokens, in one kernel without summaries:
///
///     dN_t  = factor(den_t) dO_t,   c_t = -(dN_t . o_t)       dN rounded to T
///     A_tj  = phi(q_t) . phi(k_j)
///     G_tj  = m_(block of t)(block of j) (dN_t . v_j + c_t)    rounded to T
///     P_tj  = m_(block of t)(block of j) A_tj                  rounded to T
///
///     dq_t  = phi'(q_t) sum_j G_tj phi(k_j)        dv_j  = sum_t P_tj dN_t
///     dk_j  = phi'(k_j) sum_t G_tj phi(q_t)        dm_ib = sum of A_tj (dN_t . v_j + c_t)
///
/// den_t = phi(q_t) . z~_i with key sums z, in float. Without a denominator c_t = 0. A token whose
/// dO is all zero, or whose den_t is 0, has dN_t = 0 and c_t = 0.
///
/// If kCrossQuery, den_t is r_t of query_sums.cuh. Let query t be in slot w of block b. Then
///
///     G_tj  = m (dN_t . v_j) + ds_t [j in b],   ds_t = sum_i m_ib c_iw
///     dm_ib = sum of A_tj (dN_t . v_j) + sum_w s_bw c_iw
///
/// A thread block processes one pair at a time, with phi(Q), phi(K), V and dN in shared memory.
/// Each has up to 256 rows, with blocks padded to multiples of 8 rows. Each 8 x 8 product therefore
/// has a single coefficient m. A warp computes dq of 16 queries over all keys, then dk and dv of 16
/// keys over all queries. Warps exchange nothing, and A and dN V^T are computed twice. Meanwhile
/// rows of the next pair are prefetched into L2. dm is summed over the thread block's pairs in
/// order, which share a matrix. ordered_sums.cuh adds the thread blocks' parts.
///
/// 14 N^2 D flops per pair. Device memory: q, k, v, dO and o once, dq, dk and dv once. Shared
/// memory: kBytes of QuadraticGradientConfig.

#include <cstdint>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/kernel/quadratic_gradient_rows.cuh"
#include "mhla/cuda/kernel/quadratic_gradient_sm80_config.cuh"
#include "mhla/cuda/ptx/barrier.cuh"
#include "mhla/cuda/ptx/convert.cuh"
#include "mhla/cuda/ptx/copy_async.cuh"
#include "mhla/cuda/ptx/global.cuh"
#include "mhla/cuda/ptx/index.cuh"
#include "mhla/cuda/ptx/shared.cuh"
#include "mhla/cuda/tile/feature_map.cuh"
#include "mhla/cuda/tile/fragment.cuh"
#include "mhla/cuda/tile/outputs.cuh"
#include "mhla/cuda/tile/pieces.cuh"
#include "mhla/cuda/tile/product.cuh"
#include "mhla/cuda/tile/rows.cuh"
#include "mhla/cuda/tile/tokens.cuh"

namespace mhla::cuda {

template <class T, int D, bool kCrossQuery = false>
class QuadraticGradientSm80 {
  using Config = QuadraticGradientConfig<D, kCrossQuery>;
  using Shared = QuadraticGradientRows<T, D, kCrossQuery>;
  static_assert(Config::kFits, "rows fit into shared memory");

 public:
  using Params = QuadraticGradientParameters;
  static constexpr Arch kArchitecture = Config::kInstructionSet;
  static constexpr int kThreads = Config::kThreads;
  static constexpr int kSharedBytes = Config::kBytes;
  static constexpr int kBlocksPerMultiprocessor = 1;
  static constexpr int kRegisters = 255;

  static constexpr unsigned grid(const Params& p, int pairs) {
    return static_cast<unsigned>(Params::parts_of(pairs, p.multiprocessors));
  }

  MHLA_DEVICE void operator()(const Params& p) const {
    const Shared at = Shared::of_thread();
    const auto step = static_cast<std::int32_t>(ptx::nctaid_x());
    list_tokens<kThreads, Config::kRows>(at.query_tokens().begin, p.queries, at.thread);
    list_tokens<kThreads, Config::kRows>(at.key_tokens().begin, p.keys, at.thread);
    at.store_mixing(p);
    MHLA_CUDA_LOOP
    for (auto pair = static_cast<std::int32_t>(ptx::ctaid_x()); pair < p.pairs; pair += step) {
      ptx::bar_sync();  // lists are stored, and the previous pair's rows are read
      prepare(p, at, pair, pair + step);
      MHLA_CUDA_LOOP
      for (std::int32_t row = first_row(at); row < p.queries.rows(); row += kRowStep) {
        if (p.dq.data != nullptr || p.parts != nullptr) {
          multiply_queries(p, at, batch_head(pair, p.heads), row);
        }
      }
      MHLA_CUDA_LOOP
      for (std::int32_t row = first_row(at); row < p.keys.rows(); row += kRowStep) {
        if (p.dk.data != nullptr || p.dv.data != nullptr) {
          multiply_keys(p, at, batch_head(pair, p.heads), row);
        }
      }
    }
    ptx::bar_sync();
    if (p.parts != nullptr) write_part(p, at);
  }

 private:
  static constexpr int kTiles = D / 8;
  static constexpr std::int32_t kRowStep = 16 * Config::kWarps;

  static MHLA_DEVICE std::int32_t first_row(const Shared& at) {
    return static_cast<std::int32_t>(16 * at.warp);
  }

  /// Loads and maps the rows of a pair, and prefetches the next pair's into L2.
  static MHLA_DEVICE void prepare(const Params& p, const Shared& at, std::int32_t pair,
                                  std::int32_t next) {
    const BatchHead head = batch_head(pair, p.heads);
    at.load(p, head);
    const typename Shared::Outputs outputs = at.load_outputs(p, head);
    if (next < p.pairs) at.prefetch(p, batch_head(next, p.heads));
    ptx::cp_async_wait_group<0>();
    at.map_rows(p.query_map, at.queries(), at.query_tokens());
    at.map_rows(p.key_map, at.keys(), at.key_tokens());
    ptx::bar_sync();
    if (p.normalization.denominator != Denominator::kNone) at.sum_keys(p);
    at.weigh(p, outputs);
    ptx::bar_sync();
    if constexpr (kCrossQuery) {
      at.mix_weights(p);
      ptx::bar_sync();
    }
  }

  /// Computes dq of 16 queries, and their part of dm.
  static MHLA_DEVICE void multiply_queries(const Params& p, const Shared& at, BatchHead pair,
                                           std::int32_t row) {
    const Fragment<D> q = load_rows(at.queries(), row, at.lane);
    const Fragment<D> dn = load_rows(at.gradients(), row, at.lane);
    const auto query = row + static_cast<std::int32_t>(at.lane / 4);
    const auto weight_of = [&](std::int32_t t) {
      return ptx::ld_shared_f32(kCrossQuery ? at.own_weight(t) : at.weight(t));
    };
    const float c = weight_of(query), c_8 = weight_of(query + 8);
    const std::int32_t block = p.queries.block_of(row), block_8 = p.queries.block_of(row + 8);
    const std::int32_t last = p.keys.blocks.blocks() - 1;
    float dq[kTiles][4] = {};
    RowPair sums{0, 0};
    SlotCursor<8> key;
    MHLA_CUDA_LOOP
    for (std::int32_t first = 0; first < p.keys.rows(); first += 16) {
      float scores[2][4] = {}, gradients[2][4] = {};
      multiply_transposed<T>(scores, q, at.keys(), first, at.lane);
      multiply_transposed<T>(gradients, dn, at.values(), first, at.lane);
      MHLA_CUDA_UNROLL
      for (int j = 0; j < 2; ++j) {
        const std::int32_t b = key.block < last ? key.block : last;  // later rows are zeros
        const float m = ptx::ld_shared_f32(at.mixing(block, b));
        const float m_8 = ptx::ld_shared_f32(at.mixing(block_8, b));
        MHLA_CUDA_UNROLL
        for (int i = 0; i < 2; ++i) {
          float &g = gradients[j][i], &g_8 = gradients[j][i + 2];
          if constexpr (!kCrossQuery) g += c, g_8 += c_8;
          sums.x += scores[j][i] * g, sums.x_8 += scores[j][i + 2] * g_8;
          g *= m, g_8 *= m_8;
          if constexpr (kCrossQuery) g += b == block ? c : 0, g_8 += b == block_8 ? c_8 : 0;
        }
        key.advance(p.keys.blocks.slots());
        if (key.slot == 0) {
          if (p.parts != nullptr) add_sums(at, row, b, sums);
          sums = {0, 0};
        }
      }
      const Fragment<16> g = rounded<T>(gradients);
      multiply_step<T>(dq, g.x[0], g.x[1], g.x[2], g.x[3], at.keys(), first, 0, at.lane);
    }
    if (p.dq.data != nullptr) {
      write_inputs(at, dq, p.dq, pair, at.query_tokens(row), p.q, p.query_map);
    }
  }

  /// Adds the warp's sums of 8 rows, and of the next 8, to the sums of block b.
  static MHLA_DEVICE void add_sums(const Shared& at, std::int32_t row, std::int32_t b,
                                   RowPair sums) {
    const bool second = at.lane >= 16;
    float sum = second ? sums.x_8 : sums.x;
    sum += ptx::shfl_bfly(second ? sums.x : sums.x_8, 16);
    MHLA_CUDA_UNROLL
    for (std::uint32_t mask = 1; mask < 16; mask *= 2) sum += ptx::shfl_bfly(sum, mask);
    if (at.lane % 16 != 0) return;
    const std::uint32_t to = at.sum(row / 8 + (second ? 1 : 0), b);
    ptx::st_shared_f32(to, ptx::ld_shared_f32(to) + sum);
  }

  /// Computes dk and dv of 16 keys.
  static MHLA_DEVICE void multiply_keys(const Params& p, const Shared& at, BatchHead pair,
                                        std::int32_t row) {
    const Fragment<D> k = load_rows(at.keys(), row, at.lane);
    const Fragment<D> v = load_rows(at.values(), row, at.lane);
    const std::int32_t block = p.keys.block_of(row), block_8 = p.keys.block_of(row + 8);
    const std::int32_t last = p.queries.blocks.blocks() - 1;
    float dk[kTiles][4] = {}, dv[kTiles][4] = {};
    SlotCursor<8> query;
    MHLA_CUDA_LOOP
    for (std::int32_t first = 0; first < p.queries.rows(); first += 16) {
      float scores[2][4] = {}, gradients[2][4] = {};
      multiply_transposed<T>(scores, k, at.queries(), first, at.lane);
      multiply_transposed<T>(gradients, v, at.gradients(), first, at.lane);
      MHLA_CUDA_UNROLL
      for (int j = 0; j < 2; ++j) {
        const std::int32_t i = query.block < last ? query.block : last;
        const float m = ptx::ld_shared_f32(at.mixing(i, block));
        const float m_8 = ptx::ld_shared_f32(at.mixing(i, block_8));
        const std::int32_t t = first + 8 * j + static_cast<std::int32_t>(at.lane % 4 * 2);
        const ptx::Words2 c = ptx::ld_shared_v2(kCrossQuery ? at.own_weight(t) : at.weight(t));
        MHLA_CUDA_UNROLL
        for (int n = 0; n < 2; ++n) {
          scores[j][n] *= m, scores[j][n + 2] *= m_8;
          float &g = gradients[j][n], &g_8 = gradients[j][n + 2];
          const float weight = as_float(c.x[n]);
          if constexpr (kCrossQuery) {
            g = m * g + (i == block ? weight : 0);
            g_8 = m_8 * g_8 + (i == block_8 ? weight : 0);
          } else {
            g = m * (g + weight), g_8 = m_8 * (g_8 + weight);
          }
        }
        query.advance(p.queries.blocks.slots());
      }
      const Fragment<16> w = rounded<T>(scores), g = rounded<T>(gradients);
      multiply_step<T>(dv, w.x[0], w.x[1], w.x[2], w.x[3], at.gradients(), first, 0, at.lane);
      multiply_step<T>(dk, g.x[0], g.x[1], g.x[2], g.x[3], at.queries(), first, 0, at.lane);
    }
    const ListedTokens tokens = at.key_tokens(row);
    if (p.dk.data != nullptr) write_inputs(at, dk, p.dk, pair, tokens, p.k, p.key_map);
    if (p.dv.data != nullptr) {
      write_sums<T>(dv, {1, 1}, at.output(), p.dv.head(pair), p.dv.token_stride, tokens, at.lane);
    }
  }

  /// Writes 16 rows of dphi(x) times phi'(x). Both dphi(x) and the product are rounded.
  static MHLA_DEVICE void write_inputs(const Shared& at, const float (&sums)[kTiles][4],
                                       const TokenTensor& to, BatchHead pair,
                                       const ListedTokens& tokens, const ConstTokenTensor& x,
                                       const FeatureMap& map) {
    const auto tile = at.output();
    store_sums<T, kTiles>(sums, 0, {1, 1}, tile, 0, 0, at.lane);
    ptx::bar_warp_sync();
    const unsigned char* const inputs = x.head(pair);
    unsigned char* const rows = to.head(pair);
    for_pieces<32, typename Shared::Output>(tokens, at.lane, [&](auto row, auto piece, auto token) {
      if (token < 0) return;
      ptx::Words4 words = ptx::ld_shared_v4(tile.piece(row, piece));
      const ptx::Words4 input = ptx::ld_global_nc_v4(inputs + token * x.token_stride + 16 * piece);
      MHLA_CUDA_UNROLL
      for (int i = 0; i < 4; ++i) {
        words.x[i] =
            ptx::pack<T>(ptx::low<T>(words.x[i]) * derivative(map, ptx::low<T>(input.x[i])),
                         ptx::high<T>(words.x[i]) * derivative(map, ptx::high<T>(input.x[i])));
      }
      ptx::st_global_v4(rows + token * to.token_stride + 16 * piece, words);
    });
    ptx::bar_warp_sync();
  }

  /// Writes the thread block's part of dm: the sums of the rows of each block, in order.
  static MHLA_DEVICE void write_part(const Params& p, const Shared& at) {
    const std::int32_t rows = p.queries.blocks.blocks(), columns = p.keys.blocks.blocks();
    const std::int32_t tiles = p.queries.rows_of_block() / 8;
    const auto block = static_cast<std::int32_t>(ptx::ctaid_x());
    const std::int32_t of_matrix = static_cast<std::int32_t>(ptx::nctaid_x()) / p.matrices;
    const std::int32_t part = block % p.matrices * of_matrix + block / p.matrices;
    float* const to = p.parts + std::int64_t{part} * rows * columns;
    MHLA_CUDA_LOOP
    for (auto n = static_cast<std::int32_t>(at.thread); n < rows * columns; n += kThreads) {
      const std::int32_t i = n / columns, b = n % columns;
      float sum = 0;
      for (std::int32_t tile = i * tiles; tile < (i + 1) * tiles; ++tile) {
        sum += ptx::ld_shared_f32(at.sum(tile, b));
      }
      ptx::st_global_f32(to + n, sum);
    }
  }
};

}  // namespace mhla::cuda

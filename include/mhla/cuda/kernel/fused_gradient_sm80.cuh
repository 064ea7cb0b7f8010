#pragma once

/// \file
/// All gradients of a bidirectional form whose summaries fit into shared memory, in one kernel:
///
///     S_b   = sum_(j in b) phi(k_j) v_j^T          z_b   = sum_(j in b) phi(k_j)
///     S~_i  = sum_b m_ib S_b                       z~_i  = sum_b m_ib z_b
///
///     dN_t  = factor(den_t) dO_t                   den_t = phi(q_t) . z~_i,   dN rounded to T
///     c_t   = -factor(den_t) phi(q_t) . (S~_i dN_t)
///     dq_t  = phi'(q_t) (S~_i dN_t + c_t z~_i)
///     dS~_i = sum_(t in i) phi(q_t) dN_t^T         dz~_i = sum_(t in i) c_t phi(q_t)
///
///     dm_ib = sum over the matrix's pairs of <dS~_i, S_b> + dz~_i . z_b
///     dS_b  = sum_i m_ib dS~_i                     dz_b  = sum_i m_ib dz~_i
///     dk_j  = phi'(k_j) (dS_b v_j + dz_b)          dv_j  = dS_b^T phi(k_j)
///
/// c_t is -(dN_t . o_t), so outputs of the forward call are not read. Without a denominator c_t, z
/// and dz are left out. A token whose dO is all zero, or whose den_t is 0, has dN_t = 0 and
/// c_t = 0.
///
/// A thread block processes one pair at a time, in three parts:
///
///     1  Keys and values give S_b, one region of shared memory each. S is copied to scratch in
///        device memory for dm. Then S~ replaces it (region_mixing.cuh).
///     2  Queries and dO give dq. dS~_i replaces S~_i after the last query of block i. dm is the
///        product of dS~ with the copy of S. Then dS replaces dS~.
///     3  Keys and values are read again, and give dk and dv.
///
/// All tokens arrive through one ring of stages, from part to part and from pair to pair. The pairs
/// of a thread block share a matrix, and dm is summed over them in order. ordered_sums.cuh adds the
/// thread blocks' parts. Thread blocks reuse their scratch, which L2 can hold. If heads
/// have matrices of their own, each pair has a thread block and scratch.
///
/// 10 N D^2 flops per pair in products of tokens. Device memory: q, dO and dq once, k and v twice,
/// dk and dv once. Shared memory: kBytes of FusedGradientConfig. Denominators: kNone, kKeySum.

#include <cstdint>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/kernel/fused_gradient_mixing.cuh"
#include "mhla/cuda/kernel/fused_gradient_products.cuh"
#include "mhla/cuda/kernel/fused_gradient_sm80_config.cuh"
#include "mhla/cuda/kernel/fused_gradient_stages.cuh"
#include "mhla/cuda/kernel/region_mixing.cuh"
#include "mhla/cuda/ptx/barrier.cuh"
#include "mhla/cuda/ptx/convert.cuh"
#include "mhla/cuda/ptx/index.cuh"
#include "mhla/cuda/ptx/shared.cuh"
#include "mhla/cuda/tile/tokens.cuh"

namespace mhla::cuda {

/// \tparam kLimit  bytes of shared memory per thread block; they say for how many blocks there are
///                 regions
template <class T, int D, int kLimit = shared_limit(Arch::kSm80)>
class FusedGradientSm80 {
  using Config = FusedGradientConfig<D, kLimit>;
  using Stages = FusedGradientStages<T, D, kLimit>;
  using Products = FusedGradientProducts<T, D, kLimit>;
  using Ring = typename Stages::Ring;
  static_assert(Config::kFits, "summaries and tokens fit into shared memory");

 public:
  using Params = FusedGradientParameters;
  static constexpr Arch kArchitecture = Config::kInstructionSet;
  static constexpr int kThreads = Config::kThreads;
  static constexpr int kSharedBytes = Config::kBytes;
  static constexpr int kBlocksPerMultiprocessor = 1;

  static constexpr unsigned grid(const Params& p, int pairs) {
    return static_cast<unsigned>(Params::parts_of(pairs, p.multiprocessors));
  }

  MHLA_DEVICE void operator()(const Params& p) const {
    const Stages at = Stages::of_thread();
    const bool normalized = p.normalization.denominator == Denominator::kKeySum;
    const auto rows = static_cast<std::uint32_t>(p.query_blocks.blocks());
    const auto columns = static_cast<std::uint32_t>(p.key_blocks.blocks());
    const auto step = static_cast<std::int32_t>(ptx::nctaid_x());
    Ring ring = at.begin(p, Stages::kSummarise, static_cast<std::int32_t>(ptx::ctaid_x()), 0);
    if (at.thread < 8) ptx::st_shared_v4(at.zeros() + at.thread * 16, {});
    FusedMixingGradient<T, D, kLimit> dm{p, at, rows, columns, {}, 0};
    MHLA_CUDA_LOOP
    for (auto pair = static_cast<std::int32_t>(ptx::ctaid_x()); pair < p.pairs; pair += step) {
      const BatchHead head = batch_head(pair, p.heads);
      const MixingArray m = p.matrices == 1 ? p.mixing : p.mixing.of(head);
      summarize(p, at, ring);
      ptx::bar_sync();  // all summaries are stored
      if (p.parts != nullptr) {
        dm.keep_summaries();
        ptx::bar_sync();  // all summaries are kept
      }
      mix(at, {m.data, m.stride, 1}, rows, columns, normalized, Config::kSums, Config::kMixedSums);
      ptx::bar_sync();  // all mixtures are stored
      MHLA_CUDA_LOOP
      for (std::int32_t block = 0; block < p.query_blocks.blocks(); ++block) {
        Products::read_queries(p, at, ring, head, block);
      }
      ptx::bar_sync();  // all dS~ are stored
      if (p.parts != nullptr) {
        dm.add_products();
        ptx::bar_sync();  // all dS~ and z are read
      }
      if (p.wants_keys()) {
        mix(at, {m.data, 1, m.stride}, columns, rows, normalized, Config::kMixedSums,
            Config::kSums);
        ptx::bar_sync();  // all dS are stored
        MHLA_CUDA_LOOP
        for (std::int32_t block = 0; block < p.key_blocks.blocks(); ++block) {
          Products::read_keys(p, at, ring, head, block);
        }
      }
    }
    if (p.parts != nullptr) dm.write_part();
  }

 private:
  /// Elements of a matrix: data[i row + b column].
  struct Matrix {
    const float* data;
    std::int64_t row;
    std::int64_t column;
  };

  static MHLA_DEVICE void summarize(const Params& p, const Stages& at, Ring& ring) {
    const std::int32_t blocks = p.key_blocks.blocks(), slots = p.key_blocks.slots();
    const std::uint32_t ones = at.lane < 4 ? ptx::pack<T>(1, 1) : 0;  // in column 0
    MHLA_CUDA_LOOP
    for (std::int32_t block = 0; block < blocks; ++block) {
      float sums[Config::kColumnTiles][4] = {};
      float key_sums[4] = {};
      MHLA_CUDA_LOOP
      for (std::int32_t slot = 0; slot < slots; slot += Config::kRows) {
        const int stage = at.next(p, ring, [&](int arrived) { at.map_keys(p, arrived); });
        Products::add_tokens(at, stage, slots - slot, sums, [&](const ptx::Words4& a, int) {
          if (at.group() == 0) Products::multiply_column(key_sums, a, {{ones, ones}});
        });
      }
      if (!at.has_tile()) continue;
      Products::store_tile(at, static_cast<std::uint32_t>(block), sums, p.key_scale);
      if (at.group() == 0) Products::store_column(at, at.sum(block), key_sums);
    }
  }

  /// Mixes all regions and the vectors at `from`. Their mixtures are stored at `to`.
  static MHLA_DEVICE void mix(const Stages& at, const Matrix& m, std::uint32_t rows,
                              std::uint32_t columns, bool normalized, int from, int to) {
    const auto operand = load_mixing<T, 1>(m.data, m.row, rows, columns, at.lane, m.column);
    if (normalized) {
      VectorMixing<Config::kWarps, Config::kRegions, D> vectors{
          at.shared + static_cast<std::uint32_t>(from), at.warp, at.lane, {}};
      vectors.mix(m.data, m.row, rows, columns, m.column);
      vectors.vectors = at.shared + static_cast<std::uint32_t>(to);
      vectors.store(rows);
    }
    mix_regions<T, Config::kWarps>(at.regions(), operand, at.zeros(), rows, columns, at.warp,
                                   at.lane);
  }
};

}  // namespace mhla::cuda

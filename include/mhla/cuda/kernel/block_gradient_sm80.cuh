#pragma once

/// \file
/// Gradients of the tokens of a block, whose summaries are in device memory. One kernel reads
/// queries, another one keys:
///
///     queries   S~_i, z~_i -> dq_t, dS~_i, dz~_i     t in block i
///     keys      dS_b, dz_b -> dk_j, dv_j             j in block b
///
/// fused_gradient_sm80.cuh has the formulas. The kernels before and between them are those of the
/// forward call: summaries and their mixtures, and mixtures of dS~ and dz~ by m^T. Outputs of the
/// forward call are not read. From features and dN, without a denominator, the kernels make the
/// products of other forms (launch/block_gradient.cuh).
///
/// A thread block has one block of one pair: thread block pair * M + i along x. Its tokens arrive
/// through a ring of stages. dS~_i stays in registers until the last one has been added.
///
/// 4 N D^2 flops per pair in products of tokens. Device memory: queries: q, dO, S~ and z~ once, dq,
/// dS~ and dz~ once. Keys: k, v, dS and dz once, dk and dv once. Shared memory: kBytes of
/// FusedGradientConfig. Denominators: kNone, kKeySum.

#include <cstdint>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/kernel/fused_gradient_products.cuh"
#include "mhla/cuda/kernel/fused_gradient_sm80_config.cuh"
#include "mhla/cuda/kernel/fused_gradient_stages.cuh"
#include "mhla/cuda/kernel/occupancy.cuh"
#include "mhla/cuda/kernel/parameters.cuh"
#include "mhla/cuda/ptx/barrier.cuh"
#include "mhla/cuda/ptx/copy_async.cuh"
#include "mhla/cuda/ptx/global.cuh"
#include "mhla/cuda/ptx/index.cuh"
#include "mhla/cuda/ptx/shared.cuh"
#include "mhla/cuda/tile/tokens.cuh"

namespace mhla::cuda {

struct BlockGradientParameters {
  FusedGradientParameters of;  ///< tensors and blocks
  SummaryArray mixtures;       ///< S~ and z~ of query blocks, or dS and dz of key blocks
  SummaryArray gradients{};    ///< dS~ and dz~ of query blocks
};

/// \tparam kKeys  true: dk and dv, false: dq and dS~
template <class T, int D, bool kKeys>
class BlockGradientSm80 {
  static constexpr int kLimit = kBlockGradientLimit<D>;
  using Products = FusedGradientProducts<T, D, kLimit, 1>;
  using Config = typename Products::Config;
  using Stages = typename Products::Stages;

 public:
  using Params = BlockGradientParameters;
  static constexpr Arch kArchitecture = Arch::kSm80;
  static constexpr int kThreads = Config::kThreads;
  static constexpr int kSharedBytes = Config::kBytes;
  static constexpr int kBlocksPerMultiprocessor = resident_blocks(
      kThreads,
      kKeys ? 8 * Config::kOutTiles + 64 : 4 * (Config::kColumnTiles + Config::kOutTiles) + 56,
      kSharedBytes);

  static constexpr unsigned grid(const Params& p, int pairs) {
    return static_cast<unsigned>(pairs) * static_cast<unsigned>(blocks_of(p).blocks());
  }

  MHLA_DEVICE void operator()(const Params& p) const {
    ptx::griddepcontrol_wait();
    const Stages at = Stages::of_thread();
    const auto blocks = static_cast<std::uint32_t>(blocks_of(p).blocks());
    const std::int64_t item = ptx::ctaid_x();
    const auto pair = static_cast<std::int32_t>(ptx::ctaid_x() / blocks);
    const auto block = static_cast<std::int32_t>(ptx::ctaid_x() % blocks);
    const BatchHead head = batch_head(pair, p.of.heads);
    const auto region = at.regions().region(0);
    const ConsecutiveTokens rows{0, D};
    const std::uint32_t vector = (kKeys ? at.sum(0) : at.mixed_sum(0)) + 16 * at.thread;
    const bool has_vector =
        p.of.normalization.denominator == Denominator::kKeySum && at.thread < D / 4;
    copy_rows<kThreads>(region, p.mixtures.high + item * kBytes, 2 * D, rows, at.thread);
    if (has_vector) {
      ptx::cp_async_16(vector, p.mixtures.key_sum + item * D + 4 * at.thread, 16);
    }
    ptx::cp_async_commit_group();
    typename Stages::Ring ring =
        at.begin(p.of, kKeys ? Stages::kKeys : Stages::kQueries, pair, block);
    ptx::cp_async_wait_group<Config::kStages - 1>();
    ptx::bar_sync();  // the mixture has arrived
    if constexpr (kKeys) {
      Products::read_keys(p.of, at, ring, head, 0);
    } else {
      Products::read_queries(p.of, at, ring, head, 0);
      ptx::bar_sync();  // dS~ and dz~ are stored
      write_rows<kThreads>(region, p.gradients.high + item * kBytes, 2 * D, rows, at.thread);
      if (has_vector) {
        ptx::st_global_v4(p.gradients.key_sum + item * D + 4 * at.thread,
                          ptx::ld_shared_v4(vector));
      }
    }
  }

 private:
  static constexpr std::int64_t kBytes = 2 * D * D;  ///< of a summary

  static MHLA_HOST_DEVICE constexpr const TokenBlocks& blocks_of(const Params& p) {
    return kKeys ? p.of.key_blocks : p.of.query_blocks;
  }
};

}  // namespace mhla::cuda

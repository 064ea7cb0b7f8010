#pragma once

/// \file
/// A ring (ring.cuh) at the same place in each block of a cluster, whose slots any of them fills by
/// multicast copies: a slot is empty when the consumers of all blocks have released it, for then it
/// is empty everywhere. Each block's `full` counts the bytes that come to it, whoever sends them;
/// they may come before its own producer expects them.
///
/// All blocks go through the same slots. They meet when barriers are made, before the first copy,
/// and before they end (ptx/barrier.cuh: barrier_cluster).

#include <cstdint>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/ptx/barrier.cuh"
#include "mhla/cuda/ptx/mbarrier.cuh"
#include "mhla/cuda/tile/ring.cuh"

namespace mhla::cuda {

struct ClusterRing : Ring {
  std::uint32_t blocks;  ///< of the cluster, 1 where there is none

  /// Makes the barriers for `warps` warps of each block.
  MHLA_DEVICE void init_barriers(std::uint32_t warps) const { Ring::init_barriers(warps * blocks); }

  /// A warp gives the slot back to the producers of all blocks. All its threads call together.
  MHLA_DEVICE void consumer_release(RingCursor at, std::uint32_t lane) const {
    ptx::bar_warp_sync();
    if (lane < blocks) ptx::mbarrier_arrive_cluster(ptx::mapa(empty(at), lane));
  }
};

}  // namespace mhla::cuda

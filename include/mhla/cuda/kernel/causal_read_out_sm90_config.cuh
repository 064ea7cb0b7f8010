#pragma once

/// \file
/// Parameters, threads and shared memory of causal_read_out_sm90.cuh.

#include <cstdint>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/kernel/mixture_slot.cuh"
#include "mhla/cuda/kernel/parameters.cuh"
#include "mhla/cuda/kernel/persistent_sm90.cuh"
#include "mhla/cuda/ptx/tensor_copy.cuh"
#include "mhla/cuda/tile/token_boxes.cuh"

namespace mhla::cuda {

struct CausalReadOutSm90Parameters {
  /// Of the boxes of tiles of q, of the last tile of a block of q, of k, v, S~, its low part, and
  /// z~ that CausalReadOutSm90::prepare finds; those of boxes without a base are not read.
  TensorMap maps[7];
  CausalReadOutParameters stage;
  TokenBoxes q_boxes;
  TokenBoxes k_boxes;
  TokenBoxes v_boxes;
  std::int32_t pairs;
  std::int32_t multiprocessors;  ///< of the device
};

template <int D, int E, Precision P>
struct CausalReadOutSm90Config : PersistentConfig<D, E, D == 128> {
  static constexpr int kColumns = E / (D / 64);  // of O, of a warpgroup
  static constexpr int kMostRows = E == 256 ? 128 : 256;

  using Mixture = MixtureSlot<D, E, P>;
  static constexpr int kQueries = 2;  // slots of tiles of Q
  static constexpr int kQueryBytes = 64 * D * 2;
  static constexpr int kMostKeyValues = 8;

  /// How the rings share their memory.
  struct Slots {
    std::int32_t mixtures;
    std::int32_t key_values;  ///< 0: blocks are too large
    std::int32_t key_value_bytes;
  };

  /// For blocks of `rows` tokens: two mixtures if two slots of keys and values fit beside them.
  static MHLA_HOST_DEVICE constexpr Slots slots(std::int32_t rows) {
    const std::int32_t bytes = (rows + 63) / 64 * 64 * 2 * (D + E);
    const std::int32_t left =
        CausalReadOutSm90Config::kRingBytes - kQueries * kQueryBytes - Mixture::kBytes;
    const std::int32_t mixtures = left - Mixture::kBytes >= 2 * bytes ? 2 : 1;
    const std::int32_t fit = (left - (mixtures - 1) * Mixture::kBytes) / bytes;
    return {mixtures, left < 0 ? 0 : fit < kMostKeyValues ? fit : kMostKeyValues, bytes};
  }
};

}  // namespace mhla::cuda

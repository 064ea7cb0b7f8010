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
  /// Of the boxes that CausalReadOutSm90::prepare finds: of tiles of q and of the last tile of a
  /// block, the same of k and of v, then of S~, its low part, and z~; of a warp's rows of o and of
  /// the last ones of a block. Those of boxes without a base are not read.
  TensorMap maps[11];
  CausalReadOutParameters stage;
  TokenBoxes q_boxes;
  TokenBoxes k_boxes;
  TokenBoxes v_boxes;
  TokenBoxes o_boxes;
  std::int32_t pairs;
  std::int32_t multiprocessors;  ///< of the device
};

template <int D, int E, Precision P>
struct CausalReadOutSm90Config : PersistentConfig<D, E, D == 128> {
  static constexpr int kColumns = E / (D / 64);  // of O, of a warpgroup

  using Mixture = MixtureSlot<D, E, P>;
  static constexpr int kQueries = 2;  // slots of tiles of Q
  static constexpr int kQueryBytes = 64 * D * 2;
  static constexpr int kKeyValueBytes = 64 * (D + E) * 2;
  static constexpr int kMostKeyValues = 8;  // slots of tiles of K and V

  /// How many slots the rings have.
  struct Slots {
    std::int32_t mixtures;
    std::int32_t key_values;
  };

  /// For blocks of `tiles` tiles, of which all of K and V must fit: two mixtures if they do beside
  /// them, and not one alone.
  static MHLA_HOST_DEVICE constexpr Slots slots(std::int32_t tiles) {
    const auto fitting = [](std::int32_t mixtures) {
      const std::int32_t left =
          CausalReadOutSm90Config::kRingBytes - kQueries * kQueryBytes - mixtures * Mixture::kBytes;
      const std::int32_t fit = left < 0 ? 0 : left / kKeyValueBytes;
      return fit < kMostKeyValues ? fit : kMostKeyValues;
    };
    const std::int32_t beside_two = fitting(2);
    return beside_two >= 2 && beside_two >= tiles ? Slots{2, beside_two} : Slots{1, fitting(1)};
  }
};

}  // namespace mhla::cuda

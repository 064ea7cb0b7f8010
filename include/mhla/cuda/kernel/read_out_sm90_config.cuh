#pragma once

/// \file
/// Parameters, threads and shared memory of read_out_sm90.cuh.

#include <cstdint>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/kernel/mixture_slot.cuh"
#include "mhla/cuda/kernel/parameters.cuh"
#include "mhla/cuda/kernel/persistent_sm90.cuh"
#include "mhla/cuda/ptx/tensor_copy.cuh"
#include "mhla/cuda/tile/ring.cuh"
#include "mhla/cuda/tile/tensor_box.cuh"
#include "mhla/cuda/tile/token_boxes.cuh"
#include "mhla/cuda/tile/width.cuh"

namespace mhla::cuda {

struct ReadOutSm90Parameters {
  /// Tensor maps of the boxes that ReadOutSm90::prepare finds: q, S~, its low part, z~, o. Maps of
  /// boxes without a base are not read.
  TensorMap maps[5];
  ReadOutParameters stage;
  TokenBoxes q_boxes;
  TokenBoxes o_boxes;  ///< has as many slots as q_boxes
  std::int32_t pairs;
  std::int32_t multiprocessors;  ///< multiprocessors of the device
};

template <int D, int E, Precision P>
struct ReadOutSm90Config : PersistentConfig<D, E, (Width<D>::kPanelCount > 1)> {
  static constexpr int kMostRows = 256 / Width<E>::kParts;  // slots per box
  static constexpr int kColumns = Width<E>::kPart;          // columns per product
  static constexpr int kPanelColumns =
      Width<E>::kPanelColumns;  // columns per panel of a box of Q or O

  using Mixture = MixtureSlot<D, E, P>;
  static constexpr int kMostMixtures = Width<D>::kPanelCount > 1 ? 2 : 3;
  static constexpr int kMostBoxes = 16;

  // The rings take the place of the warps' staging tiles, which this kernel does not use.
  static constexpr int kRingBytes =
      ReadOutSm90Config::kSharedBytes - ReadOutSm90Config::kBarrierBytes;
  static constexpr int kOriginBytes = 32;  // BoxOrigin in o, per box
  static constexpr int kOrigins = (kMostMixtures + kMostBoxes) * int{Ring::kBarrierBytes};
  static_assert(kOrigins + kMostBoxes * kOriginBytes <= ReadOutSm90Config::kBarrierBytes);
  static_assert(Mixture::kBytes + kMostRows * E * 2 <= kRingBytes, "a box fits beside a mixture");

  /// Numbers of slots of the rings.
  struct Slots {
    std::int32_t mixtures;
    std::int32_t boxes;
  };

  /// Slots for boxes of `bytes` bytes of O, `count` per block. Mixtures get as many slots as leave
  /// space for two boxes. Boxes get slots for the blocks of these mixtures and one more, so that
  /// outputs leave when a block ends.
  static MHLA_HOST_DEVICE constexpr Slots slots(std::int32_t bytes, std::int32_t count) {
    std::int32_t mixtures = kMostMixtures;
    while (mixtures > 1 && kRingBytes - mixtures * Mixture::kBytes < 2 * bytes) --mixtures;
    std::int32_t boxes = (kRingBytes - mixtures * Mixture::kBytes) / bytes;
    if (boxes > mixtures * count + 1) boxes = mixtures * count + 1;
    return {mixtures, boxes < kMostBoxes ? boxes : kMostBoxes};
  }

  /// Implements ReadOutSm90::prepare.
  static constexpr bool prepare(const ReadOutParameters& stage, std::int32_t pairs,
                                std::int32_t multiprocessors, ReadOutSm90Parameters& p,
                                TensorBox (&boxes)[5]) {
    const std::int32_t heads = stage.heads, batch = pairs / heads;
    p.stage = stage;
    p.pairs = pairs;
    p.multiprocessors = multiprocessors;
    Mixture::boxes(stage.mixtures, stage.normalization.denominator, stage.blocks.blocks(), pairs,
                   boxes + 1);
    return TokenBoxes::find(stage.blocks, stage.q, D, heads, batch, kMostRows, p.q_boxes,
                            boxes[0]) &&
           TokenBoxes::find(stage.blocks, stage.o, E, heads, batch, kMostRows, p.o_boxes, boxes[4]);
  }
};

}  // namespace mhla::cuda

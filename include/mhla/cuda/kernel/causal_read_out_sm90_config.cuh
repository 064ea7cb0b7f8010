#pragma once

/// \file
/// Parameters, threads and shared memory of causal_read_out_sm90.cuh.

#include <cstdint>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/kernel/mixture_slot.cuh"
#include "mhla/cuda/kernel/parameters.cuh"
#include "mhla/cuda/kernel/persistent_sm90.cuh"
#include "mhla/cuda/ptx/tensor_copy.cuh"
#include "mhla/cuda/tile/ring.cuh"
#include "mhla/cuda/tile/tensor_box.cuh"
#include "mhla/cuda/tile/token_blocks.cuh"
#include "mhla/cuda/tile/token_boxes.cuh"
#include "mhla/cuda/tile/width.cuh"

namespace mhla::cuda {

struct CausalReadOutSm90Parameters {
  /// Tensor maps of the boxes that CausalReadOutSm90::prepare finds. Tiles of q and the last tile
  /// of a block have a map each, and likewise those of k and v. Then come S~, its low part and z~,
  /// a warp's rows of o, and the last rows of a block of o. Maps of boxes without a base are not
  /// read.
  TensorMap maps[11];
  CausalReadOutParameters stage;
  TokenBoxes q_boxes;
  TokenBoxes k_boxes;
  TokenBoxes v_boxes;
  TokenBoxes o_boxes;
  std::int32_t pairs;
  std::int32_t multiprocessors;  ///< multiprocessors of the device
};

template <int D, int E, Precision P>
struct CausalReadOutSm90Config : PersistentConfig<D, E, (Width<D>::kPanelCount > 1)> {
  static constexpr int kColumns = E / Width<D>::kPanelCount;  // columns of O per warpgroup

  using Mixture = MixtureSlot<D, E, P>;
  /// True if a warpgroup may have all columns of O.
  static constexpr bool kWhole = Width<D>::kPanelCount > 1 && Width<E>::kParts == 1;
  static constexpr int kQueries = kWhole ? 3 : 2;  // slots for tiles of Q
  static constexpr int kQueryBytes = 64 * D * 2;
  static constexpr int kKeyValueBytes = 64 * (D + E) * 2;
  static constexpr int kMostKeyValues = 8;  // slots for tiles of K and V

  // After the barriers: sums of squares of 64 rows of both warpgroups.
  static constexpr int kSquares = 512;
  static_assert((2 + kQueries + kMostKeyValues) * Ring::kBarrierBytes <= kSquares);
  static_assert(kSquares + 512 <= CausalReadOutSm90Config::kBarrierBytes);

  /// Returns true if the two warpgroups alternate, each with all columns of O, instead of sharing
  /// each tile's columns. Both then have tiles, and registers for so many sums.
  static MHLA_HOST_DEVICE constexpr bool by_turns(std::int32_t tiles) {
    return kWhole && tiles > 1;
  }
  /// Returns true if a warpgroup takes the n-th tile, counted from the last one: 0, 3, 4, 7.. or 1,
  /// 2, 5, 6... Both multiply about as many tiles of keys.
  static MHLA_HOST_DEVICE constexpr bool takes(std::uint32_t group, std::int32_t n) {
    return (static_cast<std::uint32_t>(n) + 1) / 2 % 2 == group;
  }

  /// Numbers of slots of the rings.
  struct Slots {
    std::int32_t mixtures;
    std::int32_t key_values;
  };

  /// Slots for blocks of `tiles` tiles, of which all K and V must fit. There are two slots for
  /// mixtures if they also fit, otherwise one.
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

  /// Implements CausalReadOutSm90::prepare.
  static constexpr bool prepare(const CausalReadOutParameters& stage, std::int32_t pairs,
                                std::int32_t multiprocessors, CausalReadOutSm90Parameters& p,
                                TensorBox (&boxes)[11]) {
    const TokenBlocks& blocks = stage.blocks;
    const std::int32_t rows = blocks.slots(), heads = stage.heads, batch = pairs / heads;
    if (blocks.frames() * blocks.rows() != 1 || rows != blocks.block_columns()) return false;
    const std::int32_t tiles = (rows + 63) / 64;
    if (slots(tiles).key_values < tiles) return false;
    p.stage = stage;
    p.pairs = pairs;
    p.multiprocessors = multiprocessors;
    if (!TokenBoxes::find(blocks, stage.q, D, heads, batch, rows, p.q_boxes, boxes[0]) ||
        !TokenBoxes::find(blocks, stage.k, D, heads, batch, rows, p.k_boxes, boxes[2]) ||
        !TokenBoxes::find(blocks, stage.v, E, heads, batch, rows, p.v_boxes, boxes[4]) ||
        !TokenBoxes::find(blocks, stage.o, E, heads, batch, rows, p.o_boxes, boxes[9])) {
      return false;
    }
    for (int i = 0; i < 6; i += 2) TokenBoxes::in_tiles(rows, 64, boxes[i], boxes[i + 1]);
    TokenBoxes::in_tiles(rows, 16, boxes[9], boxes[10]);
    Mixture::boxes(stage.mixtures, stage.normalization.denominator, blocks.blocks(), pairs,
                   boxes + 6);
    return true;
  }
};

}  // namespace mhla::cuda

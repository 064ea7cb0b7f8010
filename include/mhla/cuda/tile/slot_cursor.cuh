#pragma once

/// \file
/// A walk over the slots of all blocks, so many at a time of one block.

#include <cstdint>

#include "mhla/cuda/arch.cuh"

namespace mhla::cuda {

/// Slots slot.. slot + kStep - 1 of a block.
template <int kStep>
struct SlotCursor {
  std::int32_t block = 0;
  std::int32_t slot = 0;

  /// To the next, where blocks have `slots` slots.
  MHLA_HOST_DEVICE constexpr void advance(std::int32_t slots) {
    slot += kStep;
    if (slot >= slots) {
      slot = 0;
      ++block;
    }
  }
};

}  // namespace mhla::cuda

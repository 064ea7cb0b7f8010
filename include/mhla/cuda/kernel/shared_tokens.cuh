#pragma once

/// \file
/// Tokens of kernels whose rows have eight threads each: a thread block has up to 64 slots of a
/// block of one pair.

#include <cstdint>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/ptx/index.cuh"
#include "mhla/cuda/tile/token_blocks.cuh"
#include "mhla/cuda/tile/tokens.cuh"

namespace mhla::cuda {

/// \tparam kThreads  threads of a thread block; eight share a token
template <int kThreads>
class SharedTokens {
  static constexpr std::int32_t kSlots = 64;

 public:
  /// Number of thread blocks.
  static constexpr unsigned grid(const TokenBlocks& blocks, int pairs) {
    return static_cast<unsigned>(pairs) * static_cast<unsigned>(blocks.blocks()) * parts(blocks);
  }

  std::uint32_t sharer;  ///< index of the thread among those of its token
  std::uint32_t item;    ///< index of (pair, block)
  BatchHead pair;

  MHLA_DEVICE SharedTokens(const TokenBlocks& blocks, std::int32_t heads)
      : sharer(ptx::tid_x() % 8),
        item(ptx::ctaid_x() / parts(blocks)),
        pair(batch_head(
            static_cast<std::int32_t>(item / static_cast<std::uint32_t>(blocks.blocks())), heads)),
        blocks_(blocks),
        origin_(blocks.origin(
            static_cast<std::int32_t>(item % static_cast<std::uint32_t>(blocks.blocks())))) {}

  /// Calls visit(slot, token) for each slot, in all threads together. The token is -1 where the
  /// slot has none.
  template <class Visit>
  MHLA_DEVICE void for_each(const Visit& visit) const {
    const auto begin = static_cast<std::int32_t>(ptx::ctaid_x() % parts(blocks_)) * kSlots;
    MHLA_CUDA_LOOP
    for (std::int32_t pass = 0; pass < kSlots && begin + pass < blocks_.slots();
         pass += kThreads / 8) {
      const std::int32_t slot = begin + pass + static_cast<std::int32_t>(ptx::tid_x() / 8);
      visit(slot, slot < blocks_.slots() ? blocks_.token(origin_, slot) : -1);
    }
  }

 private:
  /// Thread blocks per block of tokens.
  static MHLA_HOST_DEVICE constexpr unsigned parts(const TokenBlocks& blocks) {
    return (static_cast<unsigned>(blocks.slots()) - 1) / kSlots + 1;
  }

  const TokenBlocks& blocks_;
  BlockOrigin origin_;
};

}  // namespace mhla::cuda

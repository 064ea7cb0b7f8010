#pragma once

/// \file
/// Parameters, threads and shared memory of quadratic_sm90.cuh.

#include <cstdint>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/kernel/parameters.cuh"
#include "mhla/cuda/kernel/persistent_sm90.cuh"
#include "mhla/cuda/ptx/mbarrier.cuh"
#include "mhla/cuda/ptx/tensor_copy.cuh"
#include "mhla/cuda/tile/ring.cuh"
#include "mhla/cuda/tile/token_blocks.cuh"
#include "mhla/cuda/tile/token_boxes.cuh"
#include "mhla/cuda/tile/width.cuh"

namespace mhla::cuda {

/// Numbers of slots of the rings, which share memory with the table of m.
struct QuadraticSlots {
  std::int32_t queries;     ///< slots for strips of Q
  std::int32_t key_values;  ///< slots for K and V; fewer than 2 if the table is too large
};

struct QuadraticSm90Parameters {
  TensorMap maps[3];  ///< maps of the boxes of q, k and v that prepare() finds
  DirectParameters stage;
  TokenBlocks strips;  ///< strips of queries, in sequence order
  TokenBlocks parts;   ///< parts of keys, one per slot
  TokenBoxes q_boxes;
  TokenBoxes k_boxes;
  TokenBoxes v_boxes;
  QuadraticSlots slots;
  std::int32_t pairs;
  std::int32_t multiprocessors;  ///< multiprocessors of the device
};

/// Barriers of phi(K), one per slot of keys and values. A phase ends when all warps have computed
/// their parts of phi(K).
struct KeyFeatures {
  std::uint32_t barriers;  ///< shared address, 8 bytes per slot
  std::uint32_t count;

  MHLA_DEVICE std::uint32_t all_here(RingCursor at) const { return barriers + 8 * at.slot; }
  MHLA_DEVICE void init_barriers(std::uint32_t warps) const {
    for (std::uint32_t i = 0; i < count; ++i) ptx::mbarrier_init(all_here({i, 0}), warps);
  }
};

template <int D, int E>
struct QuadraticSm90Config : PersistentConfig<D, E, true, Width<D>::kPanelCount == 1 ? 16 : 8> {
  static constexpr int kQueries = 64 * QuadraticSm90Config::kWarpgroups;  // most queries per strip
  static constexpr int kKeys = 64;                                        // keys per slot
  static constexpr std::uint32_t kPanelBytes = kKeys * 128;
  static constexpr int kKeyValueBytes = kKeys * 2 * (D + E);
  static constexpr int kMostKeyValues = 16;
  static_assert((2 + kMostKeyValues) * (Ring::kBarrierBytes + 8) <=
                QuadraticSm90Config::kBarrierBytes);

  /// Queries per strip. Strips are shorter if queries or, with `at_least` strips, items are few.
  static constexpr std::int32_t strip_rows(std::int32_t queries, std::int64_t pairs,
                                           std::int64_t at_least) {
    std::int32_t rows = kQueries;
    while (rows > 64 && (queries <= rows / 2 || pairs * ((queries - 1) / rows + 1) < at_least)) {
      rows /= 2;
    }
    return rows;
  }

  /// Slots for strips of `rows` queries: two strips if three slots of keys and values fit beside
  /// them, otherwise one.
  static constexpr QuadraticSlots slots(std::int32_t rows, std::int64_t table_bytes) {
    const std::int32_t query_bytes = rows * 2 * D;
    const std::int64_t left = QuadraticSm90Config::kRingBytes - table_bytes;
    const std::int32_t queries = left - 2 * query_bytes >= 3 * kKeyValueBytes ? 2 : 1;
    const std::int64_t fit = (left - queries * query_bytes) / kKeyValueBytes;
    return {queries, static_cast<std::int32_t>(fit < kMostKeyValues ? fit : kMostKeyValues)};
  }
};

}  // namespace mhla::cuda

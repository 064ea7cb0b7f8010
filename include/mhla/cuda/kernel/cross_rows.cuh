#pragma once

/// \file
/// The exchange of query_sums.cuh where a thread block processes heads one after another.

#include <cstdint>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/kernel/key_mixing.cuh"
#include "mhla/cuda/kernel/parameters.cuh"
#include "mhla/cuda/kernel/query_sums.cuh"
#include "mhla/cuda/ptx/barrier.cuh"
#include "mhla/cuda/ptx/shared.cuh"
#include "mhla/cuda/tile/rows.cuh"

namespace mhla::cuda {

/// Shared memory for sums of up to kQueries queries: s of two heads, and the places of queries,
/// which would need registers. One head's s may be stored while the other's is read.
/// \tparam kThreads  threads that call together; barrier 1 is theirs
template <int kThreads, int kQueries>
struct CrossRows {
  static constexpr int kSums = 16 * kQueries;
  static constexpr int kBytes = 2 * kSums + 4 * kQueries;

  std::uint32_t begin;  ///< shared address

  /// Stores the places, and the bits of own keys beside the table of m. A barrier must follow.
  MHLA_DEVICE void store(const DirectParameters& p, const KeyMixing& mixing,
                         std::uint32_t thread) const {
    mixing.store_own_keys(p.key_blocks, thread, kThreads);
    const auto query = static_cast<std::int32_t>(thread);
    if (query < kQueries) ptx::st_shared(place(query), QueryPlace::of(p.query_blocks, query).bits);
  }

  /// Replaces a thread's parts of s by r, for queries first + lane / 4 (x) and 8 later (y). Warps
  /// without queries call sync().
  /// \param second  false and true in turn
  MHLA_DEVICE void exchange(const DirectParameters& p, BatchHead pair, bool second,
                            std::int32_t first, std::uint32_t lane, float& x, float& y) const {
    const QuerySums sums{begin + (second ? kSums : 0), p.query_blocks.blocks()};
    const std::uint32_t from = place(first + static_cast<std::int32_t>(lane / 4));
    const QueryPlaces rows{{{ptx::ld_shared(from)}, {ptx::ld_shared(from + 32)}}};
    sums.store(rows, {x, y}, lane);
    sync();  // s of all queries is here, and the previous head's is read
    const RowPair r = over_row(sums.mixed(p.mixing.of(pair), rows, lane));
    x = r.x, y = r.x_8;
  }
  static MHLA_DEVICE void sync() { ptx::bar_sync(1, kThreads); }

 private:
  MHLA_DEVICE std::uint32_t place(std::int32_t query) const {
    return begin + 2 * kSums + 4 * static_cast<std::uint32_t>(query);
  }
};

}  // namespace mhla::cuda

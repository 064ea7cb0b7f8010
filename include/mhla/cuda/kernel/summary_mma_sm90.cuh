#pragma once

/// \file
/// Summary stage for rows that are not panels, by tensor copies and mma.sync: S_b and z_b of every
/// block of tokens:
///
///     S_b = sum_{t in b} phi(k_t) v_t^T     [D, E], times a power of two and rounded to T, or
///                                           as high + low
///     z_b = sum_{t in b} phi(k_t)           [D] floats, of the rounded phi(k_t)
///
/// A thread block stays on its multiprocessor and processes items, a block of tokens of a pair
/// each. A producer thread loads boxes of up to 64 slots (tile/token_boxes.cuh) into slots of a
/// ring. Boxes of K and V alternate, with rows of 144 bytes, not swizzled. Five warps compute 16
/// rows of S_b each, the last one eight. Rows after a box, up to a multiple of 16, are zeroed once
/// and never loaded.
///
/// wgmma would need V in panels of 64 columns, of whose 128 columns 56 are empty, and a second
/// warpgroup for eight rows of S. The tensor cores wait for memory here anyway.
///
///     160 + 32 threads, 2 thread blocks per multiprocessor, 36 sums per thread
///
/// Shared memory: the ring, 2304 bytes per warp, from which S_b is stored, 16 bytes of barriers per
/// slot.
/// Device memory: K and V once, S and z once.
/// Source: arXiv:2601.07832, section 4.1, eq. (3).

#include <cstdint>
#include <type_traits>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/kernel/parameters.cuh"
#include "mhla/cuda/kernel/persistent_sm90.cuh"
#include "mhla/cuda/kernel/summary_rows.cuh"
#include "mhla/cuda/kernel/summary_sm90.cuh"
#include "mhla/cuda/kernel/widths.cuh"
#include "mhla/cuda/ptx/global.cuh"
#include "mhla/cuda/ptx/shared.cuh"
#include "mhla/cuda/ptx/tensor_copy.cuh"
#include "mhla/cuda/tile/outputs.cuh"
#include "mhla/cuda/tile/ring.cuh"
#include "mhla/cuda/tile/token_boxes.cuh"
#include "mhla/cuda/tile/tokens.cuh"

namespace mhla::cuda {

template <int D, int E>
struct SummaryMmaSm90Config : PersistentConfig<D, E, false, (D + 15) / 16> {
  static_assert(Widths<D, E>::kTensorCopies, "kernels of sm_80 make other summaries");
  static constexpr std::int32_t kMostRows = 64;  // rows per box
  static constexpr std::uint32_t kMostSlots = 64;
  static constexpr std::uint32_t kRowBytes = 2 * D;
  static_assert(kMostSlots * Ring::kBarrierBytes <= SummaryMmaSm90Config::kBarrierBytes);
};

template <class T, int D, int E, Precision P>
struct SummaryMmaSm90 : SummarySm90Launch<D, E, SummaryMmaSm90Config<D, E>> {
  using Launch = SummarySm90Launch<D, E, SummaryMmaSm90Config<D, E>>;
  using Launch::kThreads;
  using typename Launch::Config, typename Launch::Params;

  MHLA_DEVICE void operator()(const Params& p) const {
    const Ring ring = ring_of(p);
    run_persistent<Config>(
        [&](std::uint32_t thread) {
          if (thread < 2) ptx::prefetch_tensormap(p.maps[thread]);
          zero_rows_behind(p, ring, thread);
        },
        [&] { load(p, ring); },
        [&](std::uint32_t thread) { read(p, ring, thread / 32, thread % 32); }, ring);
  }

 private:
  using Launch::ring_of;
  using Sums = SummaryRows<T, D, E>;

  /// Zeroes the rows of slots that no box fills.
  static MHLA_DEVICE void zero_rows_behind(const Params& p, const Ring& ring,
                                           std::uint32_t thread) {
    const std::uint32_t filled = static_cast<std::uint32_t>(p.k_boxes.rows()) * Config::kRowBytes;
    MHLA_CUDA_LOOP
    for (std::uint32_t slot = 0; slot < ring.count; ++slot) {
      for (std::uint32_t at = filled + thread * 16; at < ring.slot_bytes; at += kThreads * 16) {
        ptx::st_shared_v4(ring.slot({slot, 0}) + at, {});
      }
    }
  }

  static MHLA_DEVICE void load(const Params& p, const Ring& ring) {
    const std::uint32_t bytes = static_cast<std::uint32_t>(p.k_boxes.rows()) * Config::kRowBytes;
    RingCursor at;
    const auto load_box = [&](int map, const TokenBoxes& boxes, const Item& item,
                              std::int32_t box) {
      ring.producer_acquire(at, bytes);
      ptx::cp_async_bulk_tensor(ring.slot(at), p.maps[map],
                                boxes.origin(item.origin, item.head, box, 0), ring.full(at));
      at = at.after(1, ring.count);
    };
    for_items(p.stage.blocks, p.pairs, p.stage.heads, [&](const Item& item) {
      MHLA_CUDA_LOOP
      for (std::int32_t box = 0; box < p.k_boxes.count(); ++box) {
        load_box(0, p.k_boxes, item, box);
        load_box(1, p.v_boxes, item, box);
      }
    });
  }

  /// Computes rows 16 warp.. 16 warp + 15 of S.
  static MHLA_DEVICE void read(const Params& p, const Ring& ring, std::uint32_t warp,
                               std::uint32_t lane) {
    const std::int32_t rows = p.k_boxes.rows();
    RingCursor at;
    for_items(p.stage.blocks, p.pairs, p.stage.heads, [&](const Item& item) {
      Sums sums{};
      MHLA_CUDA_LOOP
      for (std::int32_t box = 0; box < p.k_boxes.count(); ++box) {
        ring.consumer_wait<2>(at);
        sums.add_box(ring, at, warp, {p.stage.blocks, item.origin, box * rows, rows}, p.stage.map,
                     lane);
        ring.consumer_release<2>(at, lane);
        at = at.after(2, ring.count);
      }
      write(p, item, sums, warp, lane);
    });
  }

  static MHLA_DEVICE void write(const Params& p, const Item& item, Sums& sums, std::uint32_t warp,
                                std::uint32_t lane) {
    const SummaryArray& out = p.stage.out;
    const std::int64_t row =  // of [pairs, M, D]
        (out.first(item.pair, p.stage.blocks.blocks()) + item.block) * D + 16 * warp;
    const auto count = static_cast<std::int32_t>(D - 16 * warp);  // rows left
    if (out.key_sum != nullptr && lane % 4 == 0) {
      ptx::st_global_f32(out.key_sum + row + lane / 4, sums.z[0][0]);
      if (count > 8) ptx::st_global_f32(out.key_sum + row + lane / 4 + 8, sums.z[0][2]);
    }
    const ConsecutiveTokens rows{0, count};
    scale_sums(sums.s[0], out.scale);
    const auto tile = Config::tile(warp);
    write_sums<T>(sums.s[0], {1, 1}, tile, out.high + row * (2 * E), 2 * E, rows, lane);
    if constexpr (P == Precision::kPair) {
      keep_rest<T>(sums.s[0]);
      write_sums<T>(sums.s[0], {1, 1}, tile, out.low + row * (2 * E), 2 * E, rows, lane);
    }
  }
};

/// The summary kernel of sm_90a for any widths.
template <class T, int D, int E, Precision P, bool kRotary = false>
using CopyingSummary = std::conditional_t<Widths<D, E>::kWgmma, SummarySm90<T, D, E, P, kRotary>,
                                          SummaryMmaSm90<T, D, E, P>>;

}  // namespace mhla::cuda

#pragma once

/// \file
/// Summary stage by tensor copies and wgmma: S_b and z_b of every block of tokens:
///
///     S_b = sum_{t in b} phi(k_t) v_t^T     [D, E], times a power of two and rounded to T, or
///                                           as high + low; kRotary rotates this phi(k_t)
///     z_b = sum_{t in b} phi(k_t)           [D] floats, of the rounded phi(k_t)
///
/// A thread block stays on its multiprocessor and takes items pair * M + b in steps of the grid. A
/// producer thread loads a block of tokens as a few boxes (tile/token_boxes.cuh). A box has D / 64
/// panels of K and E / 64 of V, 64 channels each, every panel in a slot of a ring. The ring has as
/// many slots as fit, so that the next items are loaded while sums are written. Warpgroup g
/// computes rows 64 g.. 64 g + 63 of S_b:
///
///     rows 64 g.. of S_b += phi(K panel g)^T (A, in registers) V panels (B, in place)
///
/// with 16 slots per step, while phi of the next 16 is computed. If the rows of a box are no
/// multiple of 16, the rows after them are zeroed once and never loaded. The sums z are products
/// with a column of ones, by mma.sync from the same registers. The column is 0 for empty slots,
/// since phi(0) need not be 0.
///
///     (D, E)        threads      per multiprocessor    sums per thread
///     (64, 64)      128 + 32     2 thread blocks       32
///     (128, 128)    256 + 32     1                     64
///     (128, 256)    256 + 128    1                     128
///
/// Shared memory: the ring, 2048 bytes per warp, from which S_b is stored, 16 bytes of barriers per
/// slot. Device memory: K and V once, S and z once; S and z stay longer in L2.
/// Source: arXiv:2601.07832, section 4.1, eq. (3).

#include <cstdint>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/kernel/parameters.cuh"
#include "mhla/cuda/kernel/persistent_sm90.cuh"
#include "mhla/cuda/kernel/summary_rows.cuh"
#include "mhla/cuda/ptx/global.cuh"
#include "mhla/cuda/ptx/mma.cuh"
#include "mhla/cuda/ptx/shared.cuh"
#include "mhla/cuda/ptx/tensor_copy.cuh"
#include "mhla/cuda/ptx/wgmma.cuh"
#include "mhla/cuda/tile/fragment.cuh"
#include "mhla/cuda/tile/layout.cuh"
#include "mhla/cuda/tile/outputs.cuh"
#include "mhla/cuda/tile/ring.cuh"
#include "mhla/cuda/tile/rotary.cuh"
#include "mhla/cuda/tile/token_boxes.cuh"
#include "mhla/cuda/tile/width.cuh"

namespace mhla::cuda {

struct SummarySm90Parameters {
  TensorMap maps[2];  ///< maps of the boxes of k and v that prepare() finds
  SummaryParameters stage;
  TokenBoxes k_boxes;
  TokenBoxes v_boxes;
  std::int32_t pairs;
  std::int32_t multiprocessors;  ///< multiprocessors of the device
};

template <int D, int E>
struct SummarySm90Config : PersistentConfig<D, E, (Width<E>::kParts > 1)> {
  static constexpr int kPanels = (D + E) / 64;              // panels per box: K, then V
  static constexpr int kMostRows = 256 / Width<E>::kParts;  // rows per box
  static constexpr std::uint32_t kMostSlots = 64;
  static constexpr std::uint32_t kRowBytes = 128;  // bytes per row of a panel
  static_assert(kMostSlots * Ring::kBarrierBytes <= SummarySm90Config::kBarrierBytes);
  static_assert(kPanels * kMostRows * 128 <= SummarySm90Config::kRingBytes,
                "the ring holds all panels of a box");
};

/// Launch parameters of the summary kernels on sm_90a, and their ring.
template <int D, int E, class Config_>
struct SummarySm90Launch {
  using Params = SummarySm90Parameters;
  using Config = Config_;
  static constexpr Arch kArchitecture = Arch::kSm90a;
  static constexpr int kThreads = Config::kThreads;
  static constexpr int kSharedBytes = Config::kSharedBytes;
  static constexpr int kBlocksPerMultiprocessor = Config::kBlocksPerMultiprocessor;
  static constexpr int kRegisters = Config::kRegisters;

  /// Fills all parameters but the maps, which describe `boxes`. Returns false if tensor copies have
  /// no boxes for these blocks and strides.
  static constexpr bool prepare(const SummaryParameters& stage, std::int32_t pairs,
                                std::int32_t multiprocessors, Params& p, TensorBox (&boxes)[2]) {
    const std::int32_t batch = pairs / stage.heads;
    p.stage = stage;
    p.pairs = pairs;
    p.multiprocessors = multiprocessors;
    return TokenBoxes::find(stage.blocks, stage.k, D, stage.heads, batch, Config::kMostRows,
                            p.k_boxes, boxes[0]) &&
           TokenBoxes::find(stage.blocks, stage.v, E, stage.heads, batch, Config::kMostRows,
                            p.v_boxes, boxes[1]);
  }

  static constexpr unsigned grid(const Params& p, int) {
    return persistent_grid<Config>(p.pairs * p.stage.blocks.blocks(), p.multiprocessors);
  }

 protected:
  /// Steps of 16 rows per box.
  static MHLA_DEVICE std::uint32_t steps(const Params& p) {
    return (static_cast<std::uint32_t>(p.k_boxes.rows()) + 15) / 16;
  }
  static MHLA_DEVICE Ring ring_of(const Params& p) {
    const std::uint32_t begin = ptx::shared_begin();
    const std::uint32_t slot_bytes = steps(p) * 16 * Config::kRowBytes;
    const std::uint32_t count = Config::kRingBytes / slot_bytes;
    return {begin, slot_bytes, Config::barriers(begin),
            count < Config::kMostSlots ? count : Config::kMostSlots};
  }
};

template <class T, int D, int E, Precision P, bool kRotary = false>
struct SummarySm90 : SummarySm90Launch<D, E, SummarySm90Config<D, E>> {
  using Launch = SummarySm90Launch<D, E, SummarySm90Config<D, E>>;
  using Launch::kThreads;
  using typename Launch::Config, typename Launch::Params;

  MHLA_DEVICE void operator()(const Params& p) const {
    const Ring ring = ring_of(p);
    run_persistent<Config>(
        [&](std::uint32_t thread) {
          if (thread == Config::kProducer) {
            ptx::prefetch_tensormap(p.maps[0]);
            ptx::prefetch_tensormap(p.maps[1]);
          }
          zero_rows_behind(p, ring, thread);
        },
        [&] { load(p, ring); }, [&](std::uint32_t thread) { read(p, ring, thread); }, ring);
  }

 private:
  using Launch::ring_of, Launch::steps;
  static constexpr int kKeyPanels = D / 64;
  static constexpr int kValuePanels = E / 64;

  struct Sums {
    float s[kValuePanels][8][4];
    float z[4];  // in every column
  };

  /// Work of a thread of a warpgroup.
  struct WorkTile {
    std::uint32_t warpgroup;
    std::uint32_t warp;  // warp of the thread block
    std::uint32_t lane;
    Item item;
    bool whole;  // the block has no empty slots
  };

  /// Zeroes the rows of slots that no box fills.
  static MHLA_DEVICE void zero_rows_behind(const Params& p, const Ring& ring,
                                           std::uint32_t thread) {
    const auto rows = static_cast<std::uint32_t>(p.k_boxes.rows());
    const std::uint32_t pieces = (steps(p) * 16 - rows) * 8;
    if (pieces == 0) return;
    for (std::uint32_t i = thread; i < pieces * ring.count; i += kThreads) {
      const std::uint32_t slot = i / pieces;
      ptx::st_shared_v4(ring.slot({slot, 0}) + rows * 128 + (i - slot * pieces) * 16, {});
    }
    ptx::fence_proxy_async();
  }

  static MHLA_DEVICE void load(const Params& p, const Ring& ring) {
    const auto bytes = static_cast<std::uint32_t>(p.k_boxes.rows()) * 128;
    const std::uint64_t once = ptx::createpolicy_evict_first();
    RingCursor at;
    for_items(p.stage.blocks, p.pairs, p.stage.heads, [&](const Item& item) {
      MHLA_CUDA_LOOP
      for (std::int32_t box = 0; box < p.k_boxes.count(); ++box) {
        MHLA_CUDA_LOOP
        for (int panel = 0; panel < Config::kPanels; ++panel) {
          ring.producer_acquire(at, bytes);
          const bool is_key = panel < kKeyPanels;
          const TokenBoxes& boxes = is_key ? p.k_boxes : p.v_boxes;
          const std::int32_t channel = 64 * (is_key ? panel : panel - kKeyPanels);
          ptx::cp_async_bulk_tensor(ring.slot(at), p.maps[is_key ? 0 : 1],
                                    boxes.origin(item.origin, item.head, box, channel),
                                    ring.full(at), once);
          at = at.after(1, ring.count);
        }
      }
    });
  }

  static MHLA_DEVICE void read(const Params& p, const Ring& ring, std::uint32_t thread) {
    const TokenBlocks& blocks = p.stage.blocks;
    RingCursor at;
    for_items(blocks, p.pairs, p.stage.heads, [&](const Item& item) {
      const WorkTile work{thread / 128, thread / 32, thread % 32, item,
                          blocks.token(item.origin, blocks.slots() - 1) >= 0};
      Sums sums{};
      MHLA_CUDA_LOOP
      for (std::int32_t box = 0; box < p.k_boxes.count(); ++box) {
        add_box(p, ring, at, work, box, sums);
        at = at.after(Config::kPanels, ring.count);
      }
      write(p, work, sums);
    });
  }

  /// Adds the products of a box, and releases its slots.
  static MHLA_DEVICE void add_box(const Params& p, const Ring& ring, RingCursor at,
                                  const WorkTile& work, std::int32_t box, Sums& sums) {
    std::uint32_t values[kValuePanels];
    MHLA_CUDA_UNROLL
    for (int e = 0; e < kValuePanels; ++e) {
      values[e] = ring.slot(at.after(kKeyPanels + e, ring.count));
    }
    ring.template consumer_wait<Config::kPanels>(at);
    const BoxPanel keys{ring.slot(at.after(work.warpgroup, ring.count))};
    p.stage.map.with_formula([&](auto phi) {
      ptx::Words4 even = features(phi, p, keys, work, box, 0, sums);
      MHLA_CUDA_LOOP
      for (std::uint32_t step = 0; step < steps(p); step += 2) {
        start(even, values, step, sums);
        if (step + 1 == steps(p)) {
          finish(sums);
          break;
        }
        ptx::Words4 odd = features(phi, p, keys, work, box, step + 1, sums);
        finish(sums);
        start(odd, values, step + 1, sums);
        if (step + 2 < steps(p)) even = features(phi, p, keys, work, box, step + 2, sums);
        finish(sums);
      }
    });
    ring.template consumer_release<Config::kPanels>(at, work.lane);
  }

  static MHLA_DEVICE void start(ptx::Words4& a, const std::uint32_t (&values)[kValuePanels],
                                std::uint32_t step, Sums& sums) {
    ptx::fence_registers(a.x);
    MHLA_CUDA_UNROLL
    for (int e = 0; e < kValuePanels; ++e) ptx::fence_registers(sums.s[e]);
    ptx::wgmma_fence();
    MHLA_CUDA_UNROLL
    for (int e = 0; e < kValuePanels; ++e) {
      ptx::wgmma_m64k16<1>(sums.s[e], a.x, factor(values[e], 16 * step, 0), T{});
    }
    ptx::wgmma_commit_group();
  }

  static MHLA_DEVICE void finish(Sums& sums) {
    ptx::wgmma_wait_group<0>();
    MHLA_CUDA_UNROLL
    for (int e = 0; e < kValuePanels; ++e) ptx::fence_registers(sums.s[e]);
  }

  /// Returns phi of 16 rows of keys as the A operand, and adds their part of z.
  template <class Formula>
  static MHLA_DEVICE ptx::Words4 features(Formula phi, const Params& p, BoxPanel keys,
                                          const WorkTile& work, std::int32_t box,
                                          std::uint32_t step, Sums& sums) {
    ptx::Words4 a = load_transposed_rows(keys, 16 * step, work.warp % 4 * 2, work.lane);
    apply<T>(phi, a.x);
    const std::int32_t rows = p.k_boxes.rows();
    const ptx::Words2 filled =
        column_of_tokens<T>({p.stage.blocks, work.item.origin, box * rows, rows}, work.whole,
                            static_cast<std::int32_t>(16 * step), work.lane);
    ptx::mma_m16n8k16<T>(sums.z, a.x[0], a.x[1], a.x[2], a.x[3], filled.x[0], filled.x[1]);
    if constexpr (kRotary) {
      const BlockTokens tokens{p.stage.blocks, work.item.origin, box * rows};
      rotate_transposed<T>(a, p.stage.angles, 16 * step, 16 * work.warp, tokens, work.lane);
    }
    return a;
  }

  static MHLA_DEVICE void write(const Params& p, const WorkTile& work, Sums& sums) {
    const std::int64_t row =  // of [pairs, M, D]
        (p.stage.out.first(work.item.pair, p.stage.blocks.blocks()) + work.item.block) * D +
        16 * work.warp;
    float* const z = p.stage.out.key_sum;
    if (z != nullptr && work.lane % 4 == 0) {
      ptx::st_global_f32(z + row + work.lane / 4, sums.z[0]);
      ptx::st_global_f32(z + row + work.lane / 4 + 8, sums.z[2]);
    }
    const auto tile = Config::tile(work.warp);
    const ConsecutiveTokens rows{0, 16};
    MHLA_CUDA_UNROLL
    for (int e = 0; e < kValuePanels; ++e) {
      const std::int64_t begin = row * (2 * E) + e * 128;
      scale_sums(sums.s[e], p.stage.out.scale);
      write_sums<T>(sums.s[e], {1, 1}, tile, p.stage.out.high + begin, 2 * E, rows, work.lane);
      if constexpr (P == Precision::kPair) {
        keep_rest<T>(sums.s[e]);
        write_sums<T>(sums.s[e], {1, 1}, tile, p.stage.out.low + begin, 2 * E, rows, work.lane);
      }
    }
  }
};

}  // namespace mhla::cuda

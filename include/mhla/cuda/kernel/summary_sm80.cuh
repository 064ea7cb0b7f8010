#pragma once

/// \file
/// Summary stage: S_b and z_b of every block of tokens:
///
///     S_b = sum_{t in b} phi(k_t) v_t^T     [D, E], times a power of two and rounded to T, or
///                                           as high + low
///     z_b = sum_{t in b} phi(k_t)           [D] floats, of the rounded phi(k_t)
///
/// Floats are split in shared memory, after phi, by the threads that copied them. Three products
/// multiply their parts (tile/factors.cuh). S_b is then high + low in bfloat16.
///
/// With kRotary, phi(k_t) rotates before the product (tile/rotary.cuh), for S_b alone.
///
/// A thread block computes one S_b, or 128 rows of S_b if D is larger: thread block
/// (pair * M + b) * parts + part along x. With kColumnParts = 2, it has half of the columns, in as
/// many warps as there are along D (joined_stages_sm80.cuh). Strips of 32 slots of K and
/// V arrive through a ring of stages in shared memory. The A operand is phi^T, read transposed and
/// mapped in registers. The B operand is V:
///
///     (D, E)        warps along D x E   per warp    stages   sums per thread
///     (64, 64)      4 x 1               16 x 64     3        32
///     (72, 72)      5 x 1               16 x 72     3        36; the last warp is half idle
///     (128, 128)    4 x 2               32 x 64     4        64
///     (128, 256)    4 x 2               32 x 128    4        128
///
/// With two warps along E, phi of a key is computed twice. One warp along E would save that, about
/// 256 of 1000 issue slots per 16 tokens. But then every warp would read all of V: 9 instead of 6
/// loads of matrices per 16 products, and shared memory is the bottleneck.
///
/// z is the product with a column of ones, one more product per warp and 16 tokens. Warps along E
/// alternate between the row tiles. The column is 0 for empty slots, since phi(0) need not be 0.
///
/// Shared memory: kSharedBytes of SummaryConfig. S_b is stored through the ring's first bytes.
/// Device memory: K and V once, S and z once.
/// Source: arXiv:2601.07832, section 4.1, eq. (3).

#include <cstdint>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/kernel/occupancy.cuh"
#include "mhla/cuda/kernel/parameters.cuh"
#include "mhla/cuda/kernel/widths.cuh"
#include "mhla/cuda/ptx/barrier.cuh"
#include "mhla/cuda/ptx/copy_async.cuh"
#include "mhla/cuda/ptx/global.cuh"
#include "mhla/cuda/ptx/index.cuh"
#include "mhla/cuda/ptx/shared.cuh"
#include "mhla/cuda/tile/factors.cuh"
#include "mhla/cuda/tile/fragment.cuh"
#include "mhla/cuda/tile/layout.cuh"
#include "mhla/cuda/tile/outputs.cuh"
#include "mhla/cuda/tile/product.cuh"
#include "mhla/cuda/tile/rotary.cuh"
#include "mhla/cuda/tile/tokens.cuh"
#include "mhla/cuda/tile/width.cuh"

namespace mhla::cuda {

/// \tparam T             element type of the tensors; those of 16 bits have the same sizes
/// \tparam kColumnParts  thread blocks that share the columns of E
template <int D, int E, class T = bfloat16, int kColumnParts = 1>
struct SummaryConfig {
  using Rows = Width<Width<D>::kPart>;                // of S, per thread block
  static constexpr int kRowTiles = Rows::kWarpTiles;  // tiles of 16 rows per warp
  static constexpr int kRowWarps = Rows::kTileWarps;
  static constexpr int kColumnWarps = kRowTiles / kColumnParts;
  static constexpr int kColumns = E / kColumnParts;
  static constexpr int kTiles = kColumns / 8 / kColumnWarps;  // tiles of 8 columns per warp
  static constexpr int kThreads = 32 * kRowWarps * kColumnWarps;
  static_assert(kTiles * kRowTiles * 8 == E, "warps along E, which share z, have equal parts");

  static constexpr int kStrip = 32;
  static constexpr int kStages = kRowTiles > 1 && !kIsFloat<T> ? 4 : 3;
  using Keys = FactorTile<T, kStrip, Rows::kColumns>;
  using Values = FactorTile<T, kStrip, kColumns>;
  static constexpr int kStageBytes = Keys::kBytes + Values::kBytes;
  static constexpr int kFilledBytes = 4 * kStrip;

  using Summary = SharedTile<16 * kRowTiles * kRowWarps, kColumns>;
  static_assert(Summary::kBytes <= kStages * kStageBytes, "S leaves through the ring");

  static constexpr int kSharedBytes = kStages * (kStageBytes + kFilledBytes);
  static_assert(kSharedBytes <= shared_limit(Arch::kSm80), "the ring fits into shared memory");
};

template <class T, int D, int E, Precision P, bool kRotary = false, int kColumnParts = 1>
struct SummarySm80 {
  static_assert(!kRotary || Width<D>::kWholeTiles, "a warp turns 16 features at a time");
  static_assert(!kIsFloat<T> || (P == Precision::kPair && !kRotary && Width<D>::kParts == 1),
                "floats have no such kernel");
  using Params = SummaryParameters;
  using Config = SummaryConfig<D, E, T, kColumnParts>;
  static constexpr Arch kArchitecture = Arch::kSm80;
  static constexpr int kThreads = Config::kThreads;
  static constexpr int kSharedBytes = Config::kSharedBytes;
  static constexpr int kSums = 4 * Config::kRowTiles * Config::kTiles;  ///< per thread
  static constexpr int kBlocksPerMultiprocessor =
      resident_blocks(kThreads, kSums + 10 * Config::kRowTiles + 38, kSharedBytes);

  static constexpr unsigned grid(const Params& p, int pairs) {
    return static_cast<unsigned>(pairs) * static_cast<unsigned>(p.blocks.blocks()) * kParts;
  }

  MHLA_DEVICE void operator()(const Params& p) const {
    const WorkTile at = work_tile(p, ptx::ctaid_x());
    ptx::griddepcontrol_launch_dependents();
    compute(p, at);
  }
  /// Does the work of thread block `index`.
  static MHLA_DEVICE void run(const Params& p, std::uint32_t index) {
    compute(p, work_tile(p, index));
  }

 private:
  using Factor = factor_t<T>;
  static constexpr int kParts = Width<D>::kParts * kColumnParts;  // thread blocks per S_b
  static constexpr int kRows = Config::Rows::kColumns;            // rows of S_b per thread block
  static constexpr int kRowTiles = Config::kRowTiles;
  static constexpr int kTiles = Config::kTiles;
  static constexpr int kStrip = Config::kStrip;
  static constexpr int kStages = Config::kStages;

  /// Work of a thread.
  struct WorkTile {
    std::uint32_t thread;
    std::uint32_t lane;
    std::uint32_t first_row;     // first row of the thread block
    std::uint32_t row_tile;      // first tile of 16 rows of the warp, counted from that row
    std::uint32_t first_column;  // first column of the thread block
    std::uint32_t column_warp;   // index among the warps along E, of all thread blocks
    std::int64_t place;          // index of S_b
    BlockOrigin origin;
    const unsigned char* k;  // columns first_row.. of token 0 of the pair
    const unsigned char* v;  // columns first_column.. likewise
    std::uint32_t shared;
  };

  static MHLA_DEVICE void compute(const Params& p, const WorkTile& at) {
    const std::int32_t strips = (p.blocks.slots() - 1) / kStrip + 1;
    const auto copy = [&](std::int32_t strip) {
      if constexpr (kIsFloat<T>) {
        if (strip < strips) copy_floats(p, at, strip);
      } else {
        if (strip < strips) copy_strip(p, at, strip);
      }
      ptx::cp_async_commit_group();
    };
    MHLA_CUDA_UNROLL
    for (int strip = 0; strip < kStages - 1; ++strip) copy(strip);
    Sums sums{};
    MHLA_CUDA_LOOP
    for (std::int32_t strip = 0; strip < strips; ++strip) {
      next_strip<kStages>([&] { copy(strip + kStages - 1); },
                          [&] {
                            if constexpr (kIsFloat<T>) split_strip(p, at, strip);
                          });
      add_strip(p, at, strip, sums);
    }
    if (p.out.key_sum != nullptr) write_key_sum(p, at, sums);
    MHLA_CUDA_UNROLL
    for (std::uint32_t r = 0; r < kRowTiles; ++r) scale_sums(sums.s[r], p.out.scale);
    ptx::bar_sync();
    write_part(p.out.high, at, sums);
    if constexpr (P == Precision::kPair) {
      MHLA_CUDA_UNROLL
      for (std::uint32_t r = 0; r < kRowTiles; ++r) keep_rest<Factor>(sums.s[r]);
      ptx::bar_sync();
      write_part(p.out.low, at, sums);
    }
  }

  struct Sums {
    float s[kRowTiles][kTiles][4];
    float z[4];  // of one of the row tiles, in every column
  };

  MHLA_DEVICE static WorkTile work_tile(const Params& p, std::uint32_t part) {
    const std::uint32_t thread = ptx::tid_x();
    const std::uint32_t item = part / kParts, first_row = part % kParts / kColumnParts * kRows;
    const std::uint32_t column_part = part % kColumnParts;
    const auto blocks = static_cast<std::uint32_t>(p.blocks.blocks());
    const std::uint32_t index = item / blocks;
    const BatchHead pair = batch_head(static_cast<std::int32_t>(index), p.heads);
    const std::uint32_t warp = thread / 32;
    return {thread,
            thread % 32,
            first_row,
            warp / Config::kColumnWarps * kRowTiles,
            column_part * Config::kColumns,
            column_part * Config::kColumnWarps + warp % Config::kColumnWarps,
            p.out.first(index, p.blocks.blocks()) + item % blocks,
            p.blocks.origin(static_cast<std::int32_t>(item % blocks)),
            p.k.head(pair) + 2 * first_row,
            p.v.head(pair) + 2 * column_part * Config::kColumns,
            ptx::shared_begin()};
  }

  /// First tile of 8 columns of the warp, counted from those of the thread block.
  static MHLA_DEVICE std::uint32_t tile_column(const WorkTile& at) {
    return kTiles * (at.column_warp % Config::kColumnWarps);
  }
  static MHLA_DEVICE std::uint32_t stage(const WorkTile& at, std::int32_t strip) {
    return at.shared + static_cast<std::uint32_t>(strip % kStages) * Config::kStageBytes;
  }
  /// Shared address of a word for each slot of the strip: 1 of type T, or 0 for an empty slot.
  static MHLA_DEVICE std::uint32_t filled(const WorkTile& at, std::int32_t strip) {
    return at.shared + kStages * Config::kStageBytes +
           static_cast<std::uint32_t>(strip % kStages) * Config::kFilledBytes;
  }

  /// Starts the copies of a strip. A thread's pieces of K and V belong to the same token.
  static MHLA_DEVICE void copy_strip(const Params& p, const WorkTile& at, std::int32_t strip) {
    constexpr int kPieces = kRows / 8;
    constexpr int kCopies = kStrip * kPieces;
    const typename Config::Keys keys{stage(at, strip)};
    const typename Config::Values values{keys.begin + Config::Keys::kBytes};
    MHLA_CUDA_UNROLL
    for (std::uint32_t i = 0; i < (kCopies + kThreads - 1) / kThreads; ++i) {
      const std::uint32_t index = i * kThreads + at.thread;
      if (kCopies % kThreads != 0 && index >= kCopies) break;
      const std::uint32_t row = index / kPieces;
      const std::uint32_t piece = index % kPieces;
      const std::int32_t token =
          p.blocks.token(at.origin, strip * kStrip + static_cast<std::int32_t>(row));
      const std::uint32_t bytes = token < 0 ? 0 : 16;
      const std::int64_t existing = token < 0 ? 0 : token;
      ptx::cp_async_16(keys.piece(row, piece), at.k + existing * p.k.token_stride + piece * 16,
                       bytes);
      MHLA_CUDA_UNROLL
      for (std::uint32_t j = piece; j < Config::kColumns / 8; j += kPieces) {
        ptx::cp_async_16(values.piece(row, j), at.v + existing * p.v.token_stride + j * 16, bytes);
      }
      if (piece == 0) {
        ptx::st_shared(filled(at, strip) + 4 * row, token < 0 ? 0 : ptx::pack<T>(1, 0));
      }
    }
  }

  /// Starts the copies of a strip of floats.
  static MHLA_DEVICE void copy_floats(const Params& p, const WorkTile& at, std::int32_t strip) {
    const typename Config::Keys keys{stage(at, strip)};
    const typename Config::Values values{keys.begin + Config::Keys::kBytes};
    const BlockTokens tokens{p.blocks, at.origin, strip * kStrip};
    copy_rows<kThreads>(keys, at.k, p.k.token_stride, tokens, at.thread);
    copy_rows<kThreads>(values, at.v, p.v.token_stride, tokens, at.thread);
    if (at.thread < kStrip) {
      const bool empty = tokens(static_cast<std::int32_t>(at.thread)) < 0;
      ptx::st_shared(filled(at, strip) + 4 * at.thread, empty ? 0 : ptx::pack<Factor>(1, 0));
    }
  }

  /// Splits the floats of a strip that the thread copied.
  static MHLA_DEVICE void split_strip(const Params& p, const WorkTile& at, std::int32_t strip) {
    const typename Config::Keys keys{stage(at, strip)};
    const typename Config::Values values{keys.begin + Config::Keys::kBytes};
    split_copied<kThreads>(p.map, keys, at.thread);
    split_copied<kThreads>(values, at.thread);
  }

  static MHLA_DEVICE void add_strip(const Params& p, const WorkTile& at, std::int32_t strip,
                                    Sums& sums) {
    if constexpr (kRotary) {  // registers allow one step at a time
      MHLA_CUDA_LOOP
      for (std::uint32_t step = 0; step < kStrip / 16; ++step) add_step(p, at, strip, step, sums);
    } else {
      MHLA_CUDA_UNROLL
      for (std::uint32_t step = 0; step < kStrip / 16; ++step) add_step(p, at, strip, step, sums);
    }
  }

  /// Adds a step of 16 slots.
  static MHLA_DEVICE void add_step(const Params& p, const WorkTile& at, std::int32_t strip,
                                   std::uint32_t step, Sums& sums) {
    const typename Config::Keys keys{stage(at, strip)};
    const typename Config::Values values{keys.begin + Config::Keys::kBytes};
    const auto multiply = [&](const ptx::Words4(&features)[kRowTiles], auto tile) {
      multiply_step<Factor>(sums.s, features, tile, 16 * step, tile_column(at), at.lane);
    };
    const auto load = [&](auto tile, ptx::Words4(&features)[kRowTiles]) {
      MHLA_CUDA_UNROLL
      for (std::uint32_t r = 0; r < kRowTiles; ++r) {
        features[r] = load_transposed_rows(tile, 16 * step, 2 * (at.row_tile + r), at.lane);
        if constexpr (!kIsFloat<T>) apply<T>(p.map, features[r].x);
      }
    };
    ptx::Words4 features[kRowTiles];
    if constexpr (kIsFloat<T>) {
      load(keys.low(), features);
      multiply(features, values.high());
      if (p.out.key_sum != nullptr) add_key_sums(at, strip, step, features, sums);
      load(keys.high(), features);
      multiply(features, values.low());
      multiply(features, values.high());
    } else {
      load(keys, features);
      if constexpr (!kRotary) multiply(features, values);
    }
    if (p.out.key_sum != nullptr) add_key_sums(at, strip, step, features, sums);
    if constexpr (kRotary) {
      const BlockTokens tokens{p.blocks, at.origin, strip * kStrip};
      MHLA_CUDA_UNROLL
      for (std::uint32_t r = 0; r < kRowTiles; ++r) {
        rotate_transposed<T>(features[r], p.angles, 16 * step,
                             at.first_row + 16 * (at.row_tile + r), tokens, at.lane);
      }
      multiply(features, values);
    }
  }

  static MHLA_DEVICE void add_key_sums(const WorkTile& at, std::int32_t strip, std::uint32_t step,
                                       const ptx::Words4 (&features)[kRowTiles], Sums& sums) {
    const std::uint32_t slot = 16 * step + at.lane % 4 * 2;
    const ptx::Words2 ones = ptx::ld_shared_v2(filled(at, strip) + 4 * slot);
    const ptx::Words2 ones_8 = ptx::ld_shared_v2(filled(at, strip) + 4 * (slot + 8));
    ptx::Words4 rows = features[0];
    if (kRowTiles > 1 && at.column_warp != 0) rows = features[kRowTiles - 1];
    ptx::mma_m16n8k16<Factor>(sums.z, rows.x[0], rows.x[1], rows.x[2], rows.x[3],
                              ones.x[0] | ones.x[1] << 16, ones_8.x[0] | ones_8.x[1] << 16);
  }

  static MHLA_DEVICE void write_key_sum(const Params& p, const WorkTile& at, const Sums& sums) {
    const std::uint32_t row = 16 * (at.row_tile + at.column_warp) + at.lane / 4;
    float* const z = p.out.key_sum + at.place * D + at.first_row;
    if (at.lane % 4 == 0) {
      if (row < kRows) ptx::st_global_f32(z + row, sums.z[0]);
      if (row + 8 < kRows) ptx::st_global_f32(z + row + 8, sums.z[2]);
    }
  }

  /// Rounds S and writes it to `array` as [D, E].
  static MHLA_DEVICE void write_part(unsigned char* array, const WorkTile& at, const Sums& sums) {
    const typename Config::Summary summary{at.shared};
    MHLA_CUDA_UNROLL
    for (std::uint32_t r = 0; r < kRowTiles; ++r) {
      store_sums<Factor, kTiles>(sums.s[r], 0, {1, 1}, summary, 16 * (at.row_tile + r),
                                 tile_column(at), at.lane);
    }
    ptx::bar_sync();
    const std::int64_t begin = (at.place * D + at.first_row) * (2 * E) + 2 * at.first_column;
    write_rows<kThreads>(summary, array + begin, 2 * E, ConsecutiveTokens{0, kRows}, at.thread);
  }
};

}  // namespace mhla::cuda

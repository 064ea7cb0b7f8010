#pragma once

/// \file
/// Mixtures of summaries, for every pair, i = 0.. rows - 1:
///
///     S~_i = sum_b m_ib S_b     [D, E], rounded to T, or as high + low
///     z~_i = sum_b m_ib z_b     [D] floats, with m as it is
///
/// over all b < columns, or with `earlier` over b < i alone. Then S~_0 is 0 and is written.
///
/// S~ has the scale of S. The kernel computes the product out[rows, D*E] = m[rows, columns]
/// in[columns, D*E]. A thread block computes 64 rows of 128 columns (64 if 128 does not divide
/// D*E). Each of its 4 warps has a quarter of the columns. Strips of 32 summaries' columns arrive
/// through a ring of 3 stages. m is loaded as floats one strip ahead. A operands store it in two
/// parts, m = high + low, and each part is multiplied:
///
///     kSingle   m_high S + m_low S
///     kPair     m_high S_high + m_low S_high + m_high S_low
///
/// With `earlier`, strips right of the diagonal are not loaded, and 16 x 16 parts of m that are
/// zero are not multiplied. Thread blocks of the last rows have most work and begin first. With
/// kSkips, strips that the matrix's pattern lacks are not loaded either.
///
/// Thread blocks are numbered along x by pair, then tile of columns, then tile of rows. Thread
/// blocks that read the same summaries are neighbours, and find them in L2. All three go downward.
/// The summaries that were written last are read first, while L2 has them. The mixtures of the
/// first pairs are read out first, and are written last. With key sums every pair has further tiles
/// of columns, whose warps compute z~ of the 64 rows in float (kernel/key_sum_mixing.cuh).
///
/// Numbers that are not finite: a product with m_ib = 0 is still a product. An S_b with infinities
/// or NaN gives NaN in the same places of S~_i for every i. With `earlier` this affects only i > b.
/// If 16 summaries on the diagonal have such numbers, each row of m is multiplied separately, with
/// zeros in place of S_b of b >= i (tile/triangular_product.cuh).
///
/// Shared memory: kSharedBytes of MixingConfig. The result is stored through the ring's first
/// bytes. Device memory: S once per 64 rows, S~ once, m once per pair and tile of columns.
/// Source: arXiv:2601.07832, section 4.1, eq. (4).

#include <cstdint>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/kernel/key_sum_mixing.cuh"
#include "mhla/cuda/kernel/mixing_sm80_config.cuh"
#include "mhla/cuda/kernel/parameters.cuh"
#include "mhla/cuda/kernel/pattern_bits.cuh"
#include "mhla/cuda/ptx/barrier.cuh"
#include "mhla/cuda/ptx/copy_async.cuh"
#include "mhla/cuda/ptx/global.cuh"
#include "mhla/cuda/ptx/index.cuh"
#include "mhla/cuda/ptx/shared.cuh"
#include "mhla/cuda/ptx/wgmma.cuh"
#include "mhla/cuda/tile/fragment.cuh"
#include "mhla/cuda/tile/layout.cuh"
#include "mhla/cuda/tile/outputs.cuh"
#include "mhla/cuda/tile/product.cuh"
#include "mhla/cuda/tile/tokens.cuh"
#include "mhla/cuda/tile/triangular_product.cuh"

namespace mhla::cuda {

/// \tparam kSkips  p.mixing has the strips of a pattern
template <class T, int D, int E, Precision P, bool kSkips = false>
struct MixingSm80 {
  using Params = MixingParameters;
  using Config = MixingConfig<D, E, P>;
  static constexpr Arch kArchitecture = Arch::kSm80;
  static constexpr int kThreads = Config::kThreads;
  static constexpr int kSharedBytes = Config::kSharedBytes;
  static constexpr int kBlocksPerMultiprocessor = P == Precision::kPair ? 2 : kSkips ? 3 : 4;
  static constexpr int kRegisters = P == Precision::kPair || kSkips ? 168 : 128;

  static constexpr unsigned grid(const Params& p, int pairs) {
    return static_cast<unsigned>(pairs) * tiles(p) * row_tiles(p);
  }

  MHLA_DEVICE void operator()(const Params& p) const {
    const WorkTile at = work_tile(p, ptx::nctaid_x() - 1 - ptx::ctaid_x());
    ptx::griddepcontrol_wait();
    ptx::griddepcontrol_launch_dependents();
    mix(p, at);
  }
  /// Does the work of thread block `index`, counted upward.
  static MHLA_DEVICE void run(const Params& p, std::uint32_t index) { mix(p, work_tile(p, index)); }

 private:
  static constexpr int kStages = Config::kStages;
  static constexpr int kStrip = Config::kStrip;
  static constexpr int kRowTiles = Config::kRowTiles;
  static constexpr int kTiles = Config::kTiles;
  static constexpr int kSummaryBytes = 2 * D * E;
  static constexpr int kKeySumGroups = Config::kRows / KeySumMixing<D>::kRows;  // groups of rows
  static constexpr int kKeySumTiles =
      kKeySumGroups * KeySumMixing<D>::kColumnGroups / (kThreads / 32);
  using Sums = float[kRowTiles][kTiles][4];

  /// Work of a thread.
  struct WorkTile {
    std::uint32_t thread;
    std::uint32_t warp;
    std::uint32_t lane;
    std::int64_t pair;
    std::uint32_t column_tile;
    std::int32_t row;    // first row of the tile
    std::int32_t depth;  // end of the b that any of its rows uses
    std::uint32_t shared;
  };

  /// A thread's part of a strip of m: two adjacent coefficients of each of 8 rows.
  struct Coefficients {
    float x[8][2];
  };

  static MHLA_HOST_DEVICE constexpr std::uint32_t row_tiles(const Params& p) {
    return static_cast<std::uint32_t>((p.rows - 1) / Config::kRows + 1);
  }
  static MHLA_HOST_DEVICE constexpr std::uint32_t tiles(const Params& p) {
    return Config::kColumnTiles + (p.out.key_sum != nullptr ? kKeySumTiles : 0);
  }

  static MHLA_DEVICE WorkTile work_tile(const Params& p, std::uint32_t index) {
    const std::uint32_t thread = ptx::tid_x();
    const std::uint32_t column_tile = index / row_tiles(p);
    const std::uint32_t row_tile = index % row_tiles(p);
    const auto row = static_cast<std::int32_t>(row_tile) * Config::kRows;
    const std::int32_t last = p.rows - row < Config::kRows ? p.rows - 1 : row + Config::kRows - 1;
    const std::uint32_t pair = column_tile / tiles(p);
    return {thread, thread / 32, thread % 32,        pair, column_tile % tiles(p),
            row,    p.end(last), ptx::shared_begin()};
  }

  /// Shared memory of the turn-th strip that is loaded.
  static MHLA_DEVICE typename Config::Summaries stage(const WorkTile& at, std::int32_t turn) {
    return {at.shared + static_cast<std::uint32_t>(turn % kStages) * Config::kStageBytes};
  }
  static MHLA_DEVICE typename Config::Factors factors(const WorkTile& at, std::int32_t turn) {
    return {at.shared + kStages * Config::kStageBytes +
            static_cast<std::uint32_t>(turn % 2) * Config::Factors::kBytes};
  }

  /// Returns the first strip from `strip` on that is loaded, or any that is not below `strips`.
  static MHLA_DEVICE std::int32_t next_of(const Params& p, const WorkTile& at, std::int32_t strip,
                                          std::int32_t strips) {
    static_assert(PatternBits::kRows == Config::kRows && PatternBits::kColumns == kStrip);
    if constexpr (kSkips) {
      const std::int32_t tile = at.row / Config::kRows * PatternBits::words(p.columns);
      return PatternBits::next(p.mixing.strips + tile, strip, strips);
    } else {
      return strip;
    }
  }

  static MHLA_DEVICE void mix(const Params& p, const WorkTile& at) {
    if (at.column_tile < Config::kColumnTiles) {
      mix_summaries(p, at);
    } else {
      mix_key_sums(p, at);
    }
  }

  static MHLA_DEVICE void mix_key_sums(const Params& p, const WorkTile& at) {
    using Part = KeySumMixing<D>;
    const std::uint32_t part = (at.column_tile - Config::kColumnTiles) * (kThreads / 32) + at.warp;
    Part{p,
         p.matrix(static_cast<std::int32_t>(at.pair)),
         at.pair,
         at.row + static_cast<std::int32_t>(part % kKeySumGroups) * Part::kRows,
         static_cast<std::int32_t>(part / kKeySumGroups),
         at.shared + at.warp * Part::kBytes,
         at.lane}
        .run();
  }

  static MHLA_DEVICE void mix_summaries(const Params& p, const WorkTile& at) {
    const std::int32_t strips = (at.depth + kStrip - 1) / kStrip;
    const auto copy = [&](std::int32_t turn, std::int32_t strip) {
      if (strip < strips) copy_strip(p, at, turn, strip);
      ptx::cp_async_commit_group();
    };
    static_assert(kStages == 3);
    std::int32_t strip = next_of(p, at, 0, strips);
    std::int32_t second = next_of(p, at, strip + 1, strips);
    copy(0, strip);
    copy(1, second);
    store_factors(at, 0, load_coefficients(p, at, strip));
    Coefficients ahead = load_coefficients(p, at, second);
    Sums sums{};
    MHLA_CUDA_LOOP
    for (std::int32_t turn = 0; strip < strips; ++turn) {
      const std::int32_t third = kSkips ? next_of(p, at, second + 1, strips) : turn + 2;
      next_strip<kStages>([&] { copy(turn + 2, third); });
      store_factors(at, turn + 1, ahead);
      ahead = load_coefficients(p, at, third);
      add_strip(p, at, turn, strip, sums);
      strip = kSkips ? second : turn + 1;
      second = third;
    }
    ptx::bar_sync();
    write_part(p, p.out.high, at, sums);
    if constexpr (P == Precision::kPair) {
      MHLA_CUDA_UNROLL
      for (std::uint32_t r = 0; r < kRowTiles; ++r) keep_rest<T>(sums[r]);
      ptx::bar_sync();
      write_part(p, p.out.low, at, sums);
    }
  }

  /// Starts the copies of a strip: zeros for b before `lead` and from `depth` on.
  static MHLA_DEVICE void copy_strip(const Params& p, const WorkTile& at, std::int32_t turn,
                                     std::int32_t strip) {
    const std::int64_t begin = p.in.first(at.pair, p.columns - p.mixing.lead) * kSummaryBytes +
                               at.column_tile * (2 * Config::kColumns);
    const std::int32_t lead = p.mixing.lead;
    const ConsecutiveTokens blocks{strip * kStrip - lead, at.depth - lead};
    const typename Config::Summaries tile = stage(at, turn);
    copy_rows<kThreads>(tile, p.in.high + begin, kSummaryBytes, blocks, at.thread);
    if constexpr (P == Precision::kPair) {
      const typename Config::Summaries low{tile.begin + Config::Summaries::kBytes};
      copy_rows<kThreads>(low, p.in.low + begin, kSummaryBytes, blocks, at.thread);
    }
  }

  /// Returns the thread's `index`-th row. Rows of a warp's halves are 4 rows apart, so that their
  /// stores use different banks.
  static MHLA_DEVICE std::uint32_t coefficient_row(const WorkTile& at, std::uint32_t index) {
    return 8 * index + at.warp + at.lane / 16 * 4;
  }

  static MHLA_DEVICE Coefficients load_coefficients(const Params& p, const WorkTile& at,
                                                    std::int32_t strip) {
    Coefficients m;
    // The fence keeps the address from being computed early, since products need the registers.
    std::uint32_t fenced[] = {static_cast<std::uint32_t>(at.pair)};
    ptx::fence_registers(fenced);
    const MixingArray mixing = p.matrix(static_cast<std::int32_t>(fenced[0]));
    MHLA_CUDA_UNROLL
    for (std::uint32_t index = 0; index < 8; ++index) {
      const std::int32_t i = at.row + static_cast<std::int32_t>(coefficient_row(at, index));
      const std::int32_t b = strip * kStrip + static_cast<std::int32_t>(at.lane % 16 * 2);
      const float* const from = mixing.row(i) + b;
      MHLA_CUDA_UNROLL
      for (int j = 0; j < 2; ++j) {
        m.x[index][j] = b + j < p.end(i) ? ptx::ld_global_nc_f32(from + j) : 0;
      }
    }
    return m;
  }

  static MHLA_DEVICE void store_factors(const WorkTile& at, std::int32_t turn,
                                        const Coefficients& m) {
    const typename Config::Factors tile = factors(at, turn);
    MHLA_CUDA_UNROLL
    for (std::uint32_t index = 0; index < 8; ++index) {
      const std::uint32_t row = coefficient_row(at, index);
      const std::uint32_t piece = at.lane % 16 / 4;
      const std::uint32_t byte = at.lane % 4 * 4;
      const Parts parts = parts_of<T>(m.x[index][0], m.x[index][1]);
      ptx::st_shared(tile.piece(row, piece) + byte, parts.high);
      ptx::st_shared(tile.piece(row, kStrip / 8 + piece) + byte, parts.low);
    }
  }

  static MHLA_DEVICE void add_strip(const Params& p, const WorkTile& at, std::int32_t turn,
                                    std::int32_t strip, Sums& sums) {
    const typename Config::Summaries high = stage(at, turn);
    const typename Config::Factors m = factors(at, turn);
    const TileCoord column = columns_coord(at.lane);
    const TileCoord row = rows_coord(at.lane);
    MHLA_CUDA_UNROLL
    for (std::uint32_t step = 0; step < kStrip / 16; ++step) {
      const std::int32_t b = strip * kStrip + static_cast<std::int32_t>(16 * step);
      if (b >= at.depth) break;
      // Distance of b after the block of the first row; negative if all b are used.
      const std::int32_t behind = p.earlier ? b - p.mixing.diagonal(at.row) : -1;
      ptx::Words4 summaries[Config::kParts][kTiles / 2];
      MHLA_CUDA_UNROLL
      for (std::uint32_t part = 0; part < Config::kParts; ++part) {
        MHLA_CUDA_UNROLL
        for (std::uint32_t j = 0; j < kTiles / 2; ++j) {
          summaries[part][j] = ptx::ldmatrix_x4_trans(
              part * Config::Summaries::kBytes +
              high.piece(16 * step + column.row, kTiles * at.warp + 2 * j + column.piece));
        }
      }
      MHLA_CUDA_UNROLL
      for (std::uint32_t r = 0; r < kRowTiles; ++r) {
        const auto first = static_cast<std::int32_t>(16 * r);
        if (at.row + first >= p.rows || behind > first + 14) continue;  // m is zero there
        const ptx::Words4 m_high =
            ptx::ldmatrix_x4(m.piece(16 * r + row.row, 2 * step + row.piece));
        const ptx::Words4 m_low =
            ptx::ldmatrix_x4(m.piece(16 * r + row.row, kStrip / 8 + 2 * step + row.piece));
        if (behind == first && any_not_finite<T>(summaries)) {
          multiply_earlier<T>(sums[r], m_high, m_low, summaries, at.lane);
          continue;
        }
        multiply_add(sums[r], m_high, summaries[0]);
        multiply_add(sums[r], m_low, summaries[0]);
        if constexpr (P == Precision::kPair) multiply_add(sums[r], m_high, summaries[1]);
      }
    }
  }

  static MHLA_DEVICE void multiply_add(float (&sums)[kTiles][4], const ptx::Words4& a,
                                       const ptx::Words4 (&b)[kTiles / 2]) {
    MHLA_CUDA_UNROLL
    for (int j = 0; j < kTiles; ++j) {
      ptx::mma_m16n8k16<T>(sums[j], a.x[0], a.x[1], a.x[2], a.x[3], b[j / 2].x[j % 2 * 2],
                           b[j / 2].x[j % 2 * 2 + 1]);
    }
  }

  /// Rounds the mixtures and writes their columns to `array`.
  static MHLA_DEVICE void write_part(const Params& p, unsigned char* array, const WorkTile& at,
                                     const Sums& sums) {
    const typename Config::Mixture mixture{at.shared};
    MHLA_CUDA_UNROLL
    for (std::uint32_t r = 0; r < kRowTiles; ++r) {
      store_sums<T, kTiles>(sums[r], 0, {1, 1}, mixture, 16 * r, kTiles * at.warp, at.lane);
    }
    ptx::bar_sync();
    const std::int64_t begin =
        at.pair * p.rows * kSummaryBytes + at.column_tile * (2 * Config::kColumns);
    write_rows<kThreads>(mixture, array + begin, kSummaryBytes, ConsecutiveTokens{at.row, p.rows},
                         at.thread);
  }
};

}  // namespace mhla::cuda

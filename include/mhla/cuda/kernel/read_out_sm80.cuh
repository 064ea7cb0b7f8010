#pragma once

/// \file
/// Read-out: outputs from mixtures, for every token t in block i:
///
///     o_t = factor(den_t) * phi(q_t) S~_i        [E], rounded to T
///     den_t = phi(q_t) . z~_i                    Denominator::kKeySum, in float
///     den_t = sum_b m_ib s_bw                    Denominator::kCrossQuery, w the slot of t: scores
///                                                of every slot of every block are read
///
/// with phi(q_t) rounded to T and S~_i as stored, high + low for Precision::kPair. With kRotary,
/// phi(q_t) rotates (tile/rotary.cuh) before it is multiplied with S~_i. Each o is normalised and
/// gated if the call wants it (tile/output_norm.cuh). A norm computes the products of E above 128
/// twice, first for the squares of all columns. Floats are split as in summary_sm80.cuh, and o is
/// a float.
///
/// A thread block has up to 256 slots of one block of one pair. Thread blocks are numbered along x
/// by pair, then block, then part of the block. S~_i stays in shared memory. If kLimit has no space
/// for all columns, those of one product are loaded at a time. Otherwise warps share nothing and
/// need no barrier. A warp takes every kWarps-th strip of 16 slots through its own stages. It keeps
/// phi(q) in registers, and stores up to 128 columns of outputs at a time through the stage of Q.
///
///     (D, E)         warps   stages     registers of a warp           per multiprocessor
///     (64, 64)       4       3          16 words of phi(q), 32 sums    4 or 3 thread blocks
///     (72, 72)       4       3          18, 36                         4 or 3
///     (128, 128)     4, 8    2          32, 64                         2, kPair 1
///     (128, 256)     8       2, 1       32, 64                         1
///     (256, 256)     4, 8    1          64, 32                         1
///
/// Shared memory: S~_i, the stages, a list of the slots' tokens, and z~_i or denominators: kBytes
/// of ReadOutConfig. Device memory: Q once per part of S~, O once, S~ and z~ once per 256 slots.
/// Source: arXiv:2601.07832, section 4.1, eq. (4).

#include <cstdint>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/kernel/occupancy.cuh"
#include "mhla/cuda/kernel/parameters.cuh"
#include "mhla/cuda/kernel/read_out_sm80_config.cuh"
#include "mhla/cuda/ptx/barrier.cuh"
#include "mhla/cuda/ptx/copy_async.cuh"
#include "mhla/cuda/ptx/global.cuh"
#include "mhla/cuda/ptx/index.cuh"
#include "mhla/cuda/ptx/shared.cuh"
#include "mhla/cuda/tile/factors.cuh"
#include "mhla/cuda/tile/fragment.cuh"
#include "mhla/cuda/tile/layout.cuh"
#include "mhla/cuda/tile/output_norm.cuh"
#include "mhla/cuda/tile/outputs.cuh"
#include "mhla/cuda/tile/product.cuh"
#include "mhla/cuda/tile/rotary.cuh"
#include "mhla/cuda/tile/rows.cuh"
#include "mhla/cuda/tile/token_blocks.cuh"
#include "mhla/cuda/tile/tokens.cuh"

namespace mhla::cuda {

/// \tparam kLimit  bytes of shared memory per thread block
template <class T, int D, int E, Precision P, bool kRotary = false,
          int kLimit = shared_limit(Arch::kSm80)>
class ReadOutSm80 {
  using Config = ReadOutConfig<D, E, P, kLimit, T>;
  static_assert(!kIsFloat<T> || (P == Precision::kPair && !kRotary && Config::kColumns == E),
                "floats have no such kernel");

 public:
  using Params = ReadOutParameters;
  static constexpr Arch kArchitecture = Arch::kSm80;
  static constexpr int kThreads = Config::kThreads;
  static constexpr int kSharedBytes = Config::kBytes;
  static constexpr int kBlocksPerMultiprocessor =
      resident_blocks(kThreads, D / 4 + Config::kOutputColumns / 2 + 64, kSharedBytes);

  static constexpr unsigned grid(const Params& p, int pairs) {
    return static_cast<unsigned>(pairs) * static_cast<unsigned>(p.blocks.blocks()) * parts(p);
  }
  MHLA_DEVICE void operator()(const Params& p) const {
    const WorkTile at = work_tile(p, ptx::ctaid_x());
    ptx::griddepcontrol_wait();
    read_out(p, at);
  }
  /// Does the work of thread block `index`.
  static MHLA_DEVICE void run(const Params& p, std::uint32_t index) {
    read_out(p, work_tile(p, index));
  }

 private:
  using Strip = typename Config::Strip;
  static constexpr int kStages = Config::kStages;
  static constexpr int kWarps = Config::kWarps;
  static constexpr int kColumns = Config::kColumns;
  static constexpr int kOutputColumns = Config::kOutputColumns;
  static constexpr bool kWhole = kColumns == E;

  using WorkTile = ReadOutTile<Config>;
  using Pass = ReadOutPass;

  /// Thread blocks per block of tokens.
  static MHLA_HOST_DEVICE constexpr unsigned parts(const Params& p) {
    return static_cast<unsigned>((p.blocks.slots() - 1) / Config::kSlots + 1);
  }

  static MHLA_DEVICE WorkTile work_tile(const Params& p, std::uint32_t index);
  /// Returns a thread's index. If D is wide it is read again: addresses leave the registers.
  static MHLA_DEVICE std::uint32_t index_of(std::uint32_t thread) {
    if constexpr (Width<D>::kParts == 1) return thread;
    return ptx::tid_x();
  }
  static MHLA_DEVICE RowPair kept_squares(const WorkTile& at, std::int32_t strip) {
    return {ptx::ld_shared_f32(at.squares(strip)), ptx::ld_shared_f32(at.squares(strip) + 32)};
  }
  /// Adds the squares of this pass to the squares of earlier columns.
  static MHLA_DEVICE void keep_squares(const WorkTile& at, Pass pass, std::int32_t strip,
                                       RowPair squares) {
    if (at.lane % 4 != 0) return;
    const RowPair before = pass.column > 0 ? kept_squares(at, strip) : RowPair{0, 0};
    ptx::st_shared_f32(at.squares(strip), before.x + squares.x);
    ptx::st_shared_f32(at.squares(strip) + 32, before.x_8 + squares.x_8);
  }

  static MHLA_DEVICE void copy_key_sum(const Params& p, const WorkTile& at);
  static MHLA_DEVICE void copy_mixture(const Params& p, const WorkTile& at, int column);
  static MHLA_DEVICE void copy_strip(const Params& p, const WorkTile& at, std::int32_t strip);
  static MHLA_DEVICE void store_cross_sums(const Params& p, const WorkTile& at);
  static MHLA_DEVICE void read_out(const Params& p, const WorkTile& at);
  static MHLA_DEVICE void read_out_strips(const Params& p, const WorkTile& at, Pass pass);
  static MHLA_DEVICE void read_out_strip(const Params& p, const WorkTile& at, Pass pass,
                                         std::int32_t strip);
};

// -------------------------------------------------------------------------------------------------

template <class T, int D, int E, Precision P, bool kRotary, int kLimit>
MHLA_DEVICE void ReadOutSm80<T, D, E, P, kRotary, kLimit>::read_out(const Params& p,
                                                                    const WorkTile& at) {
  copy_key_sum(p, at);
  copy_mixture(p, at, 0);
  const BlockTokens tokens{p.blocks, p.blocks.origin(at.block), at.slot};
  list_tokens<kThreads, Config::kSlots>(at.shared + Config::kTokens, tokens, at.thread);
  ptx::bar_sync();
  if constexpr (kWhole) {
    read_out_strips(p, at, {0, false});
  } else {
    if (p.normalization.denominator == Denominator::kCrossQuery) store_cross_sums(p, at);
    const int sums = p.norm.normed ? E : 0;  // columns whose squares are summed first
    MHLA_CUDA_LOOP
    for (int column = 0; column < sums + E; column += kColumns) {
      if (column > 0) {
        ptx::bar_sync();  // all warps have used the previous columns
        copy_mixture(p, at, column % E);
      }
      read_out_strips(p, at, {column % E, column < sums});
    }
  }
}

/// Reads out all strips by the columns of S~ whose copies are in flight.
template <class T, int D, int E, Precision P, bool kRotary, int kLimit>
MHLA_DEVICE void ReadOutSm80<T, D, E, P, kRotary, kLimit>::read_out_strips(const Params& p,
                                                                           const WorkTile& at,
                                                                           Pass pass) {
  MHLA_CUDA_LOOP
  for (int n = 0; n < kStages; ++n) copy_strip(p, at, at.warp + n * kWarps);
  if constexpr (kWhole) {
    if (p.normalization.denominator == Denominator::kCrossQuery) store_cross_sums(p, at);
  }
  ptx::cp_async_wait_group<kStages>();
  ptx::bar_sync();  // S~, z~ and denominators have arrived
  MHLA_CUDA_LOOP
  for (std::int32_t strip = at.warp; strip < at.strips; strip += kWarps) {
    ptx::cp_async_wait_group<kStages - 1>();
    if constexpr (kIsFloat<T>) split_copied<32>(p.map, at.stage(strip), at.lane);
    ptx::bar_warp_sync();
    read_out_strip(p, at, pass, strip);
    copy_strip(p, at, strip + kStages * kWarps);
  }
}

template <class T, int D, int E, Precision P, bool kRotary, int kLimit>
MHLA_DEVICE auto ReadOutSm80<T, D, E, P, kRotary, kLimit>::work_tile(const Params& p,
                                                                     std::uint32_t index)
    -> WorkTile {
  const std::uint32_t thread = ptx::tid_x();
  const std::uint32_t item = index / parts(p);
  const auto blocks = static_cast<std::uint32_t>(p.blocks.blocks());
  const auto pair = static_cast<std::int32_t>(item / blocks);
  const auto slot = static_cast<std::int32_t>(index % parts(p)) * Config::kSlots;
  const std::int32_t slots = p.blocks.slots() - slot;
  return {thread,
          thread % 32,
          static_cast<std::int32_t>(thread / 32),
          ptx::shared_begin(),
          batch_head(pair, p.heads),
          std::int64_t{pair} * p.blocks.blocks() * p.blocks.slots(),
          item,
          static_cast<std::int32_t>(item % blocks),
          slot,
          (slots < Config::kSlots ? slots + 15 : Config::kSlots) / 16};
}

/// Starts the copies of z~_i, if the denominator needs it.
template <class T, int D, int E, Precision P, bool kRotary, int kLimit>
MHLA_DEVICE void ReadOutSm80<T, D, E, P, kRotary, kLimit>::copy_key_sum(const Params& p,
                                                                        const WorkTile& at) {
  if (p.normalization.denominator == Denominator::kKeySum && at.thread < D / 4) {
    ptx::cp_async_16(at.denominators() + 16 * at.thread,
                     p.mixtures.key_sum + at.item * D + 4 * at.thread, 16);
  }
}

/// Starts the copies of columns of S~_i.
template <class T, int D, int E, Precision P, bool kRotary, int kLimit>
MHLA_DEVICE void ReadOutSm80<T, D, E, P, kRotary, kLimit>::copy_mixture(const Params& p,
                                                                        const WorkTile& at,
                                                                        int column) {
  const std::int64_t first = at.item * (std::int64_t{2} * D * E) + 2 * column;
  const ConsecutiveTokens rows{0, D};
  copy_rows<kThreads>(at.mixture(0), p.mixtures.high + first, 2 * E, rows, index_of(at.thread));
  if constexpr (P == Precision::kPair) {
    copy_rows<kThreads>(at.mixture(1), p.mixtures.low + first, 2 * E, rows, index_of(at.thread));
  }
  ptx::cp_async_commit_group();
}

/// Starts the copies of a strip, or of nothing after the last.
template <class T, int D, int E, Precision P, bool kRotary, int kLimit>
MHLA_DEVICE void ReadOutSm80<T, D, E, P, kRotary, kLimit>::copy_strip(const Params& p,
                                                                      const WorkTile& at,
                                                                      std::int32_t strip) {
  if (strip < at.strips) {
    copy_rows<32>(at.stage(strip), p.q.head(at.pair), p.q.token_stride, at.tokens(strip),
                  index_of(at.lane) % 32);
  }
  ptx::cp_async_commit_group();
}

/// Stores sum_b m_ib s_bw of the slots, 0 for empty slots.
template <class T, int D, int E, Precision P, bool kRotary, int kLimit>
MHLA_DEVICE void ReadOutSm80<T, D, E, P, kRotary, kLimit>::store_cross_sums(const Params& p,
                                                                            const WorkTile& at) {
  const float* const m = p.mixing.of(at.pair).row(at.block);
  const std::int32_t width = p.blocks.slots();
  MHLA_CUDA_LOOP
  for (auto row = static_cast<std::int32_t>(at.thread); row < 16 * at.strips; row += kThreads) {
    const bool filled = at.tokens(0)(row) >= 0;
    const float* const s = p.scores + at.scores + at.slot + row;
    float sum = 0;
    for (std::int32_t b = 0; b < (filled ? p.blocks.blocks() : 0); ++b) {
      sum += ptx::ld_global_nc_f32(m + b) * ptx::ld_global_f32(s + std::int64_t{b} * width);
    }
    ptx::st_shared_f32(at.denominators() + 4 * row, sum);
  }
}

/// Computes the outputs of the 16 slots in the strip's stage. The stage is free afterwards.
template <class T, int D, int E, Precision P, bool kRotary, int kLimit>
MHLA_DEVICE void ReadOutSm80<T, D, E, P, kRotary, kLimit>::read_out_strip(const Params& p,
                                                                          const WorkTile& at,
                                                                          Pass pass,
                                                                          std::int32_t strip) {
  const Strip stage = at.stage(strip);
  const std::uint32_t lane = index_of(at.lane) % 32;
  FactorRows<T, D> rows = load_rows(stage, 0, lane);
  if constexpr (!kIsFloat<T>) apply<T>(p.map, rows);
  RowPair den{0, 0};
  if (p.normalization.denominator == Denominator::kKeySum) {
    if constexpr (kIsFloat<T>) {
      den = row_products(rows, at.denominators(), lane);
    } else {
      den = row_products<T>(rows, at.denominators(), lane);
    }
  } else if (p.normalization.denominator == Denominator::kCrossQuery) {
    const std::uint32_t slot = 16 * strip + lane / 4;
    den = {ptx::ld_shared_f32(at.denominators() + 4 * slot),
           ptx::ld_shared_f32(at.denominators() + 4 * (slot + 8))};
  }
  if constexpr (kRotary) rotate<T>(rows, p.angles, at.row_tokens(strip), lane);
  ptx::bar_warp_sync();  // all threads have read their part of Q
  const auto multiply_columns = [&](int column, float(&sums)[kOutputColumns / 8][4]) -> RowPair {
    if constexpr (kIsFloat<T>) {
      multiply<bfloat16>(sums, rows.low, at.mixture(0), 0, column / 8, lane);
      multiply<bfloat16>(sums, rows.high, at.mixture(1), 0, column / 8, lane);
      multiply<bfloat16>(sums, rows.high, at.mixture(0), 0, column / 8, lane);
    } else {
      multiply<T>(sums, rows, at.mixture(0), 0, column / 8, lane);
      if constexpr (P == Precision::kPair) {
        multiply<T>(sums, rows, at.mixture(1), 0, column / 8, lane);
      }
    }
    return p.normalization.factors(sums, den, inverse_power(p.mixtures.scale));
  };
  RowPair squares{0, 0};
  MHLA_CUDA_LOOP
  for (int column = 0; kWhole && E > kOutputColumns && p.norm.normed && column < E;
       column += kOutputColumns) {
    float sums[kOutputColumns / 8][4] = {};
    const RowPair factors = multiply_columns(column, sums);
    add_squares(squares, sums, factors);
  }
  MHLA_CUDA_LOOP
  for (int column = 0; column < kColumns; column += kOutputColumns) {
    float sums[kOutputColumns / 8][4] = {};
    RowPair factors = multiply_columns(column, sums);
    if (p.norm.normed) {
      if constexpr (E == kOutputColumns) add_squares(squares, sums, factors);
      if constexpr (!kWhole) {
        if (pass.sums) {
          add_squares(squares, sums, factors);
          keep_squares(at, pass, strip, over_row(squares));
          return;
        }
      }
      const RowPair whole = kWhole ? over_row(squares) : kept_squares(at, strip);
      p.norm.template apply<T>(sums, p.norm.template scaled<E>(factors, whole),
                               pass.column + column, at.pair, at.row_tokens(strip), lane);
      factors = {1, 1};
    }
    if constexpr (kIsFloat<T>) {
      write_float_sums(sums, factors, p.o.head(at.pair) + 4 * column, p.o.token_stride,
                       at.tokens(strip), lane);
    } else {
      write_sums<T>(sums, factors, typename Config::Output{stage.begin},
                    p.o.head(at.pair) + 2 * (pass.column + column), p.o.token_stride,
                    at.tokens(strip), lane);
    }
  }
}

}  // namespace mhla::cuda

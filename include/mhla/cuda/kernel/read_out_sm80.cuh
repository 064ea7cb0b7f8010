#pragma once

/// \file
/// Outputs from mixtures, for every token t in block i:
///
///     o_t = factor(den_t) * phi(q_t) S~_i        [E], rounded to T
///     den_t = phi(q_t) . z~_i                    Denominator::kKeySum, in float
///     den_t = sum_b m_ib s_bw                    Denominator::kCrossQuery, w the slot of t: scores
///                                                of every slot of every block are read
///
/// with phi(q_t) rounded to T and S~_i as it is stored, high + low for Precision::kPair. With
/// kRotary phi(q_t) turns (tile/rotary.cuh) before it is multiplied with S~_i. Norm and
/// gate of o where wanted (tile/output_norm.cuh): products of (128, 256) are made twice then, first
/// for the squares of all columns.
///
/// A thread block has up to 256 slots of one block of one pair; along x: pair, then block, then
/// part of the block. S~_i, all of it, stays in shared memory. Warps share nothing else and meet no
/// more: each takes every kWarps-th strip of 16 slots through stages of its own, holds phi of it in
/// registers, and sends the output through the stage that Q has left, D columns at a time.
///
///     (D, E)         warps   stages     a warp's registers hold        per multiprocessor
///     (64, 64)       4       3          16 words of phi(q), 32 sums    4 or 3 thread blocks
///     (72, 72)       4       3          18, 36                         4 or 3
///     (128, 128)     4, 8    2          32, 64                         2, kPair 1
///     (128, 256)     8       2, 1       32, 64                         1
///
/// Shared memory: S~_i, the stages, a list of the slots' tokens, and z~_i or denominators:
/// kBytes of ReadOutConfig. Device memory: Q and O once, S~ and z~ once for 256 slots.
/// Source: arXiv:2601.07832, section 4.1, eq. (4).

#include <cstdint>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/kernel/parameters.cuh"
#include "mhla/cuda/kernel/widths.cuh"
#include "mhla/cuda/ptx/barrier.cuh"
#include "mhla/cuda/ptx/copy_async.cuh"
#include "mhla/cuda/ptx/global.cuh"
#include "mhla/cuda/ptx/index.cuh"
#include "mhla/cuda/ptx/shared.cuh"
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

template <int D, int E, Precision P>
struct ReadOutConfig {
  static_assert(has_kernels(D, E),
                "kernels have (D, E) of (64, 64), (72, 72), (128, 128) and (128, 256)");

  static constexpr int kSlots = 256;  ///< of a thread block
  static constexpr int kParts = P == Precision::kPair ? 2 : 1;
  using Mixture = SharedTile<D, E>;  ///< [d][e]
  using Strip = SharedTile<16, D>;   ///< [slot][d], and D columns of the output

  static constexpr int kMixtureBytes = kParts * Mixture::kBytes;
  static constexpr int kWarps = kMixtureBytes > 32768 ? 8 : 4;
  static constexpr int kThreads = 32 * kWarps;
  static constexpr int kStages = D < 128 ? 3 : kMixtureBytes > 65536 ? 1 : 2;

  // The plan of shared memory, in bytes.
  static constexpr int kStrips = kMixtureBytes;
  static constexpr int kTokens = kStrips + kWarps * kStages * Strip::kBytes;
  static constexpr int kDenominators = kTokens + 4 * kSlots;  ///< z~, or denominators of slots
  static constexpr int kBytes = kDenominators + 4 * kSlots;
  static_assert(D <= kSlots, "z~ fits where denominators of slots do");
  static_assert(kBytes <= shared_limit(Arch::kSm80), "S~ and a stage fit into shared memory");
};

template <class T, int D, int E, Precision P, bool kRotary = false>
class ReadOutSm80 {
  using Config = ReadOutConfig<D, E, P>;

 public:
  using Params = ReadOutParameters;
  static constexpr Arch kArchitecture = Arch::kSm80;
  static constexpr int kThreads = Config::kThreads;
  static constexpr int kSharedBytes = Config::kBytes;
  static constexpr int kBlocksPerMultiprocessor = D < 128 ? (P == Precision::kPair ? 3 : 4)
                                                  : kThreads == 128 ? 2
                                                                    : 1;
  static constexpr int kRegisters = D == 128 ? 255 : P == Precision::kPair ? 168 : 128;

  static constexpr unsigned grid(const Params& p, int pairs) {
    return static_cast<unsigned>(pairs) * static_cast<unsigned>(p.blocks.blocks()) * parts(p);
  }
  MHLA_DEVICE void operator()(const Params& p) const;

 private:
  using Mixture = typename Config::Mixture;
  using Strip = typename Config::Strip;
  static constexpr int kStages = Config::kStages;
  static constexpr int kWarps = Config::kWarps;

  /// What a thread works on.
  struct WorkTile {
    std::uint32_t thread;
    std::uint32_t lane;
    std::int32_t warp;
    std::uint32_t shared;
    BatchHead pair;
    std::int64_t scores;  // of the pair: number of the first
    std::int64_t item;    // pair * M + i
    std::int32_t block;   // i
    std::int32_t slot;    // the first
    std::int32_t strips;  // of 16 slots

    MHLA_DEVICE Mixture mixture(int part) const { return {shared + part * Mixture::kBytes}; }
    MHLA_DEVICE Strip stage(std::int32_t strip) const {  // of strips warp, warp + kWarps, ...
      const std::int32_t own = warp * kStages + strip / kWarps % kStages;
      return {shared + Config::kStrips + own * Strip::kBytes};
    }
    MHLA_DEVICE ListedTokens tokens(std::int32_t strip) const {
      return {shared + Config::kTokens, 16 * strip};
    }
    /// Of the thread's rows of the strip.
    MHLA_DEVICE TokenPair row_tokens(std::int32_t strip) const {
      const auto row = static_cast<std::int32_t>(lane / 4);
      return {tokens(strip)(row), tokens(strip)(row + 8)};
    }
    MHLA_DEVICE std::uint32_t denominators() const { return shared + Config::kDenominators; }
  };

  /// Thread blocks that share a block of tokens.
  static MHLA_HOST_DEVICE constexpr unsigned parts(const Params& p) {
    return static_cast<unsigned>((p.blocks.slots() - 1) / Config::kSlots + 1);
  }

  static MHLA_DEVICE WorkTile work_tile(const Params& p);
  static MHLA_DEVICE void copy_mixture(const Params& p, const WorkTile& at);
  static MHLA_DEVICE void copy_strip(const Params& p, const WorkTile& at, std::int32_t strip);
  static MHLA_DEVICE void store_cross_sums(const Params& p, const WorkTile& at);
  static MHLA_DEVICE void read_out_strip(const Params& p, const WorkTile& at, std::int32_t strip);
};

// -------------------------------------------------------------------------------------------------

template <class T, int D, int E, Precision P, bool kRotary>
MHLA_DEVICE void ReadOutSm80<T, D, E, P, kRotary>::operator()(const Params& p) const {
  const WorkTile at = work_tile(p);
  ptx::griddepcontrol_wait();
  copy_mixture(p, at);
  const BlockTokens tokens{p.blocks, p.blocks.origin(at.block), at.slot};
  list_tokens<kThreads, Config::kSlots>(at.shared + Config::kTokens, tokens, at.thread);
  ptx::bar_sync();
  MHLA_CUDA_LOOP
  for (int n = 0; n < kStages; ++n) copy_strip(p, at, at.warp + n * kWarps);
  if (p.normalization.denominator == Denominator::kCrossQuery) store_cross_sums(p, at);
  ptx::cp_async_wait_group<kStages>();
  ptx::bar_sync();  // S~ is here, and what denominators are made of
  MHLA_CUDA_LOOP
  for (std::int32_t strip = at.warp; strip < at.strips; strip += kWarps) {
    ptx::cp_async_wait_group<kStages - 1>();
    ptx::bar_warp_sync();
    read_out_strip(p, at, strip);
    copy_strip(p, at, strip + kStages * kWarps);
  }
}

template <class T, int D, int E, Precision P, bool kRotary>
MHLA_DEVICE auto ReadOutSm80<T, D, E, P, kRotary>::work_tile(const Params& p) -> WorkTile {
  const std::uint32_t thread = ptx::tid_x();
  const std::uint32_t index = ptx::ctaid_x();
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

/// Starts the copies of S~_i and z~_i.
template <class T, int D, int E, Precision P, bool kRotary>
MHLA_DEVICE void ReadOutSm80<T, D, E, P, kRotary>::copy_mixture(const Params& p,
                                                                const WorkTile& at) {
  constexpr std::int64_t kBytes = std::int64_t{2} * D * E;
  const ConsecutiveTokens rows{0, D};
  copy_rows<kThreads>(at.mixture(0), p.mixtures.high + at.item * kBytes, 2 * E, rows, at.thread);
  if constexpr (P == Precision::kPair) {
    copy_rows<kThreads>(at.mixture(1), p.mixtures.low + at.item * kBytes, 2 * E, rows, at.thread);
  }
  if (p.normalization.denominator == Denominator::kKeySum && at.thread < D / 4) {
    ptx::cp_async_16(at.denominators() + 16 * at.thread,
                     p.mixtures.key_sum + at.item * D + 4 * at.thread, 16);
  }
  ptx::cp_async_commit_group();
}

/// Starts the copies of a strip, if there is one.
template <class T, int D, int E, Precision P, bool kRotary>
MHLA_DEVICE void ReadOutSm80<T, D, E, P, kRotary>::copy_strip(const Params& p, const WorkTile& at,
                                                              std::int32_t strip) {
  if (strip < at.strips) {
    copy_rows<32>(at.stage(strip), p.q.head(at.pair), p.q.token_stride, at.tokens(strip), at.lane);
  }
  ptx::cp_async_commit_group();
}

/// sum_b m_ib s_bw of the slots, 0 for empty ones.
template <class T, int D, int E, Precision P, bool kRotary>
MHLA_DEVICE void ReadOutSm80<T, D, E, P, kRotary>::store_cross_sums(const Params& p,
                                                                    const WorkTile& at) {
  const float* const m = p.mixing.row(at.block);
  const std::int32_t width = p.blocks.slots();
  MHLA_CUDA_LOOP
  for (auto own = static_cast<std::int32_t>(at.thread); own < 16 * at.strips; own += kThreads) {
    const bool filled = at.tokens(0)(own) >= 0;
    const float* const s = p.scores + at.scores + at.slot + own;
    float sum = 0;
    for (std::int32_t b = 0; b < (filled ? p.blocks.blocks() : 0); ++b) {
      sum += ptx::ld_global_nc_f32(m + b) * ptx::ld_global_f32(s + std::int64_t{b} * width);
    }
    ptx::st_shared_f32(at.denominators() + 4 * own, sum);
  }
}

/// The outputs of the 16 slots that are in the strip's stage, which is free afterwards.
template <class T, int D, int E, Precision P, bool kRotary>
MHLA_DEVICE void ReadOutSm80<T, D, E, P, kRotary>::read_out_strip(const Params& p,
                                                                  const WorkTile& at,
                                                                  std::int32_t strip) {
  const Strip stage = at.stage(strip);
  Fragment<D> rows = load_rows(stage, 0, at.lane);
  apply<T>(p.map, rows);
  RowPair factors{0, 0};
  if (p.normalization.denominator == Denominator::kKeySum) {
    factors = row_products<T>(rows, at.denominators(), at.lane);
  } else if (p.normalization.denominator == Denominator::kCrossQuery) {
    const std::uint32_t slot = 16 * strip + at.lane / 4;
    factors = {ptx::ld_shared_f32(at.denominators() + 4 * slot),
               ptx::ld_shared_f32(at.denominators() + 4 * (slot + 8))};
  }
  const float unit = inverse_power(p.mixtures.scale);
  factors = {p.normalization.factor(factors.x) * unit, p.normalization.factor(factors.x_8) * unit};
  if constexpr (kRotary) rotate<T>(rows, p.angles, at.row_tokens(strip), at.lane);
  ptx::bar_warp_sync();  // all have their part of Q
  const auto multiply_columns = [&](int column, float(&sums)[D / 8][4]) {
    multiply<T>(sums, rows, at.mixture(0), 0, column / 8, at.lane);
    if constexpr (P == Precision::kPair) {
      multiply<T>(sums, rows, at.mixture(1), 0, column / 8, at.lane);
    }
  };
  RowPair squares{0, 0};
  MHLA_CUDA_LOOP
  for (int column = 0; p.norm.normed && E > D && column < E; column += D) {
    float sums[D / 8][4] = {};
    multiply_columns(column, sums);
    add_squares(squares, sums, factors);
  }
  MHLA_CUDA_LOOP
  for (int column = 0; column < E; column += D) {
    float sums[D / 8][4] = {};
    multiply_columns(column, sums);
    RowPair own = factors;
    if (p.norm.normed) {
      if constexpr (E == D) add_squares(squares, sums, factors);
      p.norm.template apply<T>(sums, p.norm.template scaled<E>(factors, over_row(squares)), column,
                               at.pair, at.row_tokens(strip), at.lane);
      own = {1, 1};
    }
    write_sums<T>(sums, own, stage, p.o.head(at.pair) + 2 * column, p.o.token_stride,
                  at.tokens(strip), at.lane);
  }
}

}  // namespace mhla::cuda

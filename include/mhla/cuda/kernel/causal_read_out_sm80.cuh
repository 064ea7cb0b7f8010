#pragma once

/// \file
/// Read-out of the causal form, for every token t of block i, a run of W consecutive tokens:
///
///     P_tj  = m_ii phi(q_t).phi(k_j)               j <= t in block i
///     n_t   = phi(q_t) S~_i + sum_j P_tj v_j
///     den_t = phi(q_t) . z~_i + sum_j P_tj         Denominator::kKeySum
///     o_t   = factor(den_t) * n_t                  [E], rounded to T
///
/// S~_i sums earlier blocks and is stored as high + low for Precision::kPair. S~_0 is zero and not
/// read. phi is rounded to T. P is multiplied by m_ii in float and rounded to T before it enters
/// either sum. In half it must stay below 65520. Each o is normalised and gated if the call wants
/// it (tile/output_norm.cuh). Floats are split as in summary_sm80.cuh, and so is P. Then o is a
/// float. With kRotary, phi(q_t) and phi(k_j) rotate (tile/rotary.cuh) before
/// their product. Denominators would need P of unrotated features, and are not supported then.
///
/// A thread block has 64 tokens of one block of one pair, over all of E, or over 128 columns of E
/// if D is above 128. Such parts of E have no norm. Each of its 4 warps has 16 tokens. Thread
/// blocks are numbered along x by pair, then block, then part of the block. The factors arrive as
/// items through one ring of slots: Q, S~_i by rows, then K and V of every 64 tokens up to its
/// last. One barrier per item waits for the item. It also frees the previous item's slot, which the
/// item kSlots - 1 further on fills.
///
/// phi(q) and 64 columns of P stay in registers. The threads that copied keys compute phi(k) in
/// shared memory before that barrier, once for all warps.
///
/// K and V of later blocks are never read, and 16 x 16 products right of the diagonal are skipped.
/// On the diagonal P is zero for j > t, and multiply_lower keeps infinities and NaN of v_j out of
/// earlier tokens. Shared memory: kBytes of CausalReadOutConfig. Device memory: Q, the gate and O
/// once; S~ and z~ once per 64 tokens; K and V once per 64 tokens of the block from their position
/// on. Source: arXiv:2601.07832, section 4.2.

#include <cstdint>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/kernel/causal_read_out_sm80_config.cuh"
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
#include "mhla/cuda/tile/output_norm.cuh"
#include "mhla/cuda/tile/outputs.cuh"
#include "mhla/cuda/tile/product.cuh"
#include "mhla/cuda/tile/rotary.cuh"
#include "mhla/cuda/tile/rows.cuh"
#include "mhla/cuda/tile/tokens.cuh"
#include "mhla/cuda/tile/triangular_product.cuh"

namespace mhla::cuda {

template <class T, int D, int E, Precision P, bool kRotary = false>
class CausalReadOutSm80 {
  static_assert(!kRotary || Width<D>::kWholeTiles, "features turn 16 at a time");
  using Config = CausalReadOutConfig<D, E, P, T>;
  static_assert(!kIsFloat<T> || (P == Precision::kPair && !kRotary && Config::kColumns == E),
                "floats have no such kernel");

 public:
  using Params = CausalReadOutParameters;
  static constexpr Arch kArchitecture = Arch::kSm80;
  static constexpr int kThreads = Config::kThreads;
  static constexpr int kSharedBytes = Config::kBytes;
  static constexpr int kBlocksPerMultiprocessor =
      resident_blocks(kThreads, D / 4 + Config::kColumns / 2 + 76, kSharedBytes);

  static constexpr unsigned grid(const Params& p, int pairs) {
    return static_cast<unsigned>(pairs) * static_cast<unsigned>(p.blocks.blocks()) * parts(p) *
           Config::kColumnParts;
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
  using Rows = typename Config::Rows;
  using State = typename Config::State;
  using Values = typename Config::Values;
  static constexpr int kTokens = Config::kTokens;
  static constexpr int kGroups = kTokens / 16;  ///< groups of 16 keys
  using WorkTile = CausalReadOutTile<Config>;

  /// Values of a warp for its 16 tokens.
  struct Sums {
    FactorRows<T, D> rows{};           // phi(q)
    FactorRows<T, kTokens> weights{};  // P of 64 keys
    float n[Config::kColumns / 8][4] = {};
    RowPair denominator{0, 0};  // the thread's part of the row sums of P
    RowPair earlier{0, 0};      // phi(q) . z~
  };

  /// Number of thread blocks per block of tokens.
  static MHLA_HOST_DEVICE constexpr unsigned parts(const Params& p) {
    return static_cast<unsigned>((p.blocks.slots() - 1) / kTokens + 1);
  }

  static MHLA_DEVICE WorkTile work_tile(const Params& p, std::uint32_t column_part) {
    const std::uint32_t thread = ptx::tid_x();
    const std::uint32_t index = column_part / Config::kColumnParts;
    const std::uint32_t item = index / parts(p);
    const auto blocks = static_cast<std::uint32_t>(p.blocks.blocks());
    const auto block = static_cast<std::int32_t>(item % blocks);
    const auto part = static_cast<std::int32_t>(index % parts(p));
    const std::int32_t width = p.blocks.slots();
    const std::int32_t first = block * width;
    const std::int32_t left = p.blocks.tokens() - first;
    const auto pair = static_cast<std::int32_t>(item / blocks);
    const std::int32_t states = p.mixing.diagonal(block) > 0 ? Config::kParts * Config::kStates : 0;
    return {thread % 32,
            static_cast<std::int32_t>(thread / 32),
            ptx::shared_begin(),
            batch_head(pair, p.heads),
            static_cast<std::int32_t>(p.mixtures.first(pair, p.blocks.blocks())) + block,
            block,
            part,
            static_cast<std::int32_t>(column_part % Config::kColumnParts) * Config::kColumns,
            first,
            first + (left < width ? left : width),
            states,
            1 + states + (part + 1) * Config::kKeyItems};
  }

  static MHLA_DEVICE void read_out(const Params& p, const WorkTile& at) {
    constexpr int kAhead = Config::kSlots - 1;
    if (at.first + at.part * kTokens >= at.last) return;  // in a short last block
    MHLA_CUDA_LOOP
    for (std::int32_t n = 0; n < kAhead; ++n) copy_item(p, at, n);
    const float m =
        ptx::ld_global_nc_f32(p.mixing.of(at.pair).row(at.block) + p.mixing.diagonal(at.block));
    Sums sums;
    MHLA_CUDA_LOOP
    for (std::int32_t n = 0; n < at.items; ++n) {
      ptx::cp_async_wait_group<kAhead - 1>();
      if constexpr (kIsFloat<T>) {
        split_item(p, at, n);
      } else if (at.is_key(n)) {
        apply_to_copied<T, kThreads>(p.key_map, Rows{at.slot(n)}, ptx::tid_x());
      }
      if constexpr (kRotary) turn_copied(p, at, n);
      ptx::bar_sync();  // item n has arrived, and no thread reads the previous one
      copy_item(p, at, n + kAhead);
      if (n == 0) {
        take_queries(p, at, sums);
      } else if (at.is_state(n)) {
        add_state(at, n, sums);
        if (n == at.states) scale_sums(sums.n, inverse_power(p.mixtures.scale));
      } else if (at.is_key(n)) {
        weigh_keys(at, n, m, sums);
      } else {
        add_values(at, n, sums);
      }
    }
    ptx::bar_sync();
    write_output(p, at, sums);
  }

  /// Starts the copies of an item, or of nothing after the last one. z~ comes with Q.
  static MHLA_DEVICE void copy_item(const Params& p, const WorkTile& at, std::int32_t n) {
    const std::uint32_t thread = ptx::tid_x();  // read again for each item, to save registers
    if (n == 0) {
      copy_rows<kThreads>(Rows{at.slot(0)}, p.q.head(at.pair), p.q.token_stride,
                          at.tokens(at.part * kTokens), thread);
      if (at.states > 0 && p.normalization.denominator == Denominator::kKeySum && thread < D / 4) {
        ptx::cp_async_16(at.shared + Config::kKeySum + 16 * thread,
                         p.mixtures.key_sum + std::int64_t{at.mixture} * D + 4 * thread, 16);
      }
    } else if (at.is_state(n)) {
      const bool low = n > Config::kStates;
      const unsigned char* const state = (low ? p.mixtures.low : p.mixtures.high) +
                                         at.mixture * (std::int64_t{2} * D * E) + 2 * at.column;
      const std::int32_t row = (n - 1 - (low ? Config::kStates : 0)) * State::kRows;
      copy_rows<kThreads>(State{at.slot(n)}, state, 2 * E, ConsecutiveTokens{row, D}, thread);
    } else if (n < at.items) {
      const auto [part, index] = at.keys(n);
      if (index == 0) {
        copy_rows<kThreads>(Rows{at.slot(n)}, p.k.head(at.pair), p.k.token_stride,
                            at.tokens(part * kTokens), thread);
      } else {
        copy_rows<kThreads>(Values{at.slot(n)}, p.v.head(at.pair) + 2 * at.column, p.v.token_stride,
                            at.tokens(part * kTokens + (index - 1) * Values::kRows), thread);
      }
    }
    ptx::cp_async_commit_group();
  }

  /// Splits the floats of Q, K or V that the thread copied.
  static MHLA_DEVICE void split_item(const Params& p, const WorkTile& at, std::int32_t n) {
    if (at.is_state(n)) return;
    const std::uint32_t thread = ptx::tid_x();
    if (n > 0 && !at.is_key(n)) {
      split_copied<kThreads>(Values{at.slot(n)}, thread);
    } else {
      split_copied<kThreads>(n == 0 ? p.query_map : p.key_map, Rows{at.slot(n)}, thread);
    }
  }

  /// Rotates the phi(k) that the thread copied. Maps and rotates the queries that it copied.
  static MHLA_DEVICE void turn_copied(const Params& p, const WorkTile& at, std::int32_t n) {
    if (n > 0 && !at.is_key(n)) return;
    const Rows rows{at.slot(n)};
    const std::uint32_t thread = ptx::tid_x();
    if (n == 0) apply_to_copied<T, kThreads>(p.query_map, rows, thread);
    const std::int32_t part = n == 0 ? at.part : at.keys(n).part;
    rotate_copied<T, kThreads>(n == 0 ? p.query_angles : p.key_angles, rows,
                               at.tokens(part * kTokens), thread);
  }

  static MHLA_DEVICE void take_queries(const Params& p, const WorkTile& at, Sums& sums) {
    sums.rows = load_rows(Rows{at.slot(0)}, 16 * at.warp, at.lane);
    if constexpr (kRotary) return;  // already mapped, and without a denominator
    if constexpr (!kIsFloat<T>) apply<T>(p.query_map, sums.rows);
    if (at.states > 0 && p.normalization.denominator == Denominator::kKeySum) {
      if constexpr (kIsFloat<T>) {
        sums.earlier = row_products(sums.rows, at.shared + Config::kKeySum, at.lane);
      } else {
        sums.earlier = row_products<T>(sums.rows, at.shared + Config::kKeySum, at.lane);
      }
    }
  }

  /// Adds phi(q) S~ to n, over the rows of S~ in item n.
  static MHLA_DEVICE void add_state(const WorkTile& at, std::int32_t n, Sums& sums) {
    if constexpr (kIsFloat<T>) {
      if (n <= Config::kStates) add_state_to(at, n, sums.rows.low, sums.n);
      add_state_to(at, n, sums.rows.high, sums.n);
    } else {
      add_state_to(at, n, sums.rows, sums.n);
    }
  }
  static MHLA_DEVICE void add_state_to(const WorkTile& at, std::int32_t n,
                                       const Fragment<D>& features,
                                       float (&to)[Config::kColumns / 8][4]) {
    constexpr int kWords = Fragment<State::kRows>::kWords;
    const std::int32_t state = (n - 1) % Config::kStates;
    Fragment<State::kRows> rows;
    MHLA_CUDA_UNROLL
    for (int i = 0; i < kWords; ++i) {
      rows.x[i] = features.x[i];
      MHLA_CUDA_UNROLL
      for (int s = 1; s < Config::kStates; ++s) {  // registers cannot be indexed
        rows.x[i] = state == s ? features.x[kWords * s + i] : rows.x[i];
      }
    }
    multiply<factor_t<T>>(to, rows, State{at.slot(n)}, 0, 0, at.lane);
  }

  /// Computes P of the 64 keys of item n, and adds its row sums.
  static MHLA_DEVICE void weigh_keys(const WorkTile& at, std::int32_t n, float m, Sums& sums) {
    const bool diagonal = at.keys(n).part == at.part;
    const auto row = static_cast<std::int32_t>(at.lane / 4);
    const auto column = static_cast<std::int32_t>(at.lane % 4 * 2);
    MHLA_CUDA_UNROLL
    for (int group = 0; group < kGroups; ++group) {
      if (diagonal && group > at.warp) continue;
      float scores[2][4] = {};
      if constexpr (kIsFloat<T>) {
        multiply_transposed(scores, sums.rows, Rows{at.slot(n)}, 16 * group, at.lane);
      } else {
        multiply_transposed<T>(scores, sums.rows, Rows{at.slot(n)}, 16 * group, at.lane);
      }
      const std::int32_t last =
          diagonal && group == at.warp ? row : 16;  // keys of the group that count
      MHLA_CUDA_UNROLL
      for (int j = 0; j < 2; ++j) {
        const std::int32_t key = 8 * j + column;
        MHLA_CUDA_UNROLL
        for (int i = 0; i < 2; ++i) {
          scores[j][i] = key + i <= last ? scores[j][i] * m : 0;
          scores[j][i + 2] = key + i <= last + 8 ? scores[j][i + 2] * m : 0;
        }
      }
      if constexpr (kIsFloat<T>) {
        add_elements(sums.denominator, scores);
        const PartsFragment<16> weights = split(scores);
        set_group(sums.weights.high, group, weights.high);
        set_group(sums.weights.low, group, weights.low);
      } else {
        const Fragment<16> weights = rounded<T>(scores);
        if constexpr (!kRotary) add_elements<T>(sums.denominator, weights);
        set_group(sums.weights, group, weights);
      }
    }
  }

  static MHLA_DEVICE void set_group(Fragment<kTokens>& weights, int group,
                                    const Fragment<16>& of_group) {
    MHLA_CUDA_UNROLL
    for (int i = 0; i < 4; ++i) weights.x[4 * group + i] = of_group.x[i];
  }

  /// Adds P V to n, over the rows of V in item n.
  static MHLA_DEVICE void add_values(const WorkTile& at, std::int32_t n, Sums& sums) {
    constexpr int kValueGroups = Values::kRows / 16;
    const auto [part, index] = at.keys(n);
    const Values values{at.slot(n)};
    const std::int32_t first = (index - 1) * kValueGroups;  // group of the item's first rows
    const std::int32_t whole = part == at.part ? at.warp : kGroups;
    const auto group_of = [&](const Fragment<kTokens>& all, int group) {
      Fragment<16> weights;
      MHLA_CUDA_UNROLL
      for (int i = 0; i < 4; ++i) {
        weights.x[i] = all.x[4 * group + i];
        if (Config::kValues == 2 && first > 0) {
          weights.x[i] = all.x[4 * (kGroups - kValueGroups + group) + i];
        }
      }
      return weights;
    };
    MHLA_CUDA_UNROLL
    for (int group = 0; group < kValueGroups; ++group) {
      if (first + group >= whole) break;
      if constexpr (kIsFloat<T>) {
        multiply_values(sums.n,
                        {group_of(sums.weights.high, group), group_of(sums.weights.low, group)},
                        values, 16 * group, false, at.lane);
      } else {
        const Fragment<16> weights = group_of(sums.weights, group);
        multiply_step<T>(sums.n, weights.x[0], weights.x[1], weights.x[2], weights.x[3], values,
                         16 * group, 0, at.lane);
      }
    }
    const auto diagonal_of = [&](const Fragment<kTokens>& all) {
      Fragment<16> weights;
      MHLA_CUDA_UNROLL
      for (int i = 0; i < 4; ++i) {
        weights.x[i] = all.x[i];
        MHLA_CUDA_UNROLL
        for (int group = 1; group < kGroups; ++group) {
          weights.x[i] = group == at.warp ? all.x[4 * group + i] : weights.x[i];
        }
      }
      return weights;
    };
    if (part == at.part && at.warp / kValueGroups == index - 1) {
      const std::uint32_t row = 16 * (at.warp - first);
      if constexpr (kIsFloat<T>) {
        multiply_values(sums.n, {diagonal_of(sums.weights.high), diagonal_of(sums.weights.low)},
                        values, row, true, at.lane);
      } else {
        multiply_lower<T>(sums.n, diagonal_of(sums.weights), values, row, at.lane);
      }
    }
  }

  static MHLA_DEVICE void write_output(const Params& p, const WorkTile& at, Sums& sums) {
    const RowPair intra = over_row(sums.denominator);
    RowPair factors =
        p.normalization.factors(sums.n, {sums.earlier.x + intra.x, sums.earlier.x_8 + intra.x_8});
    const ConsecutiveTokens tokens = at.tokens(at.part * kTokens + 16 * at.warp);
    if (Config::kColumnParts == 1 && p.norm.normed) {
      RowPair squares{0, 0};
      add_squares(squares, sums.n, factors);
      const auto row = static_cast<std::int32_t>(at.lane / 4);
      p.norm.template apply<T>(sums.n, p.norm.template scaled<E>(factors, over_row(squares)), 0,
                               at.pair, {tokens(row), tokens(row + 8)}, at.lane);
      factors = {1, 1};
    }
    if constexpr (kIsFloat<T>) {
      write_float_sums(sums.n, factors, p.o.head(at.pair), p.o.token_stride, tokens, at.lane);
    } else {
      const typename Config::Output tile{at.shared + at.warp * Config::Output::kBytes};
      write_sums<T>(sums.n, factors, tile, p.o.head(at.pair) + 2 * at.column, p.o.token_stride,
                    tokens, at.lane);
    }
  }
};

}  // namespace mhla::cuda

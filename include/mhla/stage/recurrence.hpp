#pragma once

/// \file
/// Stages 3 to 5 of 5 in one pass over the tokens, for causal linear attention. A query reads all
/// tokens up to its position with weight 1:
///
///     S += phi(k_t) v_t^T     o_t = factor_t phi(q_t)^T S     [D,E], [E]
///     z += phi(k_t)           r_t = phi(q_t) . z              [D]
///
/// S is split into panels of columns, which stay in L1 for all tokens of a strip. A step of a few
/// tokens reads and writes a row of a panel once; their values and outputs are in registers. Unlike
/// chunked forms, it computes no scores of a chunk's keys.
///
/// Law: every element of S and z is one chain over the tokens, every o_t one over D. Bits do not
/// depend on the split of tokens into strips and steps. A later token enters no earlier sum.
/// Cost: 4*N*D*E flops, and 3*N*D for z.
/// Source: Katharopoulos et al., arXiv:2006.16236, section 3.4.

#include <algorithm>

#include "mhla/core/arch.hpp"
#include "mhla/core/workspace.hpp"
#include "mhla/kernel/micro_kernel.hpp"
#include "mhla/kernel/packet.hpp"
#include "mhla/kernel/prefetch.hpp"
#include "mhla/kernel/rows.hpp"
#include "mhla/kernel/unit.hpp"

MHLA_PACKETS_BEGIN

namespace mhla {
inline namespace MHLA_TARGET {
namespace detail {

/// Consecutive tokens. Rows of values and outputs are padded to whole packets.
template <class A>
struct RecurrentTokens {
  Rows<const A> queries;  ///< phi(q), times the scale [n,D]
  Rows<const A> keys;     ///< phi(k) [n,D], with the stride of `queries`
  Rows<const A> values;   ///< [n,E]
  Rows<A> outputs;        ///< [n,E]
  const A* factors;       ///< [n], or null: 1
  Index count;            ///< n
};

/// S of some heads [D,E], panel by panel. Rows of a panel are contiguous.
template <class A>
class Recurrence {
  using P = Packet<A>;
  static constexpr Index kWidth = kLanes<P>;
  static constexpr Index kPanelColumns = kTile.step_vectors * kWidth;

 public:
  Recurrence(const char* function, Arena& arena, Index heads, Index d, Index e)
      : heads_(heads),
        features_(d),
        columns_(padded(e)),
        states_(arena.take<A>(function, {heads, d, columns_})) {}

  /// E rounded up to whole packets.
  static Index padded(Index e) { return round_up(e, kWidth); }
  void clear() const { std::fill_n(states_, heads_ * features_ * columns_, A(0)); }
  /// Approximate number of steps for n tokens.
  Index steps(Index n) const {
    return ceil_div(n, kTile.step_tokens) * ceil_div(columns_, kPanelColumns);
  }

  /// Adds tokens of a head to its S and writes their outputs. Every step prefetches a share of
  /// `next`.
  void advance(Index head, const RecurrentTokens<A>& tokens, Prefetch& next) const {
    A* const state = states_ + head * features_ * columns_;
    Index col = 0;
    for (; col + kPanelColumns <= columns_; col += kPanelColumns) {
      advance_panel<kTile.step_vectors>(tokens, col, state + col * features_, next);
    }
    for (; col < columns_; col += kWidth) {
      advance_panel<1>(tokens, col, state + col * features_, next);
    }
  }

 private:
  template <int kVectors>
  void advance_panel(const RecurrentTokens<A>& tokens, Index col, A* panel, Prefetch& next) const {
    Index t = 0;
    for (; t + kTile.step_tokens <= tokens.count; t += kTile.step_tokens) {
      step<kTile.step_tokens, kVectors>(tokens, t, col, panel, next);
    }
    for (; t < tokens.count; ++t) step<1, kVectors>(tokens, t, col, panel, next);
  }

  /// Processes tokens [t, t + kTokens) in the panel s that begins at column `col`.
  template <int kTokens, int kVectors>
  MHLA_NOINLINE void step(const RecurrentTokens<A>& tokens, Index t, Index col, A* s,
                          Prefetch& next) const {
    const Prefetch::Pieces pieces = next.share(features_);
    P value[kTokens][kVectors], sum[kTokens][kVectors];
    MHLA_UNROLL
    for (int f = 0; f < kTokens; ++f) {
      MHLA_UNROLL
      for (int i = 0; i < kVectors; ++i) {
        value[f][i] = load<A, P>(tokens.values.row(t + f) + col + i * kWidth);
        sum[f][i] = Eigen::internal::pset1<P>(A(0));
        // Prefetch for later use: the outputs of this step, and the values of the next step.
        prefetch_l1(tokens.outputs.row(t + f) + col + i * kWidth);
        prefetch_l1(tokens.values.row(t + kTokens + f) + col + i * kWidth);
      }
    }
    // One stride, in bytes, serves both rows: with more integers in the loop g++ spills them.
    const Index stride = in_register(Index{sizeof(A)} * tokens.keys.stride);
    const A *k = in_register(tokens.keys.row(t)), *q = in_register(tokens.queries.row(t));
    const Index features = features_;
    for (Index d = 0; d < features; ++d, ++k, ++q, s += kVectors * kWidth) {
      if (d < pieces.count) pieces.fetch(d);
      P row[kVectors];
      MHLA_UNROLL
      for (int i = 0; i < kVectors; ++i) row[i] = load<A, P>(s + i * kWidth);
      MHLA_UNROLL
      for (int f = 0; f < kTokens; ++f) {
        const P key = Eigen::internal::pset1<P>(*plus_bytes(k, f * stride));
        MHLA_UNROLL
        for (int i = 0; i < kVectors; ++i) row[i] = multiply_add(key, value[f][i], row[i]);
        const P query = Eigen::internal::pset1<P>(*plus_bytes(q, f * stride));
        MHLA_UNROLL
        for (int i = 0; i < kVectors; ++i) sum[f][i] = multiply_add(query, row[i], sum[f][i]);
      }
      MHLA_UNROLL
      for (int i = 0; i < kVectors; ++i) store(s + i * kWidth, row[i]);
    }
    MHLA_UNROLL
    for (int f = 0; f < kTokens; ++f) {
      const P factor =
          Eigen::internal::pset1<P>(tokens.factors == nullptr ? A(1) : tokens.factors[t + f]);
      MHLA_UNROLL
      for (int i = 0; i < kVectors; ++i) {
        store(tokens.outputs.row(t + f) + col + i * kWidth,
              Eigen::internal::pmul(factor, sum[f][i]));
      }
    }
  }

  Index heads_;
  Index features_;  // D
  Index columns_;   // E in whole packets
  A* states_;       // [heads,D,E]
};

/// Per token in order: z += keys[t], then sums[t] = queries[t] . z.
/// \param z  [D]     \param sums  [count]
template <class A>
MHLA_NOINLINE void advance_key_sum(Rows<const A> queries, Rows<const A> keys, Index count, Index d,
                                   A* z, A* sums) {
  std::fill_n(sums, count, A(0));
  for_each_panel<A, 4>(d, [&]<class P, int kVectors>(Index j) {
    P total[kVectors];
    MHLA_UNROLL
    for (int i = 0; i < kVectors; ++i) total[i] = load<A, P>(z + j + i * kLanes<P>);
    for (Index t = 0; t < count; ++t) {
      P products = Eigen::internal::pset1<P>(A(0));
      MHLA_UNROLL
      for (int i = 0; i < kVectors; ++i) {
        const Index at = j + i * kLanes<P>;
        total[i] = Eigen::internal::padd(total[i], load<A, P>(keys.row(t) + at));
        products = multiply_add(load<A, P>(queries.row(t) + at), total[i], products);
      }
      sums[t] += Eigen::internal::predux(products);
    }
    MHLA_UNROLL
    for (int i = 0; i < kVectors; ++i) store(z + j + i * kLanes<P>, total[i]);
  });
}

}  // namespace detail
}  // namespace MHLA_TARGET
}  // namespace mhla

MHLA_PACKETS_END

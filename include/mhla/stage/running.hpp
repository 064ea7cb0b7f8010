#pragma once

/// \file
/// What a query of a stream reads, and how a stream takes in keys: one pass over the running matrix
/// R, which reads all of it and updates a half.
///
///     R[d]  += k_1[d] v_1 + k_2[d] v_2      for d in [begin, end)
///     o      = q R                          [E]
///
/// R of all heads comes from the second cache, so a pass costs the time of reading it. An update of
/// all of R by one key takes half as much again, in stores; halves that take turns, each with two
/// keys at a time, need half the stores for the same keys.
/// Cost: 2*D*E flops to read, 2*D*E to update.

#include "mhla/core/arch.hpp"
#include "mhla/core/packet.hpp"
#include "mhla/core/tile.hpp"
#include "mhla/stage/strip.hpp"

// A packet as a template argument loses its alignment attribute; nothing here depends on it.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wignored-attributes"
#endif

namespace mhla::inline MHLA_TARGET::detail {

/// Keys that a half of R takes in together.
inline constexpr Index kFoldedKeys = 2;

/// sum += query * row of R.
template <class P, int kVectors, class A>
MHLA_INLINE inline void read_row(A query, const A* row, P (&sum)[kVectors]) {
  const P q = Eigen::internal::pset1<P>(query);
  MHLA_UNROLL
  for (int i = 0; i < kVectors; ++i) {
    sum[i] = multiply_add(q, load<A, P>(row + i * kLanes<P>), sum[i]);
  }
}

/// Columns [0, kVectors packets) of fold_and_read.
template <class P, int kVectors, class A>
inline void fold_and_read_panel(A* running, Index e, Rows<A> keys, Rows<A> values, const A* query,
                                Index d, Index begin, Index end, A* output) {
  constexpr Index kWidth = kLanes<P>;
  P v[kFoldedKeys][kVectors], sum[kVectors];
  MHLA_UNROLL
  for (int i = 0; i < kVectors; ++i) {
    MHLA_UNROLL
    for (int f = 0; f < kFoldedKeys; ++f) v[f][i] = load<A, P>(values.row(f) + i * kWidth);
    sum[i] = Eigen::internal::pset1<P>(A(0));
  }
  Index j = 0;
  for (; j < begin; ++j, running += e) read_row(query[j], running, sum);
  for (; j < end; ++j, running += e) {
    const P q = Eigen::internal::pset1<P>(query[j]);
    P k[kFoldedKeys];
    MHLA_UNROLL
    for (int f = 0; f < kFoldedKeys; ++f) k[f] = Eigen::internal::pset1<P>(keys.row(f)[j]);
    MHLA_UNROLL
    for (int i = 0; i < kVectors; ++i) {
      P r = load<A, P>(running + i * kWidth);
      MHLA_UNROLL
      for (int f = 0; f < kFoldedKeys; ++f) r = multiply_add(k[f], v[f][i], r);
      store(running + i * kWidth, r);
      sum[i] = multiply_add(q, r, sum[i]);
    }
  }
  for (; j < d; ++j, running += e) read_row(query[j], running, sum);
  MHLA_UNROLL
  for (int i = 0; i < kVectors; ++i) store(output + i * kWidth, sum[i]);
}

/// R[begin..end) += keys^T values of kFoldedKeys keys, then output = query R, in one pass.
/// \param running  R [D,E]      \param keys  [kFoldedKeys, D]      \param values  [kFoldedKeys, E]
template <class A>
void fold_and_read(A* running, Rows<A> keys, Rows<A> values, const A* query, Index d, Index begin,
                   Index end, Index e, A* output) {
  using P = Packet<A>;
  constexpr int kVectors = kVectorRegisters / 4;
  constexpr Index kPanel = kVectors * kLanes<P>;
  Index j = 0;
  for (; j + kPanel <= e; j += kPanel) {
    fold_and_read_panel<P, kVectors>(running + j, e, keys, values.right_of(j), query, d, begin, end,
                                     output + j);
  }
  for (; j + kLanes<P> <= e; j += kLanes<P>) {
    fold_and_read_panel<P, 1>(running + j, e, keys, values.right_of(j), query, d, begin, end,
                              output + j);
  }
  for (; j < e; ++j) {
    fold_and_read_panel<A, 1>(running + j, e, keys, values.right_of(j), query, d, begin, end,
                              output + j);
  }
}

/// R of a block that is still open, and the block's keys and values.
///
/// Keys that come one at a time are taken in by halves of R's rows in turn: the m-th key since all
/// of R held the same keys goes into half (m - 1) % 2, together with the key before it, which that
/// half has missed. So one half holds all keys, the other one all but the last.
template <class A>
struct Running {
  A* matrix = nullptr;  ///< R [D,E]
  Index features = 0;   ///< D
  Index width = 0;      ///< E
  Rows<A> keys;         ///< [W,D]
  Rows<A> values;       ///< [W,E]

  /// output = query R, as if all of R held the first `count` keys.
  /// \param m       keys since all of R held the same
  /// \param is_new  whether the last of them has still to be taken in
  /// \param scaled  the last two keys times m_ii [2,D]
  void read(const A* query, Index count, Index m, bool is_new, A weight, Rows<A> scaled,
            A* output) const {
    const Half full = half(m, 1);
    if (is_new && m >= kFoldedKeys) {
      fold_and_read(matrix, scaled, values.below(count - kFoldedKeys), query, features, full.begin,
                    full.end, width, output);
    } else {
      if (is_new) fold(count - 1, weight, full);
      multiply(Start::kZero, Target<A>{output, 0}, LeftRows<A>{query, 0},
               RightOperand<A>{matrix, width}, 1, width, features);
    }
    if (m == 0) return;
    const Half other = half(m, 0);
    const A score = weight * dot(query + other.begin, keys.row(count - 1) + other.begin,
                                 other.end - other.begin);
    multiply(Start::kTarget, Target<A>{output, 0}, LeftRows<A>{&score, 0},
             RightOperand<A>{values.row(count - 1), 0}, 1, width, 1);
  }

  /// Takes in the last of `count` keys, the m-th, when nothing is read.
  void take(Index count, Index m, A weight) const {
    if (m >= kFoldedKeys) fold(count - 2, weight, half(m, 1));
    fold(count - 1, weight, half(m, 1));
  }

  /// Brings both halves to the same keys: the first `count`.
  void level(Index count, Index m, A weight) const {
    if (m > 0) fold(count - 1, weight, half(m, 0));
  }

 private:
  /// Rows [begin, end).
  struct Half {
    Index begin, end;
  };
  /// After m keys: the half that holds `all` keys (1), or the other one (0).
  Half half(Index m, Index all) const {
    const Index middle = features / 2;
    return m % 2 == all ? Half{0, middle} : Half{middle, features};
  }
  /// R[d] += m_ii k[d] v.
  void fold(Index key, A weight, Half rows) const {
    for (Index d = rows.begin; d < rows.end; ++d) {
      const A factor = weight * keys.row(key)[d];
      multiply(Start::kTarget, Target<A>{matrix + d * width, 0}, LeftRows<A>{&factor, 0},
               RightOperand<A>{values.row(key), 0}, 1, width, 1);
    }
  }
};

}  // namespace mhla::inline MHLA_TARGET::detail

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif

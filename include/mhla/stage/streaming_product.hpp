#pragma once

/// \file
/// One pass of a stream's query over the running matrix R, reading all of R and updating half of
/// it:
///
///     R[d]  += k_1[d] v_1 + k_2[d] v_2      for d in [begin, end)
///     o      = q R                          [E]
///
/// R of all heads is read from L2, so a pass costs the time of reading it. Updating all of R by one
/// key would add half of that in stores; alternating halves, two keys each, halve the stores.
/// Cost: 2*D*E flops to read, 2*D*E to update.

#include "mhla/core/arch.hpp"
#include "mhla/kernel/packet.hpp"
#include "mhla/kernel/product.hpp"
#include "mhla/tokens/strip.hpp"

MHLA_PACKETS_BEGIN

namespace mhla {
inline namespace MHLA_TARGET {
namespace detail {

/// Keys of one update of a half of R.
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
  for_each_panel<A>(e, [&]<class P, int kVectors>(Index j) {
    fold_and_read_panel<P, kVectors>(running + j, e, keys, values.right_of(j), query, d, begin, end,
                                     output + j);
  });
}

/// R of an open block, and the block's keys and values.
///
/// Single keys update the halves of R's rows in turn: the m-th key since all of R held the same
/// keys goes into half (m - 1) % 2, with the key before it, which that half has missed. So one half
/// holds all keys, the other all but the last.
template <class A>
struct Running {
  A* matrix = nullptr;  ///< R [D,E]
  Index features = 0;   ///< D
  Index width = 0;      ///< E
  Rows<A> keys;         ///< [W,D]
  Rows<A> values;       ///< [W,E]

  /// output = query R, as if all of R held the first `count` keys.
  /// \param m       keys since all of R held the same
  /// \param is_new  whether the last of them is not yet in R
  /// \param scaled  the last two keys times m_ii [2,D]
  void read(const A* query, Index count, Index m, bool is_new, A weight, Rows<A> scaled,
            A* output) const {
    const Half full = complete_half(m);
    if (is_new && m >= kFoldedKeys) {
      fold_and_read(matrix, scaled, values.below(count - kFoldedKeys), query, features, full.begin,
                    full.end, width, output);
    } else {
      if (is_new) fold(count - 1, weight, full);
      multiply<A>(
          {.out = {output, 0}, .a = {query, 1, features, 0}, .b = {matrix, width}, .cols = width});
    }
    if (m == 0) return;
    const Half other = lagging_half(m);
    const A score = weight * dot(query + other.begin, keys.row(count - 1) + other.begin,
                                 other.end - other.begin);
    multiply<A>({.out = {output, 0},
                 .a = {&score, 1, 1, 0},
                 .b = values.below(count - 1),
                 .cols = width,
                 .start = Start::kTarget});
  }

  /// Adds the last of `count` keys, the m-th, to R without a query.
  void take(Index count, Index m, A weight) const {
    if (m >= kFoldedKeys) fold(count - 2, weight, complete_half(m));
    fold(count - 1, weight, complete_half(m));
  }

  /// Makes all of R hold the first `count` keys.
  void level(Index count, Index m, A weight) const {
    if (m > 0) fold(count - 1, weight, lagging_half(m));
  }

 private:
  struct Half {
    Index begin, end;
  };
  /// The half that holds all m keys, and the one that misses the last.
  Half complete_half(Index m) const { return half(m % 2 == 1); }
  Half lagging_half(Index m) const { return half(m % 2 == 0); }
  Half half(bool first) const {
    const Index middle = features / 2;
    return first ? Half{0, middle} : Half{middle, features};
  }
  /// R[d] += m_ii k[d] v.
  void fold(Index key, A weight, Half rows) const {
    for (Index d = rows.begin; d < rows.end; ++d) {
      const A factor = weight * keys.row(key)[d];
      add_scaled(factor, values.row(key), matrix + d * width, width);
    }
  }
};

}  // namespace detail
}  // namespace MHLA_TARGET
}  // namespace mhla

MHLA_PACKETS_END

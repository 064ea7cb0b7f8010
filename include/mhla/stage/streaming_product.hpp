#pragma once

/// \file
/// One pass of a stream's query over the running matrix R, reading all of R and updating a part of
/// it:
///
///     R[d]  += k_1[d] v_1 + .. + k_F[d] v_F      for d in [begin, end)
///     o      = q R                               [E]
///
/// R of all heads is read from L2, so a pass costs the time of reading it. Updating all of R by one
/// key would double that in stores; updating a part by F keys, in turn, takes 1/F of the stores.
/// Cost: 2*D*E flops to read, 2*D*E to update.

#include <algorithm>

#include "mhla/core/arch.hpp"
#include "mhla/kernel/packet.hpp"
#include "mhla/kernel/product.hpp"
#include "mhla/stage/turns.hpp"

MHLA_PACKETS_BEGIN

namespace mhla {
inline namespace MHLA_TARGET {
namespace detail {

/// Keys of one update of a part of R, and parts: the values of a panel of them stay in registers.
inline constexpr Index kFoldedKeys = kVectorRegisters >= 32 ? 4 : 2;

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
  for_each_panel<A, 4>(e, [&]<class P, int kVectors>(Index j) {
    fold_and_read_panel<P, kVectors>(running + j, e, keys, values.right_of(j), query, d, begin, end,
                                     output + j);
  });
}

/// query . weight key, with the bits of a product of queries and keys.
/// \param room  [d]
template <class A>
A score_of(const A* query, const A* key, Index d, A weight, A* room) {
  scale_to(weight, key, room, d);
  A score = 0;
  multiply<A>({.out = {&score, 0}, .a = {query, 1, d, 0}, .b = {room, 1}, .cols = 1});
  return score;
}

/// R of an open block, and the block's keys and values.
///
/// Of the m keys since all of R held the same, parts of R's rows take kFoldedKeys at a time, in
/// turn (turns.hpp): after a key one part of R is written, and the parts lack its last keys, which
/// outputs get from the keys themselves.
template <class A>
struct Running {
  A* matrix = nullptr;  ///< R [D,E]
  Index features = 0;   ///< D
  Index width = 0;      ///< E
  Rows<A> keys;         ///< [W,D]
  Rows<A> values;       ///< [W,E]

  using Parts = Turns<kFoldedKeys>;
  using Part = Parts::Part;

  /// output = query R, as if all of R held the first `count` keys.
  /// \param m       keys since all of R held the same
  /// \param is_new  whether the last of them is not yet in R
  /// \param room    [kFoldedKeys,D]
  void read(const A* query, Index count, Index m, bool is_new, A weight, Rows<A> room,
            A* output) const {
    if (is_new && m >= kFoldedKeys) {
      const Part part = parts().part(Parts::taking(m));
      for (Index f = 0; f < kFoldedKeys; ++f) {
        const A* const key = keys.row(count - kFoldedKeys + f);
        scale_to(weight, key + part.begin, room.row(f) + part.begin, part.end - part.begin);
      }
      fold_and_read(matrix, room, values.below(count - kFoldedKeys), query, features, part.begin,
                    part.end, width, output);
    } else {
      if (is_new) take(count, m, weight);
      read_rows({0, features}, query, output);
    }
    add_missing(query, count, m, weight, output);
  }

  /// The same for the first token of a block, of which R holds nothing, with the bits of
  /// causal_block.hpp. Returns the score of the token's key, 0 without one.
  /// \param complete  complete(begin, end) makes rows of R what they are before the token; they are
  ///                  read while they are in L1
  /// \param room      [D]
  template <class Complete>
  A read_first(const A* query, bool is_new, A weight, A* room, A* output,
               const Complete& complete) const {
    const Part part = parts().part(Parts::taking(1));
    const Index together = std::max<Index>(1, kTogether / (width + 1));
    Index begin = 0;
    do {
      const Index end = std::min(features, begin + together);
      complete(begin, end);
      read_rows({begin, end}, query, output);
      if (is_new) fold({begin, std::min(end, part.end)}, 0, 1, weight);
      begin = end;
    } while (begin < features);
    if (!is_new) return 0;
    const A score = score_of(query, keys.row(0), features, weight, room);
    add_scaled(score, values.row(0), output, width);
    return score;
  }

  /// Adds the last of `count` keys, the m-th, to R without a query.
  void take(Index count, Index m, A weight) const {
    const Index p = Parts::taking(m);
    fold(parts().part(p), count - m + Parts::held(p, m - 1), count, weight);
  }

  /// Makes all of R hold the first `count` keys.
  void level(Index count, Index m, A weight) const {
    for (Index p = 0; p < kFoldedKeys; ++p) {
      fold(parts().part(p), count - m + Parts::held(p, m), count, weight);
    }
  }

 private:
  /// Numbers of R that stay in L1 between being completed and being read.
  static constexpr Index kTogether = 8192 / sizeof(A);

  Parts parts() const { return {features}; }

  /// output = query R of some rows, added to that of the rows before them.
  void read_rows(Part rows, const A* query, A* output) const {
    multiply<A>({.out = {output, 0},
                 .a = {query + rows.begin, 1, rows.end - rows.begin, 0},
                 .b = {matrix + rows.begin * width, width},
                 .cols = width,
                 .start = rows.begin == 0 ? Start::kZero : Start::kTarget});
  }

  /// output += what the parts of R lack of the m keys.
  void add_missing(const A* query, Index count, Index m, A weight, A* output) const {
    A scores[kFoldedKeys - 1];
    const Index lacking = std::min(m, kFoldedKeys - 1), next = m % kFoldedKeys;
    for (Index s = 0; s < lacking; ++s) {  // the parts from `next` on lack all of these keys
      const A* const key = keys.row(count - lacking + s);
      const Index last = next + kFoldedKeys - lacking + s;
      const auto part_score = [&](Index begin, Index end) {
        return dot(query + begin, key + begin, end - begin);
      };
      A score =
          part_score(parts().part(next).begin, parts().part(std::min(last, kFoldedKeys) - 1).end);
      if (last > kFoldedKeys) score += part_score(0, parts().part(last - kFoldedKeys - 1).end);
      scores[s] = weight * score;
    }
    if (lacking == 0) return;
    multiply<A>({.out = {output, 0},
                 .a = {scores, 1, lacking, 0},
                 .b = values.below(count - lacking),
                 .cols = width,
                 .start = Start::kTarget});
  }

  /// R[d] += m_ii k[d] v for keys [first, last).
  void fold(Part rows, Index first, Index last, A weight) const {
    for (Index d = rows.begin; d < rows.end; ++d) {
      for (Index key = first; key < last; ++key) {
        add_scaled(weight * keys.row(key)[d], values.row(key), matrix + d * width, width);
      }
    }
  }
};

}  // namespace detail
}  // namespace MHLA_TARGET
}  // namespace mhla

MHLA_PACKETS_END

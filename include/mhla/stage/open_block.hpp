#pragma once

/// \file
/// The open block of a stream: its keys and values, the summary S of its keys, and the running
/// matrix R that queries read. S~ is the mixture of the blocks before it:
///
///     S = sum k v^T      R = S~ + m_ii S      o = q R        S, R [D,E]
///
/// After each key one of the eight parts of the rows of S and R adds all keys that it lacks, in one
/// pass (row_schedule.hpp). R grows by the weighted growth of S. So a token reads all of R, and
/// reads and writes an eighth of S and R. Keys that a part of R lacks are added to the output
/// directly.
///
/// S is a chain of multiply-adds over the keys, whichever call adds them: the bits of summary.hpp.
/// If S is infinite, R is NaN, where another form may be infinite.
/// Cost per token: 2*D*E flops to read R, 2*D*E for S, a quarter of that for R and missing keys.

#include <algorithm>

#include "mhla/core/arch.hpp"
#include "mhla/core/workspace.hpp"
#include "mhla/kernel/packet.hpp"
#include "mhla/kernel/product.hpp"
#include "mhla/kernel/rows.hpp"
#include "mhla/stage/row_schedule.hpp"
#include "mhla/stage/summary.hpp"

MHLA_PACKETS_BEGIN

namespace mhla {
inline namespace MHLA_TARGET {
namespace detail {

/// Computes kRows rows and kVectors packets of take_keys.
template <class P, int kRows, int kVectors, class A>
MHLA_INLINE inline void take_tile(Rows<A> keys, Rows<A> values, Index count, A weight, Index cols,
                                  A* summary, A* running) {
  constexpr Index kWidth = kLanes<P>;
  P sum[kRows][kVectors];
  MHLA_UNROLL
  for (int r = 0; r < kRows; ++r) {
    MHLA_UNROLL
    for (int v = 0; v < kVectors; ++v) {
      sum[r][v] = load<A, P>(summary + r * cols + v * kWidth);
    }
  }
  const A *key = keys.data, *value = values.data;
  for (Index k = 0; k < count; ++k, key += keys.stride, value += values.stride) {
    P b[kVectors];
    MHLA_UNROLL
    for (int v = 0; v < kVectors; ++v) b[v] = load<A, P>(value + v * kWidth);
    MHLA_UNROLL
    for (int r = 0; r < kRows; ++r) {
      const P factor = Eigen::internal::pset1<P>(key[r]);
      MHLA_UNROLL
      for (int v = 0; v < kVectors; ++v) sum[r][v] = multiply_add(factor, b[v], sum[r][v]);
    }
  }
  const P w = Eigen::internal::pset1<P>(weight);
  MHLA_UNROLL
  for (int r = 0; r < kRows; ++r) {
    MHLA_UNROLL
    for (int v = 0; v < kVectors; ++v) {
      A* const to = summary + r * cols + v * kWidth;
      A* const read = running + r * cols + v * kWidth;
      const P gained = Eigen::internal::psub(sum[r][v], load<A, P>(to));
      store(read, multiply_add(w, gained, load<A, P>(read)));
      store(to, sum[r][v]);
    }
  }
}

/// Adds keys^T values to some rows of S, and `weight` times the same growth to R.
/// \param keys     [count,rows]
/// \param values   [count,cols]
/// \param summary  S [rows,cols], rows contiguous
/// \param running  R [rows,cols], rows contiguous
template <class A>
MHLA_NOINLINE void take_keys(Rows<A> keys, Rows<A> values, Index count, A weight, Index rows,
                             Index cols, A* summary, A* running) {
  Index row = 0;
  const auto tiles = [&]<int kRows>() {
    for (; row + kRows <= rows; row += kRows) {
      for_each_panel<A, 2>(cols, [&]<class P, int kVectors>(Index col) {
        take_tile<P, kRows, kVectors>(keys.right_of(row), values.right_of(col), count, weight, cols,
                                      summary + row * cols + col, running + row * cols + col);
      });
    }
  };
  tiles.template operator()<4>();
  tiles.template operator()<2>();
  tiles.template operator()<1>();
}

/// Computes columns [0, kVectors packets) of read_matrix.
template <class P, int kVectors, class A>
MHLA_INLINE inline void read_panel(const A* query, const A* matrix, Index rows, Index cols,
                                   Start start, A* output, const A*& next) {
  constexpr Index kLine = kBufferAlignment / Index{sizeof(A)};
  P sum[kVectors];
  MHLA_UNROLL
  for (int v = 0; v < kVectors; ++v) {
    sum[v] = start == Start::kZero ? Eigen::internal::pset1<P>(A(0))
                                   : load<A, P>(output + v * kLanes<P>);
  }
  for (Index r = 0; r < rows; ++r, matrix += cols) {
    const P q = Eigen::internal::pset1<P>(query[r]);
    MHLA_UNROLL
    for (int v = 0; v < kVectors; ++v) {
      sum[v] = multiply_add(q, load<A, P>(matrix + v * kLanes<P>), sum[v]);
    }
    if (next == nullptr) continue;
    MHLA_UNROLL
    for (Index line = 0; line < kVectors * kLanes<P> / kLine; ++line) {
      prefetch_l1(next + line * kLine);
    }
    next += kVectors * kLanes<P>;
  }
  MHLA_UNROLL
  for (int v = 0; v < kVectors; ++v) store(output + v * kLanes<P>, sum[v]);
}

/// output (+)= query matrix, with the bits of `multiply`.
/// \param matrix  [rows,cols], rows contiguous
/// \param next    memory that is read next, to prefetch as many bytes of it, or null
template <class A>
MHLA_NOINLINE void read_matrix(const A* query, const A* matrix, Index rows, Index cols, Start start,
                               A* output, const A* next) {
  for_each_panel<A, 8>(cols, [&]<class P, int kVectors>(Index col) {
    read_panel<P, kVectors>(query, matrix + col, rows, cols, start, output + col, next);
  });
}

/// Returns query . (weight key), with the bits of a product of queries and keys.
/// \param scratch  [d]
template <class A>
A score_of(const A* query, const A* key, Index d, A weight, A* scratch) {
  scale_to(weight, key, scratch, d);
  A score = 0;
  multiply<A>({.out = {&score, 0}, .a = {query, 1, d, 0}, .b = {scratch, 1}, .cols = 1});
  return score;
}

/// Views of a stream's memory. A part holds the keys that its turns have added. All of R also holds
/// the first `level` keys: a piece of several tokens adds all its keys to R when it ends.
template <class A>
struct OpenBlock {
  A* running = nullptr;  ///< R [D,E]
  Rows<A> summary;       ///< S by slabs (Summaries::block), undefined before the first key
  Rows<A> keys;          ///< [W,D]
  Rows<A> values;        ///< [W,E]
  Index features = 0;    ///< D
  Index width = 0;       ///< E
  A weight = 0;          ///< m_ii

  /// Adds to the parts whose turn comes with keys [from, to) all keys that they lack.
  void take(Index from, Index to, Index level) const {
    for (Index c = std::max(from, to - kTurns) + 1; c <= to; ++c) {
      const Index p = RowSchedule::taking(c), held = RowSchedule::held(p, from);
      take_rows(turns().part(p), held, std::clamp(level, held, c), c);
    }
  }
  /// Adds to all of R the missing keys among the first `count`.
  void take_into_running(Index count, Index level) const {
    for (Index p = 0; p < kTurns; ++p) {
      const RowSchedule::Part rows = turns().part(p);
      for (Index d = rows.begin; d < rows.end; ++d) {
        for (Index key = std::max(level, RowSchedule::held(p, count)); key < count; ++key) {
          add_scaled(weight * keys.row(key)[d], values.row(key), running + d * width, width);
        }
      }
    }
  }
  /// Adds to all of S the missing keys among the first `count`, and nothing to R.
  MHLA_NOINLINE void complete_summary(Index count) const {
    for (Index p = 0; p < kTurns; ++p) {
      take_rows(turns().part(p), RowSchedule::held(p, count), count, count);
    }
  }

  /// output = query R, as if all of R held the first `count` keys.
  /// \param taken  number of keys whose turns have been taken
  void read(const A* query, Index taken, Index count, Index level, A* output) const {
    read_rows(query, output, [](Index, Index) {});
    add_lacking(query, taken, count, level, output);
  }
  /// Reads as above for the first token of a block, with the bits of causal_block.hpp. Returns the
  /// score of the token's key, or 0 without a key.
  /// \param complete  complete(begin, end) updates rows of R to their state before the token; they
  ///     are read while they are in L1
  /// \param scratch   [D]
  template <class Complete>
  A read_first(const A* query, bool has_key, A* scratch, A* output,
               const Complete& complete) const {
    read_rows(query, output, complete);
    if (!has_key) return 0;
    const A score = score_of(query, keys.row(0), features, weight, scratch);
    add_scaled(score, values.row(0), output, width);
    return score;
  }

 private:
  /// Numbers of R that stay in L1 from their update or prefetch to their read.
  static constexpr Index kTogether = 8192 / sizeof(A);

  RowSchedule turns() const { return {features}; }

  /// Adds keys [begin, end) to rows of S, and keys [fresh, end) to the same rows of R.
  void take_rows(RowSchedule::Part rows, Index begin, Index fresh, Index end) const {
    const auto share = [&](Index slab, Index column, Index from, Index to) {
      A* const s = summary.row(slab) + column;
      const Index row = from / width, count = (to - from) / width;
      if (begin < fresh || end == 0) {
        multiply<A>({.out = {s, width},
                     .a = keys.below(begin).right_of(row).matrix(fresh - begin, count).transposed(),
                     .b = values.below(begin),
                     .cols = width,
                     .start = begin == 0 ? Start::kZero : Start::kTarget});
      }
      if (fresh == end) return;
      if (fresh == 0) std::fill_n(s, to - from, A(0));
      take_keys(keys.below(fresh).right_of(row), values.below(fresh), end - fresh, weight, count,
                width, s, running + from);
    };
    for_each_slab(width, {rows.begin * width, rows.end * width}, share);
  }

  /// output = query R. A few rows of R at a time are completed and read, while the rows after them
  /// are prefetched. R of several heads comes from L3, and the prefetch saves 4 to 9 % per token. R
  /// that fits L1 is read at once.
  template <class Complete>
  void read_rows(const A* query, A* output, const Complete& complete) const {
    const bool in_l1 = features * width <= 4 * kTogether;
    const Index together = in_l1 ? features : std::max<Index>(1, kTogether / width);
    Index begin = 0;
    do {
      const Index end = std::min(features, begin + together);
      complete(begin, end);
      read_matrix(query + begin, running + begin * width, end - begin, width,
                  begin == 0 ? Start::kZero : Start::kTarget, output,
                  end < features ? running + end * width : nullptr);
      begin = end;
    } while (begin < features);
  }

  /// Adds to the output the keys among the first `count` that parts of R lack. At most one of these
  /// keys comes after the first `taken`.
  void add_lacking(const A* query, Index taken, Index count, Index level, A* output) const {
    A scores[kTurns];
    const Index first = std::max(level, taken - kTurns + 1);
    for (Index key = first; key < count; ++key) {
      const auto score_of_rows = [&](Index begin, Index end) {
        return dot(query + begin, keys.row(key) + begin, end - begin);
      };
      // The parts before `next` have had their turn since this key; other parts follow in a circle.
      const Index next = taken % kTurns, end = next + kTurns - (taken - key);
      A score =
          score_of_rows(turns().part(next).begin, turns().part(std::min(end, kTurns) - 1).end);
      if (end > kTurns) score += score_of_rows(0, turns().part(end - kTurns - 1).end);
      scores[key - first] = weight * score;
    }
    if (first == count) return;
    multiply<A>({.out = {output, 0},
                 .a = {scores, 1, count - first, 0},
                 .b = values.below(first),
                 .cols = width,
                 .start = Start::kTarget});
  }
};

}  // namespace detail
}  // namespace MHLA_TARGET
}  // namespace mhla

MHLA_PACKETS_END

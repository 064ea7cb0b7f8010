#pragma once

/// \file
/// How stages read and write tokens: a strip of up to 64 tokens of one block at a time, gathered
/// into contiguous rows of the accumulator type that stay in the first cache.
///
/// The gather is where storage types are widened, the feature map is applied, grid runs are
/// followed and masked tokens are left out: later code sees dense rows. A masked token is never
/// loaded, so whatever its cells hold reaches no output.

#include <algorithm>
#include <type_traits>

#include "mhla/core/arch.hpp"
#include "mhla/core/matrix.hpp"
#include "mhla/core/packet.hpp"
#include "mhla/core/workspace.hpp"
#include "mhla/stage/feature_map.hpp"
#include "mhla/stage/partition.hpp"

namespace mhla::inline MHLA_TARGET::detail {

/// Tokens of a strip: long enough to pay for loading and storing a summary's tile, short enough
/// that phi(K) and V of a strip fit a 32 to 48 KB cache at D = E = 64.
inline constexpr Index kStripTokens = 64;

/// Rows of scratch start at multiples of this many elements.
inline constexpr Index kRowAlignment = 16;

/// Scratch rows [rows, cols], each starting on its own cache line.
template <class A>
struct Rows {
  A* data = nullptr;
  Index stride = 0;

  Rows() = default;
  Rows(const char* function, Arena& arena, Index rows, Index cols)
      : stride(round_up(cols, kRowAlignment)) {
    data = arena.take<A>(function, checked_product(function, "workspace", {rows, stride}));
  }
  A* row(Index r) const { return data + r * stride; }
};

/// The tokens of one block that a mask keeps, a strip at a time, in the block's order.
template <Partition P>
class StripCursor {
 public:
  StripCursor(const P& blocks, Index block, Mask mask)
      : blocks_(blocks), block_(block), mask_(mask), runs_(blocks.runs(block)) {}

  /// Moves to the next strip and returns its number of tokens, 0 at the end.
  Index next() {
    count_ = 0;
    for (; run_ < runs_; ++run_, offset_ = 0) {
      const Run run = blocks_.run(block_, run_);
      for (; offset_ < run.length; ++offset_, ++slot_) {
        if (count_ == kStripTokens) return count_;
        const Index token = run.begin + offset_;
        if (!mask_[token]) continue;
        tokens_[count_] = token;
        slots_[count_] = slot_;
        ++count_;
      }
    }
    return count_;
  }
  Index count() const { return count_; }
  const Index* tokens() const { return tokens_; }  ///< [count] positions in the sequence
  const Index* slots() const { return slots_; }    ///< [count] positions in the block

 private:
  const P& blocks_;
  Index block_;
  Mask mask_;
  Index runs_;
  Index run_ = 0;
  Index offset_ = 0;
  Index slot_ = 0;
  Index count_ = 0;
  Index tokens_[kStripTokens];
  Index slots_[kStripTokens];
};

/// Widens row x of length `count` and stride `stride` into y.
template <Scalar T, class A>
inline void widen(const T* x, Index stride, A* y, Index count) {
  if (stride == 1) {
    for (Index j = 0; j < count; ++j) y[j] = static_cast<A>(x[j]);
  } else {
    for (Index j = 0; j < count; ++j) y[j] = static_cast<A>(x[j * stride]);
  }
}

/// Rows tokens[0..count) of x, widened.
template <Scalar T, class A>
void gather(MatrixView<const T> x, const Index* tokens, Index count, Rows<A> rows) {
  for (Index s = 0; s < count; ++s) widen(x.row(tokens[s]), x.col_stride, rows.row(s), x.cols);
}

/// phi of rows tokens[0..count) of x; `raw` is room for one widened row.
template <Scalar T, class A, class Map>
void gather_features(MatrixView<const T> x, const Index* tokens, Index count, const Map& map,
                     A* raw, Rows<A> rows) {
  for (Index s = 0; s < count; ++s) {
    const T* const row = x.row(tokens[s]);
    if constexpr (std::is_same_v<T, A>) {
      if (x.col_stride == 1) {
        map(row, rows.row(s), x.cols);
        continue;
      }
    }
    widen(row, x.col_stride, raw, x.cols);
    map(static_cast<const A*>(raw), rows.row(s), x.cols);
  }
}

/// The first out.cols elements of each row, rounded to T, into rows tokens[0..count) of out.
template <Scalar T, class A>
void scatter(Rows<A> rows, const Index* tokens, Index count, MatrixView<T> out) {
  for (Index s = 0; s < count; ++s) {
    const A* const from = rows.row(s);
    T* const to = out.row(tokens[s]);
    if (out.col_stride == 1) {
      for (Index j = 0; j < out.cols; ++j) to[j] = static_cast<T>(from[j]);
    } else {
      for (Index j = 0; j < out.cols; ++j) to[j * out.col_stride] = static_cast<T>(from[j]);
    }
  }
}

/// Zero into the rows of a block that a mask leaves out.
template <Scalar T, Partition P>
void clear_masked(const P& blocks, Index block, Mask mask, MatrixView<T> out) {
  if (mask.all()) return;
  for (Index r = 0; r < blocks.runs(block); ++r) {
    const Run run = blocks.run(block, r);
    for (Index token = run.begin; token < run.begin + run.length; ++token) {
      if (mask[token]) continue;
      for (Index j = 0; j < out.cols; ++j) out(token, j) = T(0);
    }
  }
}

}  // namespace mhla::inline MHLA_TARGET::detail

#pragma once

/// \file
/// Tokens as operands of a product (tile.hpp), where they lie: rows that are read in place and
/// copied on the way, rows that are written in place, and rows of the next strip that are asked for
/// while a product runs.
///
/// Rows of one head lie H * D numbers apart, one page or more, where no prefetcher of the hardware
/// follows; reading them cold costs as much as a third of the product they are for.

#include <algorithm>

#include "mhla/core/arch.hpp"
#include "mhla/core/matrix.hpp"
#include "mhla/core/packet.hpp"
#include "mhla/core/tile.hpp"
#include "mhla/core/workspace.hpp"
#include "mhla/stage/strip.hpp"

namespace mhla::inline MHLA_TARGET::detail {

/// Rows tokens[0..depth) of a tensor as right operand; whatever is loaded is stored in `copy` too.
template <class A>
struct CopiedTokens {
  const A* data;
  Index row_stride;
  const Index* tokens;
  Rows<A> copy;

  const A* row(Index k) const { return data + tokens[k] * row_stride; }
  CopiedTokens right_of(Index cols) const {
    return {data + cols, row_stride, tokens, copy.right_of(cols)};
  }
  template <class P>
  MHLA_INLINE void loaded(Index k, Index col, P vector) const {
    store(copy.row(k) + col, vector);
  }
};

/// Rows tokens[0..rows) of a tensor as target; row r is stored times factors[r].
template <class A>
struct ScaledTokens {
  A* data;
  Index row_stride;
  const Index* tokens;
  const A* factors;

  A* row(Index r) const { return data + tokens[r] * row_stride; }
  ScaledTokens below(Index rows) const { return {data, row_stride, tokens + rows, factors + rows}; }
  ScaledTokens right_of(Index cols) const { return {data + cols, row_stride, tokens, factors}; }
  template <class P>
  MHLA_INLINE P finished(Index r, P sums) const {
    return Eigen::internal::pmul(sums, Eigen::internal::pset1<P>(factors[r]));
  }
};

/// Rows tokens[0..rows) of a tensor as target.
template <class A>
struct TokenRows {
  A* data;
  Index row_stride;
  const Index* tokens;

  A* row(Index r) const { return data + tokens[r] * row_stride; }
  TokenRows below(Index rows) const { return {data, row_stride, tokens + rows}; }
  TokenRows right_of(Index cols) const { return {data + cols, row_stride, tokens}; }
  template <class P>
  MHLA_INLINE P finished(Index /*r*/, P sums) const {
    return sums;
  }
};

/// The rows of a strip in some tensors, as cache lines to be asked for: line c of every row of one
/// tensor is a column, and the columns of all tensors are numbered through.
class Lookahead {
 public:
  /// Line c of a tensor's rows: that of token t starts at data + t * row_bytes.
  struct Column {
    const char* data = nullptr;
    Index row_bytes = 0;
    const Index* tokens = nullptr;
    Index count = 0;

    MHLA_INLINE void fetch(Index k) const {
      if (k < count) prefetch_second(data + tokens[k] * row_bytes);
    }
  };

  template <class... T>
  Lookahead(const Strip& strip, const MatrixView<T>&... tensors) {
    (add(strip, tensors), ...);
  }
  Lookahead() = default;

  /// Adds the columns of a tensor; none where the columns of its rows are apart.
  template <class T>
  void add(const Strip& strip, const MatrixView<T>& x) {
    if (x.col_stride != 1) return;
    eigen_assert(size_ < kTensors);
    constexpr Index kLine = kBufferAlignment, kSize = sizeof(T);
    tensors_[size_++] = {
        {reinterpret_cast<const char*>(x.data), x.row_stride * kSize, strip.tokens, strip.count},
        round_up(x.cols * kSize, kLine) / kLine};
  }

  /// Column c; empty behind the last one.
  MHLA_INLINE Column column(Index c) const {
    for (int i = 0; i < size_; c -= tensors_[i++].columns) {
      if (c >= tensors_[i].columns) continue;
      Column column = tensors_[i].first;
      column.data += c * static_cast<Index>(kBufferAlignment);
      return column;
    }
    return {};
  }

  /// Asks for all columns from `begin` on at once.
  MHLA_INLINE void fetch(Index begin = 0) const {
    for (int i = 0; i < size_; ++i) {
      Column column = tensors_[i].first;
      for (Index k = 0; k < column.count; ++k) {
        const char* const row = column.data + column.tokens[k] * column.row_bytes;
        for (Index c = std::max<Index>(begin, 0); c < tensors_[i].columns; ++c) {
          prefetch_second(row + c * static_cast<Index>(kBufferAlignment));
        }
      }
      begin -= tensors_[i].columns;
    }
  }

 private:
  static constexpr int kTensors = 6;
  struct Tensor {
    Column first;
    Index columns = 0;
  };
  Tensor tensors_[kTensors];
  int size_ = 0;
};

/// A right operand that asks for one column of a lookahead in every panel, a line every step of k.
template <class A>
class RightAhead {
 public:
  /// \param c  column of the first panel
  MHLA_INLINE RightAhead(RightOperand<A> rows, const Lookahead& lookahead, Index c)
      : rows_(rows), lookahead_(&lookahead), c_(c), column_(lookahead.column(c)) {}

  const A* row(Index k) const { return rows_.row(k); }
  RightAhead right_of(Index cols) const { return {rows_.right_of(cols), *lookahead_, c_ + 1}; }
  template <class P>
  MHLA_INLINE void loaded(Index k, Index col, P /*vector*/) const {
    if (col == 0) column_.fetch(k);
  }

 private:
  RightOperand<A> rows_;
  const Lookahead* lookahead_;
  Index c_;
  Lookahead::Column column_;
};

}  // namespace mhla::inline MHLA_TARGET::detail

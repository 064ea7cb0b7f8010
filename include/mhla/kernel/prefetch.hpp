#pragma once

/// \file
/// Prefetching rows of tensors into L2 while products run.
///
/// Rows of one head lie H * D numbers apart, a page or more, where no hardware prefetcher follows;
/// reading them cold costs as much as a third of the product they are for. Every tile of a product
/// prefetches as many lines as its share of the work, one a step: a core waits for about 20 lines
/// at once, and more of them delay the loads of the product itself.

#include <algorithm>
#include <cstdint>

#include "mhla/core/arch.hpp"
#include "mhla/core/matrix.hpp"
#include "mhla/core/workspace.hpp"

namespace mhla {
inline namespace MHLA_TARGET {
namespace detail {

/// Cache lines to prefetch: the first line of every row of a tensor, then the second line of every
/// row.
class Prefetch {
 public:
  /// Lines at first + offsets[0..count).
  struct Lines {
    const char* first = nullptr;
    const Index* offsets = nullptr;
    Index count = 0;

    MHLA_INLINE void fetch(Index i) const { prefetch_l2(first + offsets[i]); }
    void fetch_from(Index i) const {
      side_effect();
      for (; i < count; ++i) fetch(i);
    }
  };

  /// Rows order[0..count) of some tensors, for a count of at most kRows.
  /// \param tiles  of the products that prefetch them
  template <class... T>
  Prefetch(Index tiles, const Index* order, Index count, const MatrixView<T>&... tensors)
      : tiles_(tiles) {
    (add(order, count, tensors), ...);
  }
  Prefetch() = default;

  /// Adds rows order[0..count) of a tensor; none if the columns of a row are strided.
  template <class T>
  void add(const Index* order, Index count, const MatrixView<T>& x) {
    if (x.col_stride != 1 || x.data == nullptr || x.cols == 0 || count == 0) return;
    eigen_assert(size_ < kTensors && count <= kRows);
    constexpr Index kLine = kBufferAlignment, kSize = sizeof(T);
    Tensor& t = tensors_[size_++];
    // Rows are taken to begin where row 0 does in its line, which holds if the row stride is a
    // whole number of lines; otherwise a line may be left out.
    const auto before = static_cast<Index>(reinterpret_cast<std::uintptr_t>(x.data) % kLine);
    t.data = reinterpret_cast<const char*>(x.data) - before;
    t.columns = round_up(before + x.cols * kSize, kLine) / kLine;
    t.rows = count;
    for (Index r = 0; r < count; ++r) t.offsets[r] = order[r] * x.row_stride * kSize;
    lines_ += t.columns * t.rows;
    share_ = ceil_div(lines_, std::max<Index>(tiles_, 1));
    if (share_ < count) share_ = ceil_div(count, count / share_);  // equal parts of a column
  }

  /// The share of a tile: the lines to prefetch in its `steps`; prefetches what is more than these.
  MHLA_NOINLINE Lines share(Index steps) {
    Lines lines = take(share_);
    for (Index left = share_ - lines.count; left > 0 && tensor_ < size_; left -= lines.count) {
      lines.fetch_from(0);
      lines = take(left);
    }
    lines.fetch_from(steps);
    lines.count = std::min(lines.count, steps);
    return lines;
  }
  /// Prefetches what is left.
  MHLA_NOINLINE void finish() {
    while (tensor_ < size_) take(kRows).fetch_from(0);
  }

  static constexpr Index kRows = 64;

 private:
  /// Takes up to `count` lines of one column.
  Lines take(Index count) {
    if (tensor_ == size_) return {};
    const Tensor& t = tensors_[tensor_];
    const Lines lines{t.data + column_ * kBufferAlignment, t.offsets + row_,
                      std::min(count, t.rows - row_)};
    row_ += lines.count;
    if (row_ == t.rows) {
      row_ = 0;
      if (++column_ == t.columns) {
        column_ = 0;
        ++tensor_;
      }
    }
    return lines;
  }

  static constexpr int kTensors = 6;
  struct Tensor {
    const char* data;
    Index columns;  // of lines
    Index rows;
    Index offsets[kRows];  // of rows
  };
  Index tiles_ = 1, lines_ = 0, share_ = 0;
  Tensor tensors_[kTensors];
  int size_ = 0;
  int tensor_ = 0;              // the next line: of this tensor,
  Index column_ = 0, row_ = 0;  // in this column and row
};

}  // namespace detail
}  // namespace MHLA_TARGET
}  // namespace mhla

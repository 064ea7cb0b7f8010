#pragma once

/// \file
/// Prefetching rows of tensors into L2, a cache line a step, while a product runs.
///
/// Rows of one head lie H * D numbers apart, a page or more, where no hardware prefetcher follows;
/// reading them cold costs as much as a third of the product they are for.

#include <algorithm>
#include <cstdint>
#include <numeric>

#include "mhla/core/arch.hpp"
#include "mhla/core/matrix.hpp"
#include "mhla/core/workspace.hpp"

namespace mhla {
inline namespace MHLA_TARGET {
namespace detail {

/// Cache lines to prefetch: the first line of every row of a tensor, then the second line of every
/// row. Rows are taken far apart, so that neighbours are on different pages, translated in
/// parallel.
class Prefetch {
 public:
  /// One line each of some rows.
  struct Lines {
    const char* data = nullptr;      // of row 0
    const Index* offsets = nullptr;  // [count] of the rows, in bytes
    Index count = 0;

    MHLA_INLINE void fetch(Index i) const { prefetch_l2(data + offsets[i]); }
  };

  /// Rows order[0..count) of some tensors, for a count of at most kRows.
  template <class... T>
  Prefetch(const Index* order, Index count, const MatrixView<T>&... tensors) {
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
    Index step = 3 * count / 8;
    while (std::gcd(step, count) > 1) ++step;
    for (Index i = 0, row = 0; i < count; ++i) {
      t.offsets[i] = order[row] * x.row_stride * kSize;
      row += step;
      if (row >= count) row -= count;
    }
  }

  /// The next lines, `most` at most; none at the end of the list.
  Lines take(Index most) {
    for (; tensor_ < size_; ++tensor_, column_ = 0) {
      const Tensor& t = tensors_[tensor_];
      for (; column_ < t.columns; ++column_, row_ = 0) {
        if (row_ == t.rows) continue;
        const Index begin = row_;
        row_ = std::min(t.rows, row_ + most);
        return {t.data + column_ * kBufferAlignment, t.offsets + begin, row_ - begin};
      }
    }
    return {};
  }
  /// Prefetches what is left.
  void finish() {
    for (Lines lines = take(kRows); lines.count > 0; lines = take(kRows)) {
      for (Index i = 0; i < lines.count; ++i) lines.fetch(i);
    }
  }

  static constexpr Index kRows = 64;

 private:
  static constexpr int kTensors = 6;
  struct Tensor {
    const char* data;
    Index columns;  // of lines
    Index rows;
    Index offsets[kRows];  // in the order of prefetching
  };
  Tensor tensors_[kTensors];
  int size_ = 0;
  int tensor_ = 0;              // that is being prefetched,
  Index column_ = 0, row_ = 0;  // and the line and row of it that come next
};

}  // namespace detail
}  // namespace MHLA_TARGET
}  // namespace mhla

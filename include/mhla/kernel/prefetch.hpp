#pragma once

/// \file
/// Prefetching rows of tensors into L2 while products run.
///
/// Rows of one head lie H * D numbers apart, a page or more, where no hardware prefetcher follows;
/// reading them cold costs as much as a third of the product they are for. Every tile of a product
/// prefetches as many lines as its share of the work: a core waits for about 20 lines at once, and
/// more of them delay the loads of the product itself.

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
    Index step = 3 * count / 8;
    while (std::gcd(step, count) > 1) ++step;
    for (Index i = 0, row = 0; i < count; ++i) {
      t.offsets[i] = order[row] * x.row_stride * kSize;
      row += step;
      if (row >= count) row -= count;
    }
    lines_ += t.columns * t.rows;
    share_ = ceil_div(lines_, std::max<Index>(tiles_, 1));
  }

  /// Prefetches the share of a tile.
  void fetch_share() { fetch(share_); }
  /// Prefetches what is left.
  void finish() { fetch(lines_); }

  static constexpr Index kRows = 64;

 private:
  /// Prefetches the next `count` lines.
  MHLA_NOINLINE void fetch(Index count) {
    for (; tensor_ < size_; ++tensor_, column_ = 0) {
      const Tensor& t = tensors_[tensor_];
      for (; column_ < t.columns; ++column_, row_ = 0) {
        for (; row_ < t.rows; ++row_, --count) {
          if (count == 0) return;
          prefetch_l2(t.data + column_ * kBufferAlignment + t.offsets[row_]);
        }
      }
    }
  }

  static constexpr int kTensors = 6;
  struct Tensor {
    const char* data;
    Index columns;  // of lines
    Index rows;
    Index offsets[kRows];  // in the order of prefetching
  };
  Index tiles_ = 1, lines_ = 0, share_ = 0;
  Tensor tensors_[kTensors];
  int size_ = 0;
  int tensor_ = 0;              // that is being prefetched,
  Index column_ = 0, row_ = 0;  // and the line and row of it that come next
};

}  // namespace detail
}  // namespace MHLA_TARGET
}  // namespace mhla

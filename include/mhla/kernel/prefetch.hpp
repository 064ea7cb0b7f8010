#pragma once

/// \file
/// Prefetching rows of tensors into L2, a cache line a step, while a product runs.
///
/// Rows of one head lie H * D numbers apart, a page or more, where no hardware prefetcher follows;
/// reading them cold costs as much as a third of the product they are for.

#include <algorithm>
#include <cstdint>
#include <limits>

#include "mhla/core/arch.hpp"
#include "mhla/core/matrix.hpp"
#include "mhla/core/workspace.hpp"

namespace mhla {
inline namespace MHLA_TARGET {
namespace detail {

/// Cache lines that will be read soon, and which of them have been prefetched: the first line of
/// every row of a tensor, then the second one of every row. Neighbours in that order lie in
/// different pages, whose addresses the processor looks up side by side.
class Prefetch {
 public:
  /// One line each of some rows.
  struct Lines {
    const char* data;    // of row 0
    Index row_bytes;     // from one row to the next
    const Index* order;  // of the rows, or null
    Index begin, count;  // of the lines, in that order

    MHLA_INLINE void fetch(Index i) const {
      prefetch_l2(data + (order == nullptr ? begin + i : order[begin + i]) * row_bytes);
    }
  };

  Prefetch() = default;
  /// Rows order[0..count) of some tensors.
  template <class... T>
  Prefetch(const Index* order, Index count, const MatrixView<T>&... tensors) {
    (add(order, count, tensors), ...);
  }

  /// Adds rows order[0..count) of a tensor, or rows 0..count where `order` is null; none where the
  /// columns of a row are apart.
  template <class T>
  void add(const Index* order, Index count, const MatrixView<T>& x) {
    if (x.col_stride != 1 || x.data == nullptr || x.cols == 0) return;
    eigen_assert(size_ < kTensors);
    constexpr Index kLine = kBufferAlignment, kSize = sizeof(T);
    // A row may begin inside of a line. All of them are taken to begin where row 0 does in its
    // line, which holds where the row stride is a whole number of lines; elsewhere a line may be
    // left out.
    const auto before = static_cast<Index>(reinterpret_cast<std::uintptr_t>(x.data) % kLine);
    tensors_[size_++] = {
        {reinterpret_cast<const char*>(x.data) - before, x.row_stride * kSize, order, 0, count},
        round_up(before + x.cols * kSize, kLine) / kLine};
  }

  /// The next lines, `most` at most; none at the end of the list.
  Lines take(Index most) {
    for (; tensor_ < size_; ++tensor_) {
      Tensor& t = tensors_[tensor_];
      for (; t.columns > 0; --t.columns, t.next.data += kBufferAlignment, t.next.begin = 0) {
        if (t.next.begin == t.next.count) continue;
        Lines lines = t.next;
        lines.count = std::min(most, t.next.count - t.next.begin);
        t.next.begin += lines.count;
        return lines;
      }
    }
    return {};
  }
  /// Prefetches what is left.
  void finish() {
    for (Lines lines = take(kAll); lines.count > 0; lines = take(kAll)) {
      for (Index i = 0; i < lines.count; ++i) lines.fetch(i);
    }
  }

 private:
  static constexpr Index kAll = std::numeric_limits<Index>::max();
  static constexpr int kTensors = 6;
  struct Tensor {
    Lines next;     // of the column that is being prefetched; count is that of the rows
    Index columns;  // of lines, with that one
  };
  Tensor tensors_[kTensors];
  int size_ = 0;
  int tensor_ = 0;  // that is being prefetched
};

}  // namespace detail
}  // namespace MHLA_TARGET
}  // namespace mhla

#pragma once

/// \file
/// Prefetching rows of tensors into L2, a few cache lines at a time, while a product runs.
///
/// Rows of one head lie H * D numbers apart, a page or more, where no hardware prefetcher follows;
/// reading them cold costs as much as a third of the product they are for.

#include <algorithm>
#include <utility>

#include "mhla/core/arch.hpp"
#include "mhla/core/matrix.hpp"
#include "mhla/core/workspace.hpp"

namespace mhla {
inline namespace MHLA_TARGET {
namespace detail {

/// A list of cache lines that will be read soon, and how far it has been prefetched.
class Prefetch {
 public:
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
    if (x.col_stride != 1 || x.data == nullptr) return;
    eigen_assert(size_ < kRanges);
    constexpr Index kSize = sizeof(T);
    ranges_[size_++] = {reinterpret_cast<const char*>(x.data), x.row_stride * kSize,
                        round_up(x.cols * kSize, kBufferAlignment), order, count};
  }

  /// Prefetches the next `lines` lines, fewer at the end of the list.
  MHLA_INLINE void fetch(Index lines) {
    while (lines > 0 && (line_ != row_end_ || next_row())) {
      const char* const end = line_ + std::min(lines * kBufferAlignment, row_end_ - line_);
      lines -= (end - line_) / kBufferAlignment;
      for (const char* line = std::exchange(line_, end); line != end; line += kBufferAlignment) {
        prefetch_l2(line);
      }
    }
  }
  /// Prefetches what is left.
  void finish() {
    while (line_ != row_end_ || next_row()) fetch((row_end_ - line_) / kBufferAlignment);
  }

 private:
  struct Range {
    const char* data;
    Index row_bytes;    // from one row to the next
    Index width_bytes;  // of a row, in whole lines
    const Index* order;
    Index count;  // of rows
  };

  bool next_row() {
    for (; range_ < size_; ++range_, row_ = 0) {
      const Range& r = ranges_[range_];
      if (row_ == r.count || r.width_bytes == 0) continue;
      line_ = r.data + (r.order == nullptr ? row_ : r.order[row_]) * r.row_bytes;
      row_end_ = line_ + r.width_bytes;
      ++row_;
      return true;
    }
    return false;
  }

  static constexpr int kRanges = 6;
  Range ranges_[kRanges];
  int size_ = 0;
  int range_ = 0;  // of the row that is being prefetched
  Index row_ = 0;  // the row behind it
  const char* line_ = nullptr;
  const char* row_end_ = nullptr;
};

}  // namespace detail
}  // namespace MHLA_TARGET
}  // namespace mhla

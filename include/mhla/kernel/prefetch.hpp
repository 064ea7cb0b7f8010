#pragma once

/// \file
/// Prefetching of tensor rows into L2 while products run.
///
/// Rows of one head lie H * D numbers apart, a page or more, where no hardware prefetcher follows.
/// Reading them cold costs as much as a third of the product that reads them. Every tile of a
/// product prefetches its share of the rows in pieces of two lines, one piece per four steps. A
/// core has about 20 lines in flight, and more delay the loads of the product itself. One piece per
/// two steps cost up to 4 % of a whole forward call, one per step up to 8 %.
///
/// Lines go row by row: one page of memory is open at a time, and hardware that prefetches
/// neighbours helps. Prefetching column by column was up to 7 % slower. A list of lines instead of
/// pieces cost up to 5 %.

#include <algorithm>
#include <cstdint>

#include "mhla/core/arch.hpp"
#include "mhla/core/matrix.hpp"
#include "mhla/core/workspace.hpp"

namespace mhla {
inline namespace MHLA_TARGET {
namespace detail {

/// Prefetches a row of `count` numbers into L1.
template <class T>
MHLA_INLINE inline void prefetch_row(const T* row, Index count) {
  for (Index j = 0; j < count; j += kBufferAlignment / Index{sizeof(T)}) prefetch_l1(row + j);
}

/// Rows of tensors to prefetch, row by row in pieces of a few cache lines. The object is large:
/// keep it a local variable and never copy it.
class Prefetch {
 public:
  static constexpr Index kPiece = 2;  ///< lines per piece

  /// The pieces of one tile.
  struct Pieces {
    const char* const* first = nullptr;
    Index count = 0;

    MHLA_INLINE void fetch(Index i) const {
      for (Index line = 0; line < kPiece; ++line) prefetch_l2(first[i] + line * kLine);
    }
    /// Prefetches the pieces from the i-th on.
    MHLA_INLINE void fetch_from(Index i) const {
      for (; i < count; ++i) fetch(i);
    }
  };

  /// Starts without rows.
  /// \param tiles  number of tiles of the products that prefetch the rows
  explicit Prefetch(Index tiles) : tiles_(std::max<Index>(tiles, 1)) {}
  /// Rows order[0..count) of some tensors, or rows [0, count) if order is null.
  template <class... T>
  Prefetch(Index tiles, const Index* order, Index count, const MatrixView<T>&... tensors)
      : Prefetch(tiles) {
    (add(order, count, tensors), ...);
  }
  Prefetch(const Prefetch&) = delete;
  Prefetch& operator=(const Prefetch&) = delete;

  /// Adds rows order[0..count) of a tensor, as above. Skips a tensor with strided columns.
  template <class T>
  void add(const Index* order, Index count, const MatrixView<T>& x) {
    if (x.col_stride != 1 || x.data == nullptr || x.cols == 0) return;
    // Every row is assumed to begin at the same offset in a line as row 0. This holds if the row
    // stride is a whole number of lines. Otherwise a line may be left out.
    const auto before = static_cast<Index>(reinterpret_cast<std::uintptr_t>(x.data) % kLine);
    const char* const data = reinterpret_cast<const char*>(x.data) - before;
    const Index bytes = x.row_stride * Index{sizeof(T)};
    const Index lines = ceil_div(before + x.cols * Index{sizeof(T)}, kLine);
    const Index pieces = ceil_div(lines, kPiece);
    const char** last = last_;
    for (Index r = 0; r < std::min(count, (pieces_ + kPieces - last_) / pieces); ++r) {
      const char* const row = data + (order == nullptr ? r : order[r]) * bytes;
      for (Index i = 0; i + 1 < pieces; ++i) {
        *last++ = row + i * kPiece * kLine;
        side_effect();  // prevents vectorising, which is slower for a few pieces
      }
      *last++ = row + std::max<Index>(lines - kPiece, 0) * kLine;  // within the row, if it is long
    }
    last_ = last;
    share_ = ceil_div(last_ - next_, tiles_);
  }

  /// Adds `count` contiguous numbers, or none if x is null.
  template <class T>
  void add(const T* x, Index count) {
    add(nullptr, 1, MatrixView<const T>(x, 1, count, count));
  }
  /// Starts again with all lines moved by `bytes`.
  void move(Index bytes) {
    for (const char** piece = pieces_; piece != last_; ++piece) *piece += bytes;
    next_ = pieces_;
  }

  /// Returns the share of a tile, at most a piece per turn, and prefetches the rest of the share.
  MHLA_INLINE Pieces share(Index turns) {
    const Pieces all{next_, std::min<Index>(share_, last_ - next_)};
    next_ += all.count;
    if (all.count <= turns) return all;
    all.fetch_from(turns);
    return {all.first, turns};
  }
  /// Prefetches the remaining pieces.
  MHLA_NOINLINE void finish() {
    Pieces{next_, last_ - next_}.fetch_from(0);
    next_ = last_;
  }

  /// Capacity: 64 rows of 128 doubles, or 256 floats, of four tensors and a matrix of 128 such
  /// rows. Further rows are left to the hardware.
  static constexpr Index kPieces = 3072;

 private:
  static constexpr Index kLine = kBufferAlignment;

  Index tiles_, share_ = 0;
  const char** next_ = pieces_;  // next piece to prefetch
  const char** last_ = pieces_;  // end of the pieces
  const char* pieces_[kPieces];
};

}  // namespace detail
}  // namespace MHLA_TARGET
}  // namespace mhla

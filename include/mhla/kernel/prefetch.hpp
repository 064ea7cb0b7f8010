#pragma once

/// \file
/// Prefetching rows of tensors, into L2 while products run.
///
/// Rows of one head lie H * D numbers apart, a page or more, where no hardware prefetcher follows;
/// reading them cold costs as much as a third of the product they are for. Every tile of a product
/// prefetches as many pieces of two lines as its share of the work, one every fourth step: a core
/// waits for about 20 lines at once, and more of them delay the loads of the product itself. (One
/// every second step took up to 4 % more of a whole forward call, one a step up to 8 %.) Lines go
/// row by row: one page of memory is open at a time, and hardware that prefetches neighbours helps.
/// (A line of every row at a time, the next line later, took up to 7 % more; a list of lines
/// instead of pieces, up to 5 %, to write it.)

#include <algorithm>
#include <cstdint>

#include "mhla/core/arch.hpp"
#include "mhla/core/matrix.hpp"
#include "mhla/core/workspace.hpp"

namespace mhla {
inline namespace MHLA_TARGET {
namespace detail {

/// Prefetches a row of `count` numbers into L1, before it is read.
template <class T>
MHLA_INLINE inline void prefetch_row(const T* row, Index count) {
  for (Index j = 0; j < count; j += kBufferAlignment / Index{sizeof(T)}) prefetch_l1(row + j);
}

/// Some rows of tensors, row by row in pieces of a few cache lines, to prefetch. Large: a local
/// variable, never a copy.
class Prefetch {
 public:
  static constexpr Index kPiece = 2;  ///< lines of a piece

  /// The pieces of one tile.
  struct Pieces {
    const char* const* first = nullptr;
    Index count = 0;

    MHLA_INLINE void fetch(Index i) const {
      for (Index line = 0; line < kPiece; ++line) prefetch_l2(first[i] + line * kLine);
    }
    /// Prefetches them from the i-th on.
    MHLA_INLINE void fetch_from(Index i) const {
      for (; i < count; ++i) fetch(i);
    }
  };

  /// No rows yet.
  /// \param tiles  of the products that prefetch them
  explicit Prefetch(Index tiles) : tiles_(std::max<Index>(tiles, 1)) {}
  /// Rows order[0..count) of some tensors; of a null order rows [0, count).
  template <class... T>
  Prefetch(Index tiles, const Index* order, Index count, const MatrixView<T>&... tensors)
      : Prefetch(tiles) {
    (add(order, count, tensors), ...);
  }
  Prefetch(const Prefetch&) = delete;
  Prefetch& operator=(const Prefetch&) = delete;

  /// Adds rows order[0..count) of a tensor, as above; none if the columns of a row are strided.
  template <class T>
  void add(const Index* order, Index count, const MatrixView<T>& x) {
    if (x.col_stride != 1 || x.data == nullptr || x.cols == 0) return;
    // Rows are taken to begin where row 0 does in its line, which holds if the row stride is a
    // whole number of lines; otherwise a line may be left out.
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
        side_effect();  // or it is vectorised, which is slower for a few pieces
      }
      *last++ = row + std::max<Index>(lines - kPiece, 0) * kLine;  // within the row, if it is long
    }
    last_ = last;
    share_ = ceil_div(last_ - next_, tiles_);
  }

  /// Adds `count` numbers that lie one after another, or none if x is null.
  template <class T>
  void add(const T* x, Index count) {
    add(nullptr, 1, MatrixView<const T>(x, 1, count, count));
  }
  /// Begins again, with all lines `bytes` further on.
  void move(Index bytes) {
    for (const char** piece = pieces_; piece != last_; ++piece) *piece += bytes;
    next_ = pieces_;
  }

  /// The share of a tile: a piece for each of its `turns`; prefetches what is more than these.
  MHLA_INLINE Pieces share(Index turns) {
    const Pieces all{next_, std::min<Index>(share_, last_ - next_)};
    next_ += all.count;
    if (all.count <= turns) return all;
    all.fetch_from(turns);
    return {all.first, turns};
  }
  /// Prefetches what is left.
  MHLA_NOINLINE void finish() {
    Pieces{next_, last_ - next_}.fetch_from(0);
    next_ = last_;
  }

  /// 64 rows of 128 doubles, or 256 floats, of four tensors and a matrix of 128 of these rows. What
  /// has no room here is left to the hardware.
  static constexpr Index kPieces = 3072;

 private:
  static constexpr Index kLine = kBufferAlignment;

  Index tiles_, share_ = 0;
  const char** next_ = pieces_;  // of the pieces to prefetch
  const char** last_ = pieces_;  // behind them
  const char* pieces_[kPieces];
};

}  // namespace detail
}  // namespace MHLA_TARGET
}  // namespace mhla

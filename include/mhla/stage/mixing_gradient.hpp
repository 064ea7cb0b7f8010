#pragma once

/// \file
/// The adjoint of mixing (mixing.hpp) for the mixing matrix, from the gradients dS~, dz~ of the
/// mixtures:
///
///     dm_ib = <S_b, dS~_i> + z_b . dz~_i     for stored coefficients
///
/// Row i is 0 if dS~_i and dz~_i are 0, whatever S_b and z_b are.
///
/// Cost: 2*D*(E+1) flops per coefficient.

#include <algorithm>

#include "mhla/core/arch.hpp"
#include "mhla/core/workspace.hpp"
#include "mhla/kernel/inner_products.hpp"
#include "mhla/kernel/packet.hpp"
#include "mhla/kernel/rows.hpp"
#include "mhla/policy/mixing_matrix.hpp"
#include "mhla/stage/mixing.hpp"
#include "mhla/stage/summary.hpp"

namespace mhla {
inline namespace MHLA_TARGET {
namespace detail {

/// The gradient of m for the query blocks of a group: summed in scratch, then added once.
template <class A>
class MixingGradient {
 public:
  MixingGradient() = default;
  /// \param group  query blocks of a group     \param m  key blocks
  MixingGradient(const char* function, Arena& arena, Index group, Index m)
      : values_(arena.take<A>(function, {group, m})), written_(arena.take<bool>(function, group)) {}

  /// Starts with zeros for query blocks [begin, end) of a matrix with `blocks` leading columns.
  /// \param pattern  must stay in place until `store`
  void start(const Pattern& pattern, Index begin, Index end, Reach reach, Index blocks) {
    pattern_ = &pattern;
    begin_ = begin;
    rows_ = end - begin;
    reach_ = reach;
    blocks_ = blocks;
    std::fill_n(written_, rows_, false);
    // Only what `add` and `store` read, which may be far less than all blocks.
    for (Index r = 0; r < rows_; ++r) {
      const Index first = r / kInnerRows * kInnerRows;
      const ColumnSpan span = pattern.sparse()
                                  ? ColumnSpan{0, list_of(r).count}
                                  : any_of(first, std::min<Index>(kInnerRows, rows_ - first));
      std::fill_n(values_ + r * blocks_ + span.begin, span.end - span.begin, A(0));
    }
  }

  /// Adds left[i] . right[b] over `length` numbers to dm_ib, kInnerDepth numbers at a time. Row 0
  /// of left is the group's first query block; row 0 of right is key block 0.
  void add(Rows<const A> left, Rows<const A> right, Index length) const {
    for (Index r = 0; r < rows_; ++r) written_[r] = written_[r] || !is_zero(left.row(r), length);
    if (pattern_->sparse()) return add_listed(left, right, length);
    for (Index k = 0; k < length; k += kInnerDepth) {
      add_part(left.right_of(k), right.right_of(k), std::min(kInnerDepth, length - k));
    }
  }

  /// dm_ib += <S_b, dS~_i>.
  void add(const Summaries<A>& mixture_gradients, const Summaries<A>& s) const {
    for (Index slab = 0; slab < s.slabs(); ++slab) {
      add(mixture_gradients.slab(slab).below(begin_), s.slab(slab), s.slab_columns(slab));
    }
  }

  /// Adds the rows to a matrix of the same pattern, inside the reach only.
  void store(const MixingView<A>& to) const {
    for (Index r = 0; r < rows_; ++r) {
      if (!written_[r]) continue;
      if (pattern_->sparse()) {
        const PatternList list = list_of(r);
        add_to(values_ + r * blocks_, to.storage().data() + list.first, list.count);
        continue;
      }
      const ColumnSpan span = any_of(r, 1);
      A* const row = to.row_from_zero(begin_ + r);
      for (Index b = span.begin; b < span.end; ++b) row[b] += values_[r * blocks_ + b];
    }
  }

 private:
  void add_listed(Rows<const A> left, Rows<const A> right, Index length) const {
    for (Index r = 0; r < rows_; ++r) {
      const PatternList list = list_of(r);
      A* const sums = values_ + r * blocks_;
      for (Index n = 0; n < list.count; ++n) {
        sums[n] += dot<A>(left.row(r), right.row(list.blocks[n]), length);
      }
    }
  }
  PatternList list_of(Index r) const {
    return readable_list(*pattern_, begin_ + r, reach_, blocks_);
  }

  void add_part(Rows<const A> left, Rows<const A> right, Index length) const {
    for (Index r = 0; r < rows_; r += kInnerRows) {
      const Index rows = std::min<Index>(kInnerRows, rows_ - r);
      const ColumnSpan any = any_of(r, rows);
      add_inner_products<A>(left.below(r), rows, right.below(any.begin), any.end - any.begin,
                            length, {values_ + r * blocks_ + any.begin, blocks_});
    }
  }
  /// Returns the columns that any of some rows reads.
  ColumnSpan any_of(Index r, Index rows) const {
    ColumnSpan any{blocks_, 0};
    for (Index i = begin_ + r; i < begin_ + r + rows; ++i) {
      any = ColumnSpan::either(any, readable(*pattern_, i, reach_, blocks_));
    }
    return {std::min(any.begin, any.end), any.end};
  }

  A* values_ = nullptr;      // [rows, M]
  bool* written_ = nullptr;  // [rows] true if a gradient of row i's mixtures is not 0
  const Pattern* pattern_ = nullptr;
  Index begin_ = 0;  // first query block
  Index rows_ = 0;
  Reach reach_ = Reach::kAll;
  Index blocks_ = 0;  // M, key blocks
};

}  // namespace detail
}  // namespace MHLA_TARGET
}  // namespace mhla

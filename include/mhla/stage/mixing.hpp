#pragma once

/// \file
/// Stage 4 of 5: every query block's own mixture of the summaries.
///
///     S~_i = sum_b m_ib S_b     [D,E]
///     z~_i = sum_b m_ib z_b     [D]
///
/// Rows of m are taken in groups: a group's mixtures stay in the second cache until the read-out
/// (stage 5) has used them. The causal form mixes only blocks before i. Zeros outside a band are
/// skipped, and so is everything a causal row may not see: a NaN there reaches nothing.
/// Cost: 2*M*M*D*(E+1) flops, or with a band of w coefficients a row 2*M*w*D*(E+1).
/// Source: arXiv:2601.07832, section 4.1.

#include <algorithm>

#include "mhla/core/arch.hpp"
#include "mhla/core/tile.hpp"
#include "mhla/core/workspace.hpp"
#include "mhla/stage/mixing_matrix.hpp"
#include "mhla/stage/summary.hpp"

namespace mhla::inline MHLA_TARGET::detail {

/// Query blocks whose mixtures are made together: two full tiles of rows, so that every summary
/// read from far away serves sixteen blocks.
inline constexpr Index kGroupBlocks = 16;

/// Which summaries a row may read.
enum class Reach { kAll, kEarlier };

/// The mixtures of one group of query blocks.
template <class A>
struct Mixtures {
  A* coefficients = nullptr;  ///< [group, M], the part of m that all rows of the group share
  A* kv = nullptr;            ///< [group, D, E]
  A* key_sum = nullptr;       ///< [group, D]
  Index kv_stride = 0;
  Index features = 0;
  Index values = 0;

  Mixtures() = default;
  Mixtures(const char* function, Arena& arena, Index m, Index d, Index e)
      : coefficients(
            arena.take<A>(function, checked_product(function, "workspace", {kGroupBlocks, m}))),
        kv_stride(unaliased_stride<A>(checked_product(function, "workspace", {d, e}))),
        features(d),
        values(e) {
    kv = arena.take<A>(function, checked_product(function, "workspace", {kGroupBlocks, kv_stride}));
    key_sum = arena.take<A>(function, checked_product(function, "workspace", {kGroupBlocks, d}));
  }

  A* block(Index g) const { return kv + g * kv_stride; }              ///< S~ [D,E]
  A* block_key_sum(Index g) const { return key_sum + g * features; }  ///< z~ [D]
};

/// Columns of row i that may be read, of the leading `blocks` columns.
template <class A>
Run readable(const MixingMatrix<A>& m, Index i, Reach reach, Index blocks) {
  const Index end = std::min(m.last(i), reach == Reach::kEarlier ? std::min(i, blocks) : blocks);
  const Index begin = std::min(m.first(i), end);
  return {begin, end - begin};
}

/// Rows [begin, end) of m, ready to be multiplied: their coefficients lie dense in scratch.
template <class A>
class MixingGroup {
 public:
  /// \param coefficients  room for kGroupBlocks * blocks numbers
  MixingGroup(const MixingMatrix<A>& m, Index begin, Index end, Reach reach, Index blocks,
              A* coefficients)
      : rows_(end - begin), coefficients_(coefficients) {
    first_ = blocks;
    for (Index r = 0; r < rows_; ++r) {
      columns_[r] = readable(m, begin + r, reach, blocks);
      first_ = std::min(first_, columns_[r].begin);
      last_ = std::max(last_, end_of(r));
    }
    for (Index r = 0; r < rows_; ++r) {
      const A* const row = m.row(begin + r) + (columns_[r].begin - m.first(begin + r));
      std::copy_n(row, columns_[r].length, at(r, columns_[r].begin));
      all_alike_ = all_alike_ && columns_[r].begin == first_ && end_of(r) == last_;
    }
  }

  Index rows() const { return rows_; }

  /// Mixes one [M,cols] matrix of summaries into rows of `out`, b ascending in every row.
  void mix(Target<A> out, RightOperand<A> summaries, Index cols) const {
    if (all_alike_) {
      multiply_rows(Start::kZero, 0, rows_, first_, last_, out, summaries, cols);
      return;
    }
    for (Index r = 0; r < rows_; ++r) std::fill_n(out.data + r * out.row_stride, cols, A(0));
    mix_rows(0, rows_, first_, last_, out, summaries, cols);
  }

 private:
  Index end_of(Index r) const { return columns_[r].begin + columns_[r].length; }
  A* at(Index r, Index b) const { return coefficients_ + r * (last_ - first_) + (b - first_); }

  /// Columns [from, to) of rows [begin, end): those that all these rows read in one product, what
  /// lies before and behind half of the rows at a time.
  void mix_rows(Index begin, Index end, Index from, Index to, Target<A> out,
                RightOperand<A> summaries, Index cols) const {
    if (from >= to) return;
    Index low = from, high = to;
    for (Index r = begin; r < end; ++r) {
      low = std::max(low, std::min(columns_[r].begin, to));
      high = std::min(high, std::max(end_of(r), from));
    }
    const Index middle = begin + (end - begin) / 2;
    const auto halves = [&](Index first, Index last) {
      if (end - begin == 1) return;  // a single row reads nothing there
      mix_rows(begin, middle, first, last, out, summaries, cols);
      mix_rows(middle, end, first, last, out, summaries, cols);
    };
    if (low >= high) {
      halves(from, to);
      return;
    }
    halves(from, low);
    multiply_rows(Start::kTarget, begin, end, low, high, out, summaries, cols);
    halves(high, to);
  }

  void multiply_rows(Start start, Index begin, Index end, Index from, Index to, Target<A> out,
                     RightOperand<A> summaries, Index cols) const {
    multiply<A>(start, {out.data + begin * out.row_stride, out.row_stride},
                {at(begin, from), last_ - first_, 1},
                {summaries.data + from * summaries.depth_stride, summaries.depth_stride},
                end - begin, cols, to - from);
  }

  Index rows_;
  A* coefficients_;             // [rows, last - first]
  Index first_ = 0, last_ = 0;  // columns that any row reads
  Run columns_[kGroupBlocks];   // columns that each row reads
  bool all_alike_ = true;
};

/// Writes S~_i for all query blocks of a group.
template <class A>
void mix_values(const MixingGroup<A>& group, const Summaries<A>& s, const Mixtures<A>& mixtures) {
  for (Index d = 0; d < s.features; ++d) {
    group.mix({mixtures.kv + d * s.values, mixtures.kv_stride}, s.feature(d), s.values);
  }
}

/// Writes z~_i for all query blocks of a group, from key sums z [M,features].
template <class A>
void mix_key_sums(const MixingGroup<A>& group, const A* key_sums, Index features,
                  const Mixtures<A>& mixtures) {
  group.mix({mixtures.key_sum, features}, {key_sums, features}, features);
}

}  // namespace mhla::inline MHLA_TARGET::detail

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

/// Query blocks whose mixtures are made together, where sixteen mixtures (two full tiles of rows)
/// fit the second cache and are still there when they are read out.
inline constexpr Index kGroupBlocks = 16;
inline constexpr Index kGroupBytes = Index{1} << 19;  ///< of the second cache, for mixtures
inline constexpr Index kLargestGroup = 256;           ///< blocks, to bound the memory

/// Number of query blocks of a group. Mixtures too large for the second cache come from farther
/// away in any case: then as many blocks as possible share one pass over the summaries, as long as
/// every worker has a group. Bits do not depend on it.
template <class A>
Index group_blocks(Index query_blocks, Index d, Index e, Index workers) {
  if (d * e <= kGroupBytes / (kGroupBlocks * static_cast<Index>(sizeof(A)))) return kGroupBlocks;
  const Index share = (query_blocks + workers - 1) / workers;
  return std::clamp(round_up(share, kTileRows), kGroupBlocks, kLargestGroup);
}

/// Which summaries a row may read.
enum class Reach { kAll, kEarlier };

/// The mixtures of one group of query blocks.
template <class A>
struct Mixtures {
  A* coefficients = nullptr;  ///< [group, M], the rows of m, dense
  A* kv = nullptr;            ///< [group, D, E]
  A* key_sum = nullptr;       ///< [group, D]
  Index kv_stride = 0;
  Index features = 0;
  Index values = 0;

  Mixtures() = default;
  /// \param group  query blocks of a group     \param m  key blocks
  Mixtures(const char* function, Arena& arena, Index group, Index m, Index d, Index e)
      : coefficients(arena.take<A>(function, checked_product(function, "workspace", {group, m}))),
        kv_stride(unaliased_stride<A>(checked_product(function, "workspace", {d, e}))),
        features(d),
        values(e) {
    kv = arena.take<A>(function, checked_product(function, "workspace", {group, kv_stride}));
    key_sum = arena.take<A>(function, checked_product(function, "workspace", {group, d}));
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
  /// \param coefficients  room for (end - begin) * blocks numbers
  MixingGroup(const MixingMatrix<A>& m, Index begin, Index end, Reach reach, Index blocks,
              A* coefficients)
      : m_(m),
        begin_(begin),
        rows_(end - begin),
        reach_(reach),
        blocks_(blocks),
        coefficients_(coefficients),
        first_(blocks) {
    for (Index r = 0; r < rows_; ++r) {
      first_ = std::min(first_, columns(r).begin);
      last_ = std::max(last_, end_of(r));
    }
    for (Index r = 0; r < rows_; ++r) {
      const Run own = columns(r);
      std::copy_n(m.row(begin + r) + (own.begin - m.first(begin + r)), own.length,
                  at(r, own.begin));
      all_alike_ = all_alike_ && own.begin == first_ && end_of(r) == last_;
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
  /// Columns that row r reads.
  Run columns(Index r) const { return readable(m_, begin_ + r, reach_, blocks_); }
  Index end_of(Index r) const { return columns(r).begin + columns(r).length; }
  A* at(Index r, Index b) const { return coefficients_ + r * (last_ - first_) + (b - first_); }

  /// Columns [from, to) of rows [begin, end): those that all these rows read in one product, what
  /// lies before and behind half of the rows at a time.
  void mix_rows(Index begin, Index end, Index from, Index to, Target<A> out,
                RightOperand<A> summaries, Index cols) const {
    if (from >= to) return;
    Index low = from, high = to;
    for (Index r = begin; r < end; ++r) {
      low = std::max(low, std::min(columns(r).begin, to));
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

  const MixingMatrix<A>& m_;
  Index begin_;  // of the rows
  Index rows_;
  Reach reach_;
  Index blocks_;
  A* coefficients_;         // [rows, last - first]
  Index first_, last_ = 0;  // columns that any row reads
  bool all_alike_ = true;
};

/// Writes S~_i for all query blocks of a group.
template <class A>
void mix_values(const MixingGroup<A>& group, const Summaries<A>& s, const Mixtures<A>& mixtures) {
  for (Index slab = 0; slab < s.slabs(); ++slab) {
    group.mix({mixtures.kv + slab * kSlabFeatures * s.values, mixtures.kv_stride}, s.slab(slab),
              s.slab_columns(slab));
  }
}

/// Writes z~_i for all query blocks of a group, from key sums z [M,features].
template <class A>
void mix_key_sums(const MixingGroup<A>& group, const A* key_sums, Index features,
                  const Mixtures<A>& mixtures) {
  group.mix({mixtures.key_sum, features}, {key_sums, features}, features);
}

}  // namespace mhla::inline MHLA_TARGET::detail

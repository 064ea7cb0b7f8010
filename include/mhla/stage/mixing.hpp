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

/// Summaries as right operand: what the next panel needs is asked for, since rows of many blocks at
/// once are more streams than the hardware follows.
template <class A>
struct SummaryRows {
  const A* data;
  Index depth_stride;

  const A* row(Index b) const { return data + b * depth_stride; }
  SummaryRows right_of(Index cols) const { return {data + cols, depth_stride}; }
  template <class P>
  MHLA_INLINE void loaded(Index b, Index col, P /*vector*/) const {
    prefetch_second(row(b) + kTileVectors * kLanes<P> + col);
  }
};

/// Which summaries a row may read.
enum class Reach { kAll, kEarlier };

/// Room for the coefficients of one group of query blocks.
template <class A>
struct Coefficients {
  A* values = nullptr;          ///< [group, M], the rows of m, dense
  ColumnSpan* spans = nullptr;  ///< [group], the columns that each row reads

  Coefficients() = default;
  Coefficients(const char* function, Arena& arena, Index group, Index m)
      : values(arena.take<A>(function, {group, m})),
        spans(arena.take<ColumnSpan>(function, group)) {}
};

/// The mixtures of one group of query blocks.
template <class A>
struct Mixtures {
  Coefficients<A> coefficients;
  A* kv = nullptr;       ///< [group, D, E]
  A* key_sum = nullptr;  ///< [group, D]
  Index kv_stride = 0;
  Index features = 0;
  Index values = 0;

  Mixtures() = default;
  /// \param group  query blocks of a group     \param m  key blocks
  Mixtures(const char* function, Arena& arena, Index group, Index m, Index d, Index e)
      : coefficients(function, arena, group, m),
        kv_stride(unaliased_stride<A>(checked_product(function, "workspace", {d, e}))),
        features(d),
        values(e) {
    kv = arena.take<A>(function, {group, kv_stride});
    key_sum = arena.take<A>(function, {group, d});
  }

  A* block(Index g) const { return kv + g * kv_stride; }              ///< S~ [D,E]
  A* block_key_sum(Index g) const { return key_sum + g * features; }  ///< z~ [D]
};

/// Columns of row i that may be read, of the leading `blocks` columns.
template <class A>
ColumnSpan readable(const MixingMatrix<A>& m, Index i, Reach reach, Index blocks) {
  const Index end = std::min(m.last(i), reach == Reach::kEarlier ? std::min(i, blocks) : blocks);
  return {std::min(m.first(i), end), end};
}

/// Rows [begin, end) of m, ready to be multiplied: their coefficients lie dense in scratch.
template <class A>
class MixingGroup {
 public:
  /// \param room  for end - begin rows of `blocks` coefficients
  MixingGroup(const MixingMatrix<A>& m, Index begin, Index end, Reach reach, Index blocks,
              const Coefficients<A>& room)
      : rows_(end - begin), coefficients_(room), any_{blocks, 0} {
    for (Index r = 0; r < rows_; ++r) {
      const ColumnSpan own = readable(m, begin + r, reach, blocks);
      any_ = {std::min(any_.begin, own.begin), std::max(any_.end, own.end)};
      room.spans[r] = own;
    }
    stride_ = std::max<Index>(any_.end - any_.begin, 0);
    for (Index r = 0; r < rows_; ++r) {
      ColumnSpan& own = room.spans[r];
      const Index columns = own.end - own.begin;
      own = {own.begin - any_.begin, own.end - any_.begin};
      std::copy_n(m.row(begin + r) + (any_.begin + own.begin - m.first(begin + r)), columns,
                  room.values + r * stride_ + own.begin);
      all_alike_ = all_alike_ && columns == stride_;
    }
  }

  Index rows() const { return rows_; }

  /// Mixes one [M,cols] matrix of summaries into rows of `out`, b ascending in every row.
  void mix(Target<A> out, RightOperand<A> summaries, Index cols) const {
    const SummaryRows<A> rows{summaries.row(any_.begin), summaries.depth_stride};
    if (all_alike_) {
      multiply(Start::kZero, out, LeftRows<A>{coefficients_.values, stride_}, rows, rows_, cols,
               stride_);
    } else {
      multiply(Start::kZero, out, LeftBand<A>{coefficients_.values, stride_, coefficients_.spans},
               rows, rows_, cols, stride_);
    }
  }

 private:
  Index rows_;
  Coefficients<A> coefficients_;
  ColumnSpan any_;         // columns that any row reads; spans count from its begin
  Index stride_ = 0;       // of the coefficients
  bool all_alike_ = true;  // whether all rows read all of them
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

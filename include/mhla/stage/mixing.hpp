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
///
/// Adjoint, from the gradients dS~, dz~ of the mixtures:
///
///     dS_b  = sum_i m_ib dS~_i     dz_b = sum_i m_ib dz~_i       columns of m in groups
///     dm_ib = <S_b, dS~_i> + z_b . dz~_i                         inside the band
///
/// Cost: 2*M*M*D*(E+1) flops, or with a band of w coefficients a row 2*M*w*D*(E+1); the adjoint
/// twice as much.
/// Source: arXiv:2601.07832, section 4.1.

#include <algorithm>

#include "mhla/core/arch.hpp"
#include "mhla/core/inner_products.hpp"
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

/// Rows of m that read column b, of the leading `blocks` rows.
template <class A>
ColumnSpan readers(const MixingMatrix<A>& m, Index b, Reach reach, Index blocks) {
  const Index end = std::min(m.last_row(b), blocks);
  const Index begin = reach == Reach::kEarlier ? std::max(m.first_row(b), b + 1) : m.first_row(b);
  return {std::min(begin, end), end};
}

/// Rows [begin, end) of m or of its transpose, ready to be multiplied: their coefficients lie dense
/// in scratch.
template <class A>
class MixingGroup {
 public:
  /// Rows of m: what query blocks [begin, end) read.
  /// \param room  for end - begin rows of `blocks` coefficients
  MixingGroup(const MixingMatrix<A>& m, Index begin, Index end, Reach reach, Index blocks,
              const Coefficients<A>& room)
      : MixingGroup(
            end - begin, blocks, room,
            [&](Index r) { return readable(m, begin + r, reach, blocks); },
            [&](Index r, ColumnSpan own, A* to) {
              const A* const row = m.row(begin + r) - m.first(begin + r);
              std::copy(row + own.begin, row + own.end, to);
            }) {}

  /// Columns of m: who reads key blocks [begin, end), of the leading `blocks` query blocks.
  static MixingGroup of_columns(const MixingMatrix<A>& m, Index begin, Index end, Reach reach,
                                Index blocks, const Coefficients<A>& room) {
    return MixingGroup(
        end - begin, blocks, room, [&](Index r) { return readers(m, begin + r, reach, blocks); },
        [&](Index r, ColumnSpan own, A* to) {
          for (Index i = own.begin; i < own.end; ++i) *to++ = m.row(i)[begin + r - m.first(i)];
        });
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
  /// \param span_of  span_of(r): the columns of row r
  /// \param copy     copy(r, span, to): their coefficients
  template <class SpanOf, class Copy>
  MixingGroup(Index rows, Index blocks, const Coefficients<A>& room, SpanOf&& span_of, Copy&& copy)
      : rows_(rows), coefficients_(room), any_{blocks, 0} {
    for (Index r = 0; r < rows_; ++r) {
      const ColumnSpan own = span_of(r);
      any_ = {std::min(any_.begin, own.begin), std::max(any_.end, own.end)};
      room.spans[r] = own;
    }
    stride_ = std::max<Index>(any_.end - any_.begin, 0);
    for (Index r = 0; r < rows_; ++r) {
      ColumnSpan& own = room.spans[r];
      copy(r, own, room.values + r * stride_ + (own.begin - any_.begin));
      all_alike_ = all_alike_ && own.end - own.begin == stride_;
      own = {own.begin - any_.begin, own.end - any_.begin};
    }
  }

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

/// The gradient of m for the query blocks of a group: gathered apart, then added once.
template <class A>
class MixingGradient {
 public:
  MixingGradient() = default;
  /// \param group  query blocks of a group     \param m  key blocks
  MixingGradient(const char* function, Arena& arena, Index group, Index m)
      : values_(arena.take<A>(function, {group, m})) {}

  /// Starts with zeros for query blocks [begin, end) of a matrix with `blocks` leading columns.
  void start(const MixingMatrix<A>& m, Index begin, Index end, Reach reach, Index blocks) {
    m_ = &m;
    begin_ = begin;
    rows_ = end - begin;
    reach_ = reach;
    blocks_ = blocks;
    std::fill_n(values_, rows_ * blocks_, A(0));
  }

  /// dm_ib += left[i] . right[b]; left begins at the group's first query block, right at key block
  /// 0. Rows of both have `length` numbers.
  void add(RightOperand<A> left, RightOperand<A> right, Index length) const {
    for (Index r = 0; r < rows_; r += kInnerRows) {
      const Index rows = std::min<Index>(kInnerRows, rows_ - r);
      const ColumnSpan any = any_of(r, rows);
      inner_products(left.row(r), left.depth_stride, rows, right.row(any.begin), right.depth_stride,
                     any.end - any.begin, length,
                     [to = values_ + r * blocks_ + any.begin, this](Index i, Index b, A sum) {
                       to[i * blocks_ + b] += sum;
                     });
    }
  }

  /// dm_ib += <S_b, dS~_i>.
  void add(const Summaries<A>& mixture_gradients, const Summaries<A>& s) const {
    for (Index slab = 0; slab < s.slabs(); ++slab) {
      const RightOperand<A> left = mixture_gradients.slab(slab);
      add({left.row(begin_), left.depth_stride}, s.slab(slab), s.slab_columns(slab));
    }
  }

  /// Adds the rows to `storage` (MixingMatrix::storage), inside the band and the reach only.
  void store(A* storage) const {
    for (Index r = 0; r < rows_; ++r) {
      const ColumnSpan own = any_of(r, 1);
      A* const row = storage + (begin_ + r) * m_->width() - m_->first(begin_ + r);
      for (Index b = own.begin; b < own.end; ++b) row[b] += values_[r * blocks_ + b];
    }
  }

 private:
  /// The columns that any of some rows reads.
  ColumnSpan any_of(Index r, Index rows) const {
    ColumnSpan any{blocks_, 0};
    for (Index i = begin_ + r; i < begin_ + r + rows; ++i) {
      const ColumnSpan own = readable(*m_, i, reach_, blocks_);
      any = {std::min(any.begin, own.begin), std::max(any.end, own.end)};
    }
    return {std::min(any.begin, any.end), any.end};
  }

  A* values_ = nullptr;  // [rows, M]
  const MixingMatrix<A>* m_ = nullptr;
  Index begin_ = 0;  // first query block
  Index rows_ = 0;
  Reach reach_ = Reach::kAll;
  Index blocks_ = 0;  // M, key blocks
};

}  // namespace mhla::inline MHLA_TARGET::detail

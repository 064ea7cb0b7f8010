#pragma once

/// \file
/// Stage 4 of 5: a mixture of the summaries per query block.
///
///     S~_i = sum_b m_ib S_b     [D,E]
///     z~_i = sum_b m_ib z_b     [D]
///
/// Rows of m are mixed in groups, whose mixtures stay in L2 until the read-out (stage 5). The
/// causal form mixes only blocks before i. Blocks outside the pattern of m, and blocks that a
/// causal row may not see, are skipped: a NaN in them reaches nothing.
///
/// Adjoint, from the gradients dS~, dz~ of the mixtures (for dm see mixing_gradient.hpp):
///
///     dS_b  = sum_i m_ib dS~_i     dz_b = sum_i m_ib dz~_i       columns of m in groups
///
/// Tangent, along dm, dS and dz, by the same product that then starts from its target:
///
///     dS~_i = sum_b m_ib dS_b + dm_ib S_b     dz~_i = sum_b m_ib dz_b + dm_ib z_b
///
/// Cost: 2*M*M*D*(E+1) flops, or 2*M*w*D*(E+1) with w coefficients per row of a band or list; the
/// adjoint as much.
/// Source: arXiv:2601.07832, section 4.1.

#include <algorithm>

#include "mhla/core/arch.hpp"
#include "mhla/core/workspace.hpp"
#include "mhla/kernel/combination.hpp"
#include "mhla/kernel/product.hpp"
#include "mhla/kernel/rows.hpp"
#include "mhla/policy/mixing_matrix.hpp"
#include "mhla/stage/summary.hpp"

namespace mhla {
inline namespace MHLA_TARGET {
namespace detail {

/// Smallest number of query blocks mixed together. Sixteen mixtures of 64 x 64 fit L2 until they
/// are read out.
inline constexpr Index kGroupBlocks = round_up(16, kTile.rows);
inline constexpr Index kLargestGroup = 256;  ///< blocks, to bound the memory

/// Query blocks per group. Each group reads all summaries once, and each mixture is written and
/// read once. Where mixtures fit L2, four groups per worker are few enough. Larger mixtures come
/// from L3 or memory anyway, so as many blocks as possible share a pass while every worker has a
/// group. Bits do not depend on the group.
template <class A>
Index group_blocks(Index query_blocks, Index d, Index e, Index workers) {
  const bool fits = e == 0 || d <= kL2Bytes / (kGroupBlocks * Index{sizeof(A)}) / e;
  const Index share = ceil_div(query_blocks, fits ? 4 * workers : workers);
  return std::clamp(round_up(share, kTile.rows), kGroupBlocks, kLargestGroup);
}

inline Index groups_of(Index blocks, Index group) { return ceil_div(blocks, group); }
/// Blocks [begin, end) of group g of a share, numbered among the blocks of all ranks.
inline ColumnSpan group_blocks(const BlockShare& share, Index group, Index g) {
  return {share.first + g * group, share.first + std::min((g + 1) * group, share.count)};
}

/// Scratch for the coefficients of one group of query blocks.
template <class A>
struct Coefficients {
  A* values = nullptr;                 ///< [group, M], rows of m: dense, or one list each
  ColumnSpan* spans = nullptr;         ///< [group], the columns that each row reads
  Combination<A>* combined = nullptr;  ///< [group], for lists

  Coefficients() = default;
  Coefficients(const char* function, Arena& arena, Index group, Index m)
      : values(arena.take<A>(function, {group, m})),
        spans(arena.take<ColumnSpan>(function, group)),
        combined(arena.take<Combination<A>>(function, group)) {}
};

/// The mixtures of one group of query blocks.
template <class A>
struct Mixtures {
  Rows<A> kv;      ///< S~ [group, D*E]
  Index features;  ///< D
  Index values;    ///< E
  bool beyond_l2;  ///< true if mixtures are read from L3 or memory

  Mixtures(const char* function, Arena& arena, Index group, const Summaries<A>& s)
      : Mixtures(function, arena, group, s.features, s.values) {
    beyond_l2 = s.beyond_l2();
  }
  Mixtures(const char* function, Arena& arena, Index group, Index d, Index e)
      : kv(nullptr, unaliased_stride<A>(checked_product(function, "workspace", {d, e}))),
        features(d),
        values(e),
        beyond_l2(group > 0 && kv.stride > kL2Bytes / (group * Index{sizeof(A)})) {
    kv.data = arena.take<A>(function, {group, kv.stride});
  }

  /// Mixture after the g-th of `count`, to prefetch while the g-th is read, or null.
  const A* behind(Index g, Index count) const {
    return beyond_l2 && g + 1 < count ? kv.row(g + 1) : nullptr;
  }
};

/// Rows [begin, end) of m or of its transpose in scratch, ready to be multiplied: a band as a dense
/// matrix, lists unchanged.
template <class A>
class MixingGroup {
 public:
  /// Takes rows of m: the coefficients that query blocks [begin, end) read.
  /// \param scratch  end - begin rows of `blocks` coefficients
  MixingGroup(MixingView<const A> m, Index begin, Index end, Reach reach, Index blocks,
              const Coefficients<A>& scratch)
      : MixingGroup(m, begin, end, blocks, scratch) {
    if (m.pattern().sparse()) {
      take_lists([&](Index r) { return readable_list(m.pattern(), begin + r, reach, blocks); });
      return;
    }
    take_spans([&](Index r) { return readable(m.pattern(), begin + r, reach, blocks); },
               [&](Index r, ColumnSpan span, A* to) {
                 const A* const row = m.row_from_zero(begin + r);
                 std::copy(row + span.begin, row + span.end, to);
               });
  }

  /// Takes columns of m: the readers of key blocks [begin, end) among the first `blocks` query
  /// blocks.
  static MixingGroup of_columns(MixingView<const A> m, Index begin, Index end, Reach reach,
                                Index blocks, const Coefficients<A>& scratch) {
    MixingGroup group(m, begin, end, blocks, scratch);
    if (m.pattern().sparse()) {
      group.take_lists([&](Index r) { return reader_list(m.pattern(), begin + r, reach, blocks); });
      return group;
    }
    group.take_spans([&](Index r) { return readers(m.pattern(), begin + r, reach, blocks); },
                     [&](Index r, ColumnSpan span, A* to) {
                       for (Index i = span.begin; i < span.end; ++i) {
                         *to++ = m.row_from_zero(i)[begin + r];
                       }
                     });
    return group;
  }

  /// Mixes one [M,cols] matrix into rows of `out`, b ascending in every row.
  /// \param beyond_l2  true if the matrix and `out` are larger than L2
  void mix(Rows<A> out, Rows<const A> rows, Index cols, bool beyond_l2 = false,
           Start start = Start::kZero) const {
    if (m_.pattern().sparse()) {
      for (Index r = 0; r < rows_; ++r) {
        combine_rows(coefficients_.combined[r], rows, cols, start, out.row(r));
      }
      return;
    }
    const Product<A> product{.out = out,
                             .a = {coefficients_.values, rows_, stride_, stride_},
                             .b = rows.below(any_.begin),
                             .cols = cols,
                             .start = start,
                             .spans = dense_ ? nullptr : coefficients_.spans};
    beyond_l2 ? multiply_stretches(product) : multiply(product);
  }
  const MixingView<const A>& matrix() const { return m_; }
  Index begin() const { return begin_; }
  Index rows() const { return rows_; }

 private:
  MixingGroup(MixingView<const A> m, Index begin, Index end, Index blocks,
              const Coefficients<A>& scratch)
      : m_(m), begin_(begin), rows_(end - begin), coefficients_(scratch), any_{blocks, 0} {}

  /// \param span_of  span_of(r): the columns of row r
  /// \param copy     copy(r, span, to): their coefficients
  template <class SpanOf, class Copy>
  void take_spans(SpanOf&& span_of, Copy&& copy) {
    for (Index r = 0; r < rows_; ++r) {
      coefficients_.spans[r] = span_of(r);
      any_ = ColumnSpan::either(any_, coefficients_.spans[r]);
    }
    stride_ = std::max<Index>(any_.end - any_.begin, 0);
    for (Index r = 0; r < rows_; ++r) {
      ColumnSpan& span = coefficients_.spans[r];
      copy(r, span, coefficients_.values + r * stride_ + (span.begin - any_.begin));
      dense_ = dense_ && span.end - span.begin == stride_;
      span = {span.begin - any_.begin, span.end - any_.begin};
    }
  }

  /// \param list_of  list_of(r): the blocks of row r
  template <class ListOf>
  void take_lists(ListOf&& list_of) {
    A* to = coefficients_.values;
    for (Index r = 0; r < rows_; ++r) {
      const PatternList list = list_of(r);
      coefficients_.combined[r] = {to, list.blocks, list.count};
      for (Index n = 0; n < list.count; ++n) *to++ = m_.storage().data()[list.place(n)];
    }
  }

  MixingView<const A> m_;
  Index begin_, rows_;
  Coefficients<A> coefficients_;
  ColumnSpan any_;     // columns that any row reads; spans are relative to its begin
  Index stride_ = 0;   // of the coefficients
  bool dense_ = true;  // every row reads all columns in any_
};

/// Writes one slab of S~_i for all query blocks of a group, from the same slab of S.
template <class A>
void mix_slab(const MixingGroup<A>& group, const Summaries<A>& s, Index slab,
              const Mixtures<A>& mixtures, Start start = Start::kZero) {
  group.mix(mixtures.kv.right_of(slab * kTile.slab * s.values), s.slab(slab), s.slab_columns(slab),
            s.beyond_l2(), start);
}
/// Writes S~_i for all query blocks of a group, or adds it.
template <class A>
void mix(const MixingGroup<A>& group, const Summaries<A>& s, const Mixtures<A>& mixtures,
         Start start = Start::kZero) {
  for (Index slab = 0; slab < s.slabs(); ++slab) mix_slab(group, s, slab, mixtures, start);
}

}  // namespace detail
}  // namespace MHLA_TARGET
}  // namespace mhla

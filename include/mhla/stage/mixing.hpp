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
        kv_stride(round_up(checked_product(function, "workspace", {d, e}), kRowAlignment) +
                  kRowAlignment),  // never a multiple of the cache's way size
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

/// A group of rows of m [begin, end): the columns [shared_begin, shared_end) that every row reads
/// lie dense in `shared`; what else a row reads lies before or behind.
template <class A>
struct MixingGroup {
  const MixingMatrix<A>& m;
  Index begin, end;
  Reach reach;
  Index blocks;
  const A* shared = nullptr;  // [end - begin, shared_end - shared_begin]
  Index shared_begin = 0, shared_end = 0;
  Start shared_start = Start::kZero;  // kTarget where a row reads columns before the shared ones

  MixingGroup(const MixingMatrix<A>& m_, Index begin_, Index end_, Reach reach_, Index blocks_,
              A* coefficients)
      : m(m_), begin(begin_), end(end_), reach(reach_), blocks(blocks_), shared(coefficients) {
    shared_end = blocks;
    for (Index i = begin; i < end; ++i) {
      const Run columns = readable(m, i, reach, blocks);
      shared_begin = std::max(shared_begin, columns.begin);
      shared_end = std::min(shared_end, columns.begin + columns.length);
    }
    shared_end = std::max(shared_end, shared_begin);
    for (Index i = begin; i < end; ++i) {
      if (readable(m, i, reach, blocks).begin < shared_begin) shared_start = Start::kTarget;
    }
    for (Index i = begin; i < end && shared_end > shared_begin; ++i) {
      const A* const row = m.row(i) + (shared_begin - m.first(i));
      std::copy_n(row, shared_end - shared_begin, coefficients);
      coefficients += shared_end - shared_begin;
    }
  }

  /// Mixes one [M,cols] matrix of summaries into rows of `out`, b ascending in every row.
  void mix(Target<A> out, const A* summaries, Index stride, Index cols) const {
    for (Index i = begin; i < end && shared_start == Start::kTarget; ++i) {
      const Run columns = readable(m, i, reach, blocks);
      const Index stop = std::min(shared_begin, columns.begin + columns.length);
      mix_row(Start::kZero, i, columns.begin, stop, out, summaries, stride, cols);
    }
    const Index depth = shared_end - shared_begin;
    multiply<A>(shared_start, out, {shared, depth, 1}, {summaries + shared_begin * stride, stride},
                end - begin, cols, depth);
    for (Index i = begin; i < end; ++i) {
      const Run columns = readable(m, i, reach, blocks);
      mix_row(Start::kTarget, i, std::max(shared_end, columns.begin),
              columns.begin + columns.length, out, summaries, stride, cols);
    }
  }

 private:
  void mix_row(Start start, Index i, Index from, Index to, Target<A> out, const A* summaries,
               Index stride, Index cols) const {
    if (start == Start::kTarget && from >= to) return;
    multiply<A>(start, {out.data + (i - begin) * out.row_stride, out.row_stride},
                {m.row(i) + (from - m.first(i)), 0, 1}, {summaries + from * stride, stride}, 1,
                cols, std::max<Index>(to - from, 0));
  }
};

/// Writes S~_i for all query blocks of a group.
template <class A>
void mix_values(const MixingGroup<A>& group, const Summaries<A>& s, const Mixtures<A>& mixtures) {
  for (Index d = 0; d < s.features; ++d) {
    group.mix({mixtures.kv + d * s.values, mixtures.kv_stride}, s.kv + d * s.blocks * s.values,
              s.values, s.values);
  }
}

/// Writes z~_i for all query blocks of a group, from key sums z [M,features].
template <class A>
void mix_key_sums(const MixingGroup<A>& group, const A* key_sums, Index features,
                  const Mixtures<A>& mixtures) {
  group.mix({mixtures.key_sum, features}, key_sums, features, features);
}

}  // namespace mhla::inline MHLA_TARGET::detail

#pragma once

/// \file
/// The summaries of one head: S_b, and the z_b that its denominators read. The pass that sums S_b
/// also sums z_b, of the same keys. Separate keys of the denominator have a pass of their own.

#include <algorithm>

#include "mhla/attention/operator.hpp"
#include "mhla/core/arch.hpp"
#include "mhla/core/workspace.hpp"
#include "mhla/kernel/rows.hpp"
#include "mhla/stage/summary.hpp"

namespace mhla {
inline namespace MHLA_TARGET {
namespace detail {

/// S [M,D,E] as a unit stores it, and z [M, D or Dz] of one head. A rank writes its share.
template <class A, class Values = Summaries<A>>
class HeadSummaries {
 public:
  HeadSummaries(const char* function, Arena& arena, const HeadSizes& sizes, const BlockShare& share)
      : n_(sizes),
        share_(share),
        values_(function, arena, share.all, sizes.features, sizes.values),
        key_sums_(arena.take<A>(function, {share.all, sizes.sum_features()})) {}
  HeadSummaries(const char* function, Arena& arena, const HeadSizes& sizes, Index blocks)
      : HeadSummaries(function, arena, sizes, BlockShare{0, blocks, blocks}) {}

  const Values& values() const { return values_; }                     ///< all S_b
  Rows<A> key_sums() const { return {key_sums_, n_.sum_features()}; }  ///< all z_b
  A* key_sum(Index b) const { return key_sums_ + b * n_.sum_features(); }

  /// Number of tasks of the share; on the vector unit a task is a block.
  Index tasks() const { return summary_tasks(values_, share_); }
  /// The same without the last of all blocks, whose summary no causal form reads.
  Index tasks_before_last() const {
    return std::clamp<Index>(share_.all - 1 - share_.first, 0, share_.count);
  }
  /// Writes S_b and z_b of the blocks of a task into their places.
  template <Scalar T, Partition P, class Op, class Scratch>
  void summarize(const Inputs<T>& in, const P& blocks, Index task, const Op& op,
                 const Scratch& scratch) const {
    for_each_summary(values_, share_, task, scratch, [&](Index b, auto summary) {
      write(in, blocks, b, op, scratch, summary, key_sum(share_.first + b));
    });
  }
  /// Calls f(rows, columns) for every array with one row per block.
  template <class F>
  void for_each_array(F&& f) const {
    for_each_slab(values_, f);
    if (n_.sum_features() > 0) f(key_sums(), n_.sum_features());
  }

 private:
  template <Scalar T, Partition P, class Op, class Scratch, class Summary>
  void write(const Inputs<T>& in, const P& blocks, Index b, const Op& op, const Scratch& scratch,
             Summary summary, A* key_sum) const {
    const bool none = n_.sums == WeightSums::kNone;
    using detail::summarize;  // hidden by the member; ADL finds a unit's overload
    summarize(in.k, in.v, blocks, b, in.key_mask, op.key_map, scratch, summary,
              none || n_.separate_normalizer() ? nullptr : key_sum);
    if (n_.separate_normalizer()) {
      sum_keys(in.normalizer_k, blocks, b, in.key_mask, op.key_map, row_scratch(scratch), key_sum);
    }
  }

  HeadSizes n_;
  BlockShare share_;
  Values values_;
  A* key_sums_;
};

template <class A>
Index summary_tasks(const Summaries<A>& /*s*/, const BlockShare& share) {
  return share.count;
}
/// Calls f(b, where S_b is written) for the blocks of a task, b counted in the share.
template <class A, class F>
void for_each_summary(const Summaries<A>& s, const BlockShare& share, Index task,
                      const KeyScratch<A>& /*scratch*/, F&& f) {
  const Index b = share.first + task;
  const bool prefetch = s.beyond_l2() && task + 1 < share.count;
  f(task, SummaryPlace<A>{s.block(b), prefetch ? s.block(b + 1) : Rows<A>()});
}
template <class A, class F>
void for_each_slab(const Summaries<A>& s, F&& f) {
  for (Index slab = 0; slab < s.slabs(); ++slab) f(s.slab(slab), s.slab_columns(slab));
}
template <class A>
const KeyScratch<A>& row_scratch(const KeyScratch<A>& scratch) {
  return scratch;
}

}  // namespace detail
}  // namespace MHLA_TARGET
}  // namespace mhla

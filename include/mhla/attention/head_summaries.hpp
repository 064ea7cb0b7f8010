#pragma once

/// \file
/// The summaries of one head: S_b, and the z_b that its denominators read. z_b is summed from the
/// numerator's keys in the same pass as S_b, or from the denominator's own keys if it has some.

#include "mhla/attention/operator.hpp"
#include "mhla/core/arch.hpp"
#include "mhla/core/workspace.hpp"
#include "mhla/kernel/rows.hpp"
#include "mhla/stage/summary.hpp"

namespace mhla {
inline namespace MHLA_TARGET {
namespace detail {

/// S [M,D,E] as a unit stores it, and z [M, D or Dz] of one head.
template <class A, class Values = Summaries<A>>
class HeadSummaries {
 public:
  HeadSummaries(const char* function, Arena& arena, const HeadSizes& sizes, Index blocks)
      : n_(sizes),
        values_(function, arena, blocks, sizes.features, sizes.values),
        key_sums_(arena.take<A>(function, {blocks, sizes.sum_features()})) {}

  const Values& values() const { return values_; }                     ///< all S_b
  Rows<A> key_sums() const { return {key_sums_, n_.sum_features()}; }  ///< all z_b
  A* key_sum(Index b) const { return key_sums_ + b * n_.sum_features(); }

  /// Writes S_b and z_b of the blocks of a task (summary_tasks) into their places.
  template <Scalar T, Partition P, class Op, class Scratch>
  void summarize(const Inputs<T>& in, const P& blocks, Index task, const Op& op,
                 const Scratch& scratch) const {
    for_each_summary(values_, task, scratch, [&](Index b, auto summary) {
      write(in, blocks, b, op, scratch, summary, key_sum(b));
    });
  }
  /// Writes those of block b into place 0.
  template <Scalar T, Partition P, class Op>
  void summarize_alone(const Inputs<T>& in, const P& blocks, Index b, const Op& op,
                       const KeyScratch<A>& scratch) const {
    write(in, blocks, b, op, scratch, values_.block(0), key_sum(0));
  }

 private:
  template <Scalar T, Partition P, class Op, class Scratch, class Summary>
  void write(const Inputs<T>& in, const P& blocks, Index b, const Op& op, const Scratch& scratch,
             Summary summary, A* key_sum) const {
    const bool none = n_.sums == WeightSums::kNone;
    using detail::summarize;  // hidden by the member; ADL finds a unit's overload
    summarize(in.k, in.v, blocks, b, in.key_mask, op.key_map, scratch, summary,
              none || n_.own() ? nullptr : key_sum);
    if (n_.own()) {
      sum_keys(in.normalizer_k, blocks, b, in.key_mask, op.key_map, row_scratch(scratch), key_sum);
    }
  }

  HeadSizes n_;
  Values values_;
  A* key_sums_;
};

/// Number of summary tasks of one head; on the vector unit a task is a block.
template <class A>
Index summary_tasks(const Summaries<A>& s) {
  return s.blocks;
}
/// Calls f(b, where S_b is written) for the blocks of a task.
template <class A, class F>
void for_each_summary(const Summaries<A>& s, Index task, const KeyScratch<A>& /*scratch*/, F&& f) {
  f(task, s.block(task));
}
template <class A>
const KeyScratch<A>& row_scratch(const KeyScratch<A>& scratch) {
  return scratch;
}

}  // namespace detail
}  // namespace MHLA_TARGET
}  // namespace mhla

#pragma once

/// \file
/// Sums of the gradients of feature maps' weights, bitwise the same for any executor.

#include <algorithm>
#include <span>

#include "mhla/attention/operator.hpp"
#include "mhla/core/arch.hpp"
#include "mhla/core/workspace.hpp"
#include "mhla/kernel/packet.hpp"
#include "mhla/stage/mixing.hpp"

namespace mhla {
inline namespace MHLA_TARGET {
namespace detail {

/// Gradients of a map's weights, one part for each group of blocks.
template <class A>
class WeightParts {
 public:
  WeightParts(const char* function, Arena& arena, Index groups, Index weights)
      : parts_(arena.take<A>(function, {groups, weights})), groups_(groups), weights_(weights) {}

  /// Memory that group g adds to; null without a gradient to write.
  A* part(Index g) const { return wanted_ ? parts_ + g * weights_ : nullptr; }
  void start(std::span<const A> sums) {
    wanted_ = !sums.empty();
    if (wanted_) std::fill_n(parts_, groups_ * weights_, A(0));
  }
  /// Adds the parts, the first group first.
  void finish(std::span<A> sums) const {
    if (!wanted_) return;
    for (Index g = 1; g < groups_; ++g) add_to<A>(part(g), parts_, weights_);
    if (groups_ > 0) add_to<A>(parts_, sums.data(), weights_);
  }

 private:
  A* parts_;
  Index groups_;
  Index weights_;
  bool wanted_ = false;
};

/// Blocks whose weight gradients are one part: the same for all workers and instruction sets.
inline constexpr Index kPartBlocks = 16;

/// Blocks of a group in the backward forms: as in the forward, unless weights are summed by groups.
template <class A, class Op>
Index gradient_group(const Op& op, Index blocks, const HeadSizes& n, Index workers) {
  if (op.query_map.weights() > 0 || op.key_map.weights() > 0) return kPartBlocks;
  return group_blocks<A>(blocks, n.features, n.values, workers);
}

}  // namespace detail
}  // namespace MHLA_TARGET
}  // namespace mhla

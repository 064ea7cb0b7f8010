#pragma once

/// \file
/// Sums of the gradients of feature maps' weights, bitwise the same for any executor.

#include <algorithm>
#include <span>

#include "mhla/core/arch.hpp"
#include "mhla/core/workspace.hpp"
#include "mhla/kernel/packet.hpp"
#include "mhla/kernel/rows.hpp"
#include "mhla/policy/partition.hpp"

namespace mhla {
inline namespace MHLA_TARGET {
namespace detail {

/// Gradients of a map's weights, one part for each block [M, weights].
template <class A>
class WeightParts {
 public:
  WeightParts(const char* function, Arena& arena, const BlockShare& share, Index weights)
      : parts_(arena.take<A>(function, {share.all, weights})), share_(share), weights_(weights) {}

  /// Memory that block b of the share adds to; null without a gradient to write.
  A* part(Index b) const { return wanted_ ? parts_ + (share_.first + b) * weights_ : nullptr; }
  void start(std::span<const A> sums) {
    wanted_ = !sums.empty();
    if (wanted_) std::fill_n(part(0), share_.count * weights_, A(0));
  }
  /// Adds the parts of all blocks, the first block first.
  void finish(std::span<A> sums) const {
    if (!wanted_ || share_.all == 0) return;
    add_rows_to(parts_ + weights_, weights_, share_.all - 1, parts_, weights_);
    add_to<A>(parts_, sums.data(), weights_);
  }
  /// Calls f(rows, columns) for the parts, if there are any.
  template <class F>
  void for_each_array(F&& f) const {
    if (wanted_) f(Rows<A>{parts_, weights_}, weights_);
  }

 private:
  A* parts_;
  BlockShare share_;
  Index weights_;
  bool wanted_ = false;
};

}  // namespace detail
}  // namespace MHLA_TARGET
}  // namespace mhla

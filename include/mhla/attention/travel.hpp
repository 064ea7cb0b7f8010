#pragma once

/// \file
/// Reading out a head's groups of blocks (stage/mixing.hpp), and what a head tells of its work to
/// whom it lets its summaries travel to other ranks meanwhile. On one machine nobody listens.

#include <algorithm>

#include "mhla/core/arch.hpp"
#include "mhla/core/executor.hpp"
#include "mhla/core/scalar.hpp"
#include "mhla/core/workspace.hpp"
#include "mhla/stage/mixing.hpp"

namespace mhla {
inline namespace MHLA_TARGET {
namespace detail {

/// A head that has all blocks. That of a rank: distributed/driver.hpp.
struct Alone {
  static constexpr bool kAlone = true;
  /// Rows of block b of the share are written. On any thread.
  void wrote(Index /*b*/) const {}
  /// A block is done, and the next one not begun. On any thread.
  void between() const {}
  /// Return when slab s of all summaries is there, and all of them. On the thread of the call.
  void await(Index /*slab*/) const {}
  void await() const {}
};

/// Mixes the groups of a head's blocks and calls read(group, worker) for each. While summaries
/// arrive, each worker mixes one group, a slab as soon as that is there.
/// \param s         summaries
/// \param group_of  group_of(g, worker) returns the MixingGroup g
template <class Travel, class Worker, class Values, class GroupOf, class Read>
void read_groups(Index groups, const ExecutorRef& executor, const Workers<Worker>& workers,
                 const Values& s, const Travel& travel, GroupOf&& group_of, Read&& read) {
  Index early = 0;
  if constexpr (!Travel::kAlone) {
    early = std::min(groups, executor.workers());
    for (Index slab = 0; slab < s.slabs() && early > 0; ++slab) {
      travel.await(slab);
      executor.for_each(early, [&](Index g, Index) {
        mix_slab(group_of(g, workers[g]), s, slab, workers[g].mixtures);
        travel.between();
      });
    }
    travel.await();
    executor.for_each(early, [&](Index g, Index) { read(group_of(g, workers[g]), workers[g]); });
  }
  executor.for_each(groups - early, [&](Index g, Index w) {
    const auto group = group_of(early + g, workers[w]);
    mix(group, s, workers[w].mixtures);
    read(group, workers[w]);
  });
}

}  // namespace detail
}  // namespace MHLA_TARGET
}  // namespace mhla

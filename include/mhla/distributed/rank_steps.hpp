#pragma once

/// \file
/// The steps of a head on a rank, composed of the pieces that the heads of all forms have. A part
/// of the rows is sent as soon as it is written, and transfers progress between two pieces. While
/// summaries arrive, each worker mixes one group, slab by slab as these arrive.

#include <algorithm>
#include <thread>

#include "mhla/core/arch.hpp"
#include "mhla/core/executor.hpp"
#include "mhla/core/scalar.hpp"
#include "mhla/distributed/summary_transfer.hpp"
#include "mhla/stage/mixing.hpp"

namespace mhla {
inline namespace MHLA_TARGET {
namespace detail {

/// Runs the steps of one head after another.
/// \tparam Pairs  the pairs in flight; poll() lets their transfers progress
template <class C, class Pairs>
class RankSteps {
 public:
  RankSteps(C& comm, Pairs& pairs, const ExecutorRef& executor)
      : comm_(comm), pairs_(pairs), executor_(executor) {}

  /// The first step of all forms.
  template <class Head>
  void summarize(const Head& head, SummaryTransfer<C>& summaries) const {
    executor_.for_each(head.tasks(), [&](Index b, Index w) {
      head.summarize_block(b, w);
      wrote(summaries, b);
    });
    summaries.start_rest(comm_);
  }

  /// The second step of a forward form.
  template <class Head, class Mixing, class Out>
  void read(const Head& head, const Mixing& mixing, const Out& out,
            SummaryTransfer<C>& summaries) const {
    const Index early = std::min(head.groups(), executor_.workers());
    for (Index slab = 0; slab < head.values().slabs() && early > 0; ++slab) {
      summaries.await(slab);
      executor_.for_each(early, [&](Index g, Index) {
        mix_slab(head.group(mixing, g, g), head.values(), slab, head.mixtures(g));
        poll();
      });
    }
    summaries.await();
    const auto read_group = [&](const auto& group, Index w) {
      head.mix_sums(group, w);
      for (Index r = 0; r < group.rows(); ++r) {
        head.read_block(group, r, w, out);
        poll();
      }
    };
    executor_.for_each(early, [&](Index g, Index) { read_group(head.group(mixing, g, g), g); });
    executor_.for_each(head.groups() - early, [&](Index g, Index w) {
      const auto group = head.group(mixing, early + g, w);
      mix(group, head.values(), head.mixtures(w));
      read_group(group, w);
    });
  }

  /// The query side of a gradient.
  template <class Head, class Mixing>
  void read_queries(const Head& head, const Mixing& mixing, SummaryTransfer<C>& mixtures) const {
    executor_.for_each(head.query_groups(), [&](Index g, Index w) {
      const auto group = head.query_group(mixing, g, w);
      for (Index r = 0; r < group.rows(); ++r) wrote(mixtures, head.query_block(group, r, w));
      head.finish_group(group, w);
    });
    mixtures.start_rest(comm_);
  }

  /// The key side of a gradient.
  template <class Head, class Mixing>
  void read_keys(const Head& head, const Mixing& mixing) const {
    executor_.for_each(head.key_groups(), [&](Index g, Index w) {
      const auto group = head.key_group(mixing, g, w);
      for (Index r = 0; r < group.rows(); ++r) {
        head.key_block(group, r, w);
        poll();
      }
    });
  }

 private:
  /// Rows of block b of the share are written. On any thread.
  void wrote(SummaryTransfer<C>& transfer, Index b) const {
    transfer.wrote(b);
    if (called()) transfer.start_written(comm_);
    poll();
  }
  /// Lets transfers progress. Only the thread of the call does so.
  void poll() const {
    if (called()) pairs_.poll();
  }
  bool called() const { return std::this_thread::get_id() == caller_; }

  C& comm_;
  Pairs& pairs_;
  const ExecutorRef& executor_;
  std::thread::id caller_ = std::this_thread::get_id();
};

}  // namespace detail
}  // namespace MHLA_TARGET
}  // namespace mhla

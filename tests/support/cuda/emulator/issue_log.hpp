#pragma once

/// \file
/// Log of the counted instructions that the warps of a block issued (counters.hpp).

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "emulator/counters.hpp"

namespace emulator {

class IssueLog {
 public:
  explicit IssueLog(std::size_t warps)
      : counters_(Counter::names().size()), warps_(warps), lanes_(warps * 32) {}

  void add(int warp, int lane, const Counter& counter, std::uint64_t times) {
    const bool own = counter.by() == By::kThread || counter.by() == By::kThreadWork;
    Lane& l = lanes_[static_cast<std::size_t>(32 * warp + (own ? lane : 0))];
    if (l.issued.empty()) l.issued.resize(counters_);
    l.issued[counter.index()].times += times;
  }

  /// Adds the block's counts to a launch's report.
  void report(Report& report) const {
    report.warps.resize(warps_);
    for (std::size_t w = 0; w < warps_; ++w) {
      auto& sums = report.warps[w];
      sums.resize(counters_);
      for (std::size_t c = 0; c < counters_; ++c) {
        Issued most;
        for (std::size_t i = 32 * w; i < 32 * (w + 1); ++i) {
          if (lanes_[i].issued.empty()) continue;
          most.times = std::max(most.times, lanes_[i].issued[c].times);
        }
        sums[c].times += most.times;
      }
    }
  }

 private:
  struct Lane {
    std::vector<Issued> issued;
  };

  std::size_t counters_, warps_;
  std::vector<Lane> lanes_;
};

}  // namespace emulator

#pragma once

/// \file
/// The barrier of a cluster (ptx/barrier.cuh): all threads of its blocks arrive, and later wait. A
/// thread that has ended without arriving is waited for, which the PTX manual does not ask for.

#include <cstdint>
#include <utility>
#include <vector>

#include "emulator/block.hpp"

namespace emulator {

inline const Counter kClusterBarriers{"cluster barriers", By::kThread};

class ClusterBarrier {
 public:
  explicit ClusterBarrier(Block& block)
      : block_(block),
        arrivals_(static_cast<std::size_t>(block.threads())),
        waits_(arrivals_.size()),
        arrived_(block.clocks.nothing()) {}

  void arrive() {
    std::uint64_t& own = arrivals_[block_.who()];
    if (own != waits_[block_.who()]) {
      block_.fail(Kind::kDivergent, "arrives at the cluster's barrier before it has waited");
    }
    ++own;
    block_.clocks.release_cluster(block_.who(), released_);
    block_.clocks.release(block_.who(), arrived_);
    if (++count_ < block_.threads()) return;
    count_ = 0;
    ++ended_;
    met_ = std::exchange(arrived_, block_.clocks.nothing());
    stored_ = released_;
    waiting_.wake(block_);
  }

  void wait() {
    block_.add(kClusterBarriers);
    const std::uint64_t own = arrivals_[block_.who()];
    if (own == waits_[block_.who()]) {
      block_.fail(Kind::kDivergent, "waits at the cluster's barrier before it arrives");
    }
    waiting_.wait(
        block_, [&] { return ended_ == own; }, "barrier.cluster.wait");
    block_.clocks.acquire(block_.who(), met_);
    block_.clocks.acquire_cluster(block_.who(), stored_);
    waits_[block_.who()] = own;
  }

 private:
  Block& block_;
  std::vector<std::uint64_t> arrivals_, waits_;  // of each thread
  int count_ = 0;                                // arrivals of the phase under way
  std::uint64_t ended_ = 0;                      // phases
  Vector arrived_, met_, released_, stored_;
  WaitList waiting_;
};

}  // namespace emulator

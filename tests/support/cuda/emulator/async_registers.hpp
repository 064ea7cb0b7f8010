#pragma once

/// \file
/// Registers that warps of a block give to each other (setmaxnreg). Initially each thread has as
/// many as fit into 65536, a multiple of 8 and at most 248. __launch_bounds__(kThreads, 1) binds
/// the compiler to that number. Warps that take registers wait until others have given enough.

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "emulator/block.hpp"
#include "emulator/group.hpp"

namespace emulator {

class RegisterPool {
 public:
  explicit RegisterPool(Block& block)
      : block_(block),
        counts_(block.quads.size(), std::min(65536 / block.threads() / 8 * 8, 248)) {}

  /// Sets the register count per thread of the running thread's warpgroup to `count`.
  void set(int count, bool take) {
    const auto group = static_cast<std::size_t>(block_.self().warp / 4);
    if (static_cast<int>(group + 1) * 128 > block_.threads()) {
      block_.fail(Kind::kDivergent, "setmaxnreg in a group of less than four warps");
    }
    struct {
    } none;
    const auto together = [&](auto&) {
      const int change = count - counts_[group];
      if (take ? change < 0 : change > 0) {
        block_.fail(Kind::kRegisters, std::string(take ? "takes" : "gives") + " registers from " +
                                          std::to_string(counts_[group]) + " to " +
                                          std::to_string(count));
      }
      if (take) return;
      free_ -= change;
      counts_[group] = count;
      waiting_.wake(block_);
    };
    call_together<128>(take ? "setmaxnreg.inc" : "setmaxnreg.dec",
                       static_cast<std::uint64_t>(count), none, together);
    if (!take) return;
    waiting_.wait(
        block_,
        [&] {
          const int change = count - counts_[group];
          if (change > free_) return false;
          free_ -= change;
          counts_[group] = count;
          return true;
        },
        "setmaxnreg.inc", static_cast<std::uint64_t>(count));
  }

 private:
  Block& block_;
  std::vector<int> counts_;  // per warpgroup
  int free_ = 0;             // registers per thread of a warpgroup
  WaitList waiting_;
};

}  // namespace emulator

#pragma once

/// \file
/// Registers that warps of a block give to one another (setmaxnreg). The block begins with as many
/// for each thread as fit into 65536, a multiple of 8 and at most 248: what the compiler is bound
/// to by __launch_bounds__(kThreads, 1). Those who take wait until others have given enough.

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

  /// The group of four warps of the running thread will have `count` registers in each thread.
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
  std::vector<int> counts_;  // of each group of four warps
  int free_ = 0;             // registers for each thread of a group
  WaitList waiting_;
};

}  // namespace emulator

#pragma once

/// \file
/// Instructions on counters in device memory (ptx/counter.cuh). A wait ends when threads of its own
/// block, or blocks that ran before, have added enough. Blocks run one after another, so a wait for
/// a later block is a deadlock. Counted by thread: "counter instructions".

#include <cstdint>
#include <utility>

#include "emulator/block.hpp"

namespace emulator {

inline const Counter kCounterInstructions{"counter instructions"};

class DeviceCounters {
 public:
  explicit DeviceCounters(Block& block) : block_(block) {}

  /// Adds 1 and returns what the counter was.
  std::uint32_t add(std::uint32_t* counter, bool releases) {
    const char* const what = releases ? "red.release" : "atom.add";
    block_.global.count(block_.who(), counter, what);
    if (releases) {
      Vector seen = block_.clocks.nothing();
      block_.clocks.release(block_.who(), seen);
      block_.global.release(counter, std::move(seen));
    }
    const std::uint32_t before = (*counter)++;
    waiting_.wake(block_);
    block_.add(kCounterInstructions);
    block_.pause();
    return before;
  }

  void wait(const std::uint32_t* counter, std::uint32_t count) {
    block_.global.count(block_.who(), counter, "ld.acquire");
    waiting_.wait(
        block_, [&] { return *counter >= count; }, "a wait for a counter to be", count);
    block_.global.acquire(block_.who(), counter, count);
    block_.add(kCounterInstructions);
  }

 private:
  Block& block_;
  WaitList waiting_;
};

}  // namespace emulator

#pragma once

/// \file
/// cp.async. The 16 bytes are in flight from the copy to the wait that covers it. They are read
/// from memory at one end of that time, which the schedule chooses. For the clocks, the waiting
/// thread writes them at the wait. Counted by thread: "copies".

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "emulator/block.hpp"

namespace emulator {

inline const Counter kCopies{"copies"};

class Copies {
 public:
  explicit Copies(Block& block)
      : block_(block), threads_(static_cast<std::size_t>(block.threads())) {}

  void start(std::uint32_t to, const void* from, std::uint32_t bytes) {
    const Actor who = block_.who();
    if (bytes != 0 && bytes != 16) {
      block_.fail(Kind::kOutside, "cp.async of " + std::to_string(bytes) + " bytes");
    }
    if (reinterpret_cast<std::uintptr_t>(from) % 16 != 0) {
      block_.fail(Kind::kOutside, "cp.async from a device address that is no multiple of 16");
    }
    block_.shared.check(who, to, 16, 16, "cp.async");
    block_.shared.begin_write(who, to, 16, Proxy::kGeneric, "cp.async");
    Copy copy{to, bytes != 0 ? from : nullptr, !block_.schedule.once_in(2), {}};
    if (bytes != 0) {
      block_.global.read(who, from, 16, 16, Read::kCoherent, "cp.async");
      if (!copy.late) std::memcpy(copy.bytes, from, 16);
    }
    threads_[who].copies.push_back(copy);
    ++threads_[who].open;
    block_.add(kCopies);
  }

  void commit() {
    Queue& queue = threads_[block_.who()];
    queue.groups.push_back(std::exchange(queue.open, 0));
    block_.pause();
  }

  void wait(std::size_t pending) {
    Queue& queue = threads_[block_.who()];
    const auto begin = queue.groups.begin();
    const auto end =
        queue.groups.end() - static_cast<std::ptrdiff_t>(std::min(pending, queue.groups.size()));
    const std::size_t ended = std::accumulate(begin, end, std::size_t{0});
    for (std::size_t i = 0; i < ended; ++i) finish(queue.copies[i]);
    queue.copies.erase(queue.copies.begin(),
                       queue.copies.begin() + static_cast<std::ptrdiff_t>(ended));
    queue.groups.erase(begin, end);
  }

 private:
  struct Copy {
    std::uint32_t to;
    const void* from;  ///< null for zeros
    bool late;
    std::byte bytes[16];
  };
  struct Queue {
    std::vector<Copy> copies;         ///< in flight, in the order of their start
    std::vector<std::size_t> groups;  ///< number of copies of each group
    std::size_t open = 0;             ///< number of copies since the last group
  };

  void finish(Copy& copy) {
    const Actor who = block_.who();
    if (copy.from != nullptr) {
      block_.global.read_again(who, copy.from, 16, "cp.async");
      if (copy.late) std::memcpy(copy.bytes, copy.from, 16);
    }
    block_.shared.end_write(block_.clocks.now(who), copy.to, 16, Proxy::kGeneric, copy.bytes);
  }

  Block& block_;
  std::vector<Queue> threads_;
};

}  // namespace emulator

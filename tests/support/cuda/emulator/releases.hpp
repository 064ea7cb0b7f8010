#pragma once

/// \file
/// Releases of counters in device memory (ptx/counter.cuh): what blocks of a launch released, and
/// what the running block has acquired.
///
/// A block accesses memory and then releases a counter. In a later block, a thread that is ordered
/// after a wait for that counter is ordered after the access. A wait for fewer releases than there
/// were acquires none of them, since it might have ended after others. An acquiring block does not
/// pass on what it acquired: each reader acquires from the writers.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <utility>
#include <vector>

#include "emulator/clocks.hpp"

namespace emulator {

class Releases {
 public:
  void begin_launch() { counters_.clear(); }
  void begin_block() { acquired_.clear(); }

  /// Block `serial` releases what its thread did and saw.
  void release(const void* counter, std::uint32_t serial, Vector seen) {
    counters_[counter].push_back({serial, std::move(seen)});
  }
  /// A thread of the running block has waited for `count` releases, as of its epoch.
  void acquire(const void* counter, std::uint32_t count, Epoch at) {
    const std::vector<Release>& all = counters_[counter];
    if (count >= all.size()) acquired_.push_back({at, &all, all.size()});
  }
  /// Returns true if a thread of the running block is ordered after an access of block `serial`.
  bool ordered(const Clocks& clocks, Actor who, std::uint32_t serial, Epoch e) const {
    return std::any_of(acquired_.begin(), acquired_.end(), [&](const Acquired& a) {
      if (!clocks.sees(who, a.at)) return false;
      const auto end = a.all->begin() + static_cast<std::ptrdiff_t>(a.count);
      const auto first =
          std::lower_bound(a.all->begin(), end, serial,
                           [](const Release& r, std::uint32_t s) { return r.serial < s; });
      return std::any_of(first, end, [&](const Release& r) {
        return r.serial == serial && r.seen[e.actor] >= e.clock;
      });
    });
  }

 private:
  struct Release {
    std::uint32_t serial;
    Vector seen;
  };
  struct Acquired {
    Epoch at;
    const std::vector<Release>* all;  ///< by serial
    std::size_t count;                ///< of all
  };

  std::unordered_map<const void*, std::vector<Release>> counters_;
  std::vector<Acquired> acquired_;
};

}  // namespace emulator

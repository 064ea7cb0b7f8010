#pragma once

/// \file
/// Barriers in shared memory that count arrivals and bytes (ptx/mbarrier.cuh).
///
/// A barrier is an actor of the clocks: what tensor copies write in its phase p has the epoch p + 1
/// of that actor, and whoever has waited for the phase sees that epoch and all that those who
/// arrived had done before. Its 8 bytes count as bytes that are being written for good, so that no
/// other access of them passes.

#include <cstdint>
#include <map>
#include <string>

#include "emulator/async_phase.hpp"
#include "emulator/block.hpp"

namespace emulator {

struct CountingBarrier {
  CountingBarrier(std::int64_t arrivals, Epoch by, Actor self, Vector nothing)
      : phase(arrivals), made(by), actor(self), arrived(nothing), ended(std::move(nothing)) {}

  /// The epoch of what is written in the phase under way.
  Epoch epoch() const { return {actor, static_cast<Clock>(phase.ended() + 1)}; }

  Phase phase;
  Epoch made;              ///< by fence_mbarrier_init, then of that call
  bool published = false;  ///< by the thread that made it
  Actor actor;
  Vector arrived;  ///< what those who have arrived had done
  Vector ended;    ///< the same when the latest phase ended
  WaitList waiting;
};

/// The barriers of a block.
class CountingBarriers {
 public:
  explicit CountingBarriers(Block& block) : block_(block) {}

  void make(std::uint32_t address, std::uint32_t arrivals);
  void publish();
  void arrive(std::uint32_t address, std::int64_t bytes, const char* what);
  void wait(std::uint32_t address, std::uint32_t parity);

  /// The barrier that a tensor load of the running thread names.
  CountingBarrier& of_copy(std::uint32_t address) { return find(address, true, "tensor load"); }
  /// Bytes of a tensor load have come.
  void complete(CountingBarrier& barrier, std::int64_t bytes);

 private:
  CountingBarrier& find(std::uint32_t address, bool by_copy, const char* what);
  /// After a change of the counts, with what was wrong about it.
  void settle(CountingBarrier& barrier, std::uint64_t ended, const std::string& complaint);

  Block& block_;
  std::map<std::uint32_t, CountingBarrier> barriers_;
};

// -------------------------------------------------------------------------------------------------

inline void CountingBarriers::make(std::uint32_t address, std::uint32_t arrivals) {
  const Actor who = block_.who();
  block_.shared.check(who, address, 8, 8, "mbarrier.init");
  block_.shared.begin_write(who, address, 8, Proxy::kGeneric, "mbarrier.init");
  if (arrivals < 1 || arrivals > Phase::kLimit) {
    block_.fail(Kind::kBytes, "mbarrier.init with " + std::to_string(arrivals) + " arrivals");
  }
  barriers_.emplace(address, CountingBarrier(arrivals, block_.clocks.now(who),
                                             block_.clocks.add_actor(), block_.clocks.nothing()));
}

inline void CountingBarriers::publish() {
  for (auto& [address, barrier] : barriers_) {
    if (barrier.made.actor != block_.who() || barrier.published) continue;
    barrier.published = true;
    barrier.made = block_.clocks.now(block_.who());
  }
}

inline CountingBarrier& CountingBarriers::find(std::uint32_t address, bool by_copy,
                                               const char* what) {
  const auto found = barriers_.find(address);
  const std::string place = std::string(what) + " at shared address " + std::to_string(address);
  if (found == barriers_.end()) block_.fail(Kind::kUninitialized, place + ": no barrier there");
  CountingBarrier& barrier = found->second;
  const bool own = barrier.made.actor == block_.who();
  if (!(barrier.published || (own && !by_copy)) ||
      !block_.clocks.sees(block_.who(), barrier.made)) {
    block_.fail(Kind::kRace, place + ": the barrier is not published yet by thread " +
                                 std::to_string(barrier.made.actor) + " that made it");
  }
  return barrier;
}

inline void CountingBarriers::settle(CountingBarrier& barrier, std::uint64_t ended,
                                     const std::string& complaint) {
  if (!complaint.empty()) block_.fail(Kind::kBytes, "barrier: " + complaint);
  if (barrier.phase.ended() == ended) return;
  barrier.ended = barrier.arrived;
  barrier.ended[barrier.actor] = static_cast<Clock>(barrier.phase.ended());
  barrier.waiting.wake(block_);
}

inline void CountingBarriers::arrive(std::uint32_t address, std::int64_t bytes, const char* what) {
  block_.shared.check(block_.who(), address, 8, 8, what);
  CountingBarrier& barrier = find(address, false, what);
  const std::uint64_t ended = barrier.phase.ended();
  block_.clocks.release(block_.who(), barrier.arrived);
  std::string complaint = barrier.phase.expect(bytes);
  if (complaint.empty()) complaint = barrier.phase.arrive();
  settle(barrier, ended, complaint);
  block_.pause();
}

inline void CountingBarriers::complete(CountingBarrier& barrier, std::int64_t bytes) {
  const std::uint64_t ended = barrier.phase.ended();
  settle(barrier, ended, barrier.phase.complete(bytes));
}

inline void CountingBarriers::wait(std::uint32_t address, std::uint32_t parity) {
  block_.shared.check(block_.who(), address, 8, 8, "mbarrier wait");
  if (parity > 1) block_.fail(Kind::kBytes, "mbarrier wait for parity " + std::to_string(parity));
  CountingBarrier& barrier = find(address, false, "mbarrier wait");
  barrier.waiting.wait(
      block_, [&] { return barrier.phase.passes(parity); },
      parity == 0 ? "mbarrier wait, parity 0, at shared address"
                  : "mbarrier wait, parity 1, at shared address",
      address);
  block_.clocks.acquire(block_.who(), barrier.ended);
}

}  // namespace emulator

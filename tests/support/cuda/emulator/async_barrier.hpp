#pragma once

/// \file
/// Barriers in shared memory that count arrivals and bytes (ptx/mbarrier.cuh).
///
/// A barrier is an actor of the clocks. Writes of tensor copies in its phase p have the epoch p + 1
/// of that actor. A thread that has waited for the phase sees that epoch, and all that the arrived
/// threads had done before. The barrier's 8 bytes are permanently marked as being written, so that
/// every other access to them is a fault.

#include <cstdint>
#include <map>
#include <string>

#include "emulator/async_phase.hpp"
#include "emulator/block.hpp"

namespace emulator {

struct CountingBarrier {
  CountingBarrier(std::int64_t arrivals, Epoch by, Actor self, Vector nothing)
      : phase(arrivals), made(by), actor(self), arrived(nothing), ended(std::move(nothing)) {}

  /// Epoch of writes in the current phase.
  Epoch epoch() const { return {actor, static_cast<Clock>(phase.ended() + 1)}; }

  Phase phase;
  Epoch made;              ///< of mbarrier_init, then of fence_mbarrier_init
  bool published = false;  ///< by the thread that initialised it
  Actor actor;
  Vector arrived;  ///< clocks of the threads that have arrived
  Vector ended;    ///< these clocks when the latest phase ended
  WaitList waiting;
};

/// Barriers of a block.
class CountingBarriers {
 public:
  explicit CountingBarriers(Block& block) : block_(block) {}

  void make(std::uint32_t address, std::uint32_t arrivals);
  void publish();
  void arrive(std::uint32_t address, std::int64_t bytes, const char* what);
  void wait(std::uint32_t address, std::uint32_t parity);

  /// Returns the barrier of a tensor load of the running thread.
  CountingBarrier& of_copy(std::uint32_t address) { return find(address, true, "tensor load"); }
  /// Counts bytes of a tensor load that have arrived.
  void complete(CountingBarrier& barrier, std::int64_t bytes);

 private:
  CountingBarrier& find(std::uint32_t address, bool by_copy, const char* what);
  /// Ends the phase if it is complete. Fails if `complaint` is not empty.
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
  const bool same_actor = barrier.made.actor == block_.who();
  if (!(barrier.published || (same_actor && !by_copy)) ||
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

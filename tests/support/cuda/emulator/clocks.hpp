#pragma once

/// \file
/// Vector clocks: they tell which accesses a thread is ordered after.
///
/// Actors are the threads of a block, 0 to threads - 1, and the actors of add_actor, which access
/// memory on their own. An actor's clock starts at 1 and grows at each release. An access at clock
/// c happens before every release that publishes c or more. A thread sees an epoch (actor, clock)
/// when it has acquired at least that clock of the actor.
///
/// Threads share one vector after a barrier. A barrier of n threads with u different vectors of
/// length a costs n + u a.
///
/// To extend: represent an asynchronous writer that barriers announce by an added actor. Write with
/// an epoch of that actor, and set the same clock in the vector that waiting threads acquire.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <stdexcept>
#include <utility>
#include <vector>

namespace emulator {

using Actor = std::uint16_t;
using Clock = std::uint32_t;

struct Epoch {
  Actor actor;
  Clock clock;

  bool operator==(const Epoch&) const = default;
};

/// One clock per actor.
using Vector = std::vector<Clock>;

class Clocks {
 public:
  static constexpr int kMaxAdded = 384;

  explicit Clocks(int threads)
      : threads_(threads),
        actors_(static_cast<std::size_t>(threads)),
        own_(static_cast<std::size_t>(threads), 1),
        seen_(static_cast<std::size_t>(threads),
              std::make_shared<const Vector>(static_cast<std::size_t>(threads + kMaxAdded))),
        fences_(static_cast<std::size_t>(threads)) {}

  int threads() const { return threads_; }

  /// Adds an actor that is not a thread.
  Actor add_actor() {
    const auto limit = static_cast<std::size_t>(threads_ + kMaxAdded);
    if (actors_ == limit) throw std::length_error("emulator: too many actors");
    return static_cast<Actor>(actors_++);
  }

  /// Returns zeros for all actors.
  Vector nothing() const { return Vector(static_cast<std::size_t>(threads_ + kMaxAdded)); }

  Epoch now(Actor thread) const { return {thread, own_[thread]}; }

  bool sees(Actor thread, Epoch e) const {
    return e.actor == thread || e.clock <= (*seen_[thread])[e.actor];
  }

  /// Returns true if `thread` sees the clocks list[t] of all threads t.
  bool sees_all(Actor thread, const Vector& list) const {
    const Vector& seen = *seen_[thread];
    for (std::size_t t = 0; t < list.size(); ++t) {
      if (list[t] > seen[t] && t != thread) return false;
    }
    return true;
  }

  /// Merges what the thread did and saw into `into`.
  void release(Actor thread, Vector& into) {
    merge(into, *seen_[thread]);
    into[thread] = std::max(into[thread], own_[thread]++);
  }

  /// Orders the thread after everything in `from`. Threads that saw the same before, and acquire
  /// the same one after another, share the result.
  void acquire(Actor thread, const Vector& from) {
    auto& seen = seen_[thread];
    if (seen != latest_.before || from != latest_.from) {
      latest_ = {seen, from, seen};
      if (!contains(*seen, from)) {
        const auto merged = std::make_shared<Vector>(*seen);
        merge(*merged, from);
        latest_.after = merged;
      }
    }
    seen = latest_.after;
  }

  /// Synchronises the threads: each is ordered after everything that all did before.
  template <class Threads>
  void join(const Threads& threads) {
    const Vector* last = seen_[*std::begin(threads)].get();
    const auto joint = std::make_shared<Vector>(*last);
    for (const Actor t : threads) {
      if (seen_[t].get() != last) merge(*joint, *(last = seen_[t].get()));
      (*joint)[t] = std::max((*joint)[t], own_[t]++);
    }
    const Shared seen = joint;
    for (const Actor t : threads) seen_[t] = seen;
  }

  /// Records fence_proxy_async of a thread.
  void fence(Actor thread) { fences_[thread].push_back(own_[thread]++); }

  /// Returns true if the thread of `e` has fenced after `e`, and `thread` is ordered after that
  /// fence.
  bool fenced(Actor thread, Epoch e) const {
    const Vector& fences = fences_[e.actor];
    const auto fence = std::lower_bound(fences.begin(), fences.end(), e.clock);
    return fence != fences.end() && sees(thread, {e.actor, *fence});
  }

 private:
  using Shared = std::shared_ptr<const Vector>;
  struct Acquired {
    Shared before;
    Vector from;
    Shared after;
  };

  void merge(Vector& into, const Vector& from) const {
    for (std::size_t i = 0; i < actors_; ++i) into[i] = std::max(into[i], from[i]);
  }
  bool contains(const Vector& all, const Vector& part) const {
    bool inside = true;
    for (std::size_t i = 0; i < actors_; ++i) inside &= part[i] <= all[i];
    return inside;
  }

  int threads_;
  std::size_t actors_;
  Vector own_;
  std::vector<Shared> seen_;
  Acquired latest_;
  std::vector<Vector> fences_;  ///< clocks of each thread's fences, ascending
};

}  // namespace emulator

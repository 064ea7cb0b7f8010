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
};

/// One clock per actor.
using Vector = std::vector<Clock>;

class Clocks {
 public:
  static constexpr int kMaxAdded = 384;

  explicit Clocks(int threads)
      : threads_(threads),
        actors_(threads),
        own_(static_cast<std::size_t>(threads), 1),
        seen_(static_cast<std::size_t>(threads),
              std::make_shared<const Vector>(static_cast<std::size_t>(threads + kMaxAdded))),
        fences_(static_cast<std::size_t>(threads)) {}

  int threads() const { return threads_; }

  /// Adds an actor that is not a thread.
  Actor add_actor() {
    if (actors_ == threads_ + kMaxAdded) throw std::length_error("emulator: too many actors");
    return static_cast<Actor>(actors_++);
  }

  /// Returns zeros for all actors.
  Vector nothing() const { return Vector(static_cast<std::size_t>(threads_ + kMaxAdded)); }

  Epoch now(Actor thread) const { return {thread, own_[thread]}; }

  bool sees(Actor thread, Epoch e) const {
    return e.actor == thread || e.clock <= (*seen_[thread])[e.actor];
  }

  /// Merges what the thread did and saw into `into`.
  void release(Actor thread, Vector& into) {
    merge(into, *seen_[thread]);
    into[thread] = std::max(into[thread], own_[thread]++);
  }

  /// Orders the thread after everything in `from`.
  void acquire(Actor thread, const Vector& from) {
    if (contains(*seen_[thread], from)) return;
    auto seen = std::make_shared<Vector>(*seen_[thread]);
    merge(*seen, from);
    seen_[thread] = std::move(seen);
  }

  /// Synchronises the threads: each is ordered after everything that all did before, and after
  /// `others`.
  template <class Threads>
  void join(const Threads& threads, const Vector* others = nullptr) {
    const auto joint = std::make_shared<Vector>(others != nullptr ? *others : nothing());
    const Vector* last = nullptr;
    for (const Actor t : threads) {
      if (seen_[t].get() != last) merge(*joint, *(last = seen_[t].get()));
      (*joint)[t] = std::max((*joint)[t], own_[t]++);
    }
    const std::shared_ptr<const Vector> seen = joint;
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
  static void merge(Vector& into, const Vector& from) {
    for (std::size_t i = 0; i < into.size(); ++i) into[i] = std::max(into[i], from[i]);
  }
  static bool contains(const Vector& all, const Vector& part) {
    bool inside = true;
    for (std::size_t i = 0; i < all.size(); ++i) inside &= part[i] <= all[i];
    return inside;
  }

  int threads_, actors_;
  Vector own_;
  std::vector<std::shared_ptr<const Vector>> seen_;
  std::vector<Vector> fences_;  ///< clocks of each thread's fences, ascending
};

}  // namespace emulator

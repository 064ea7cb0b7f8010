#pragma once

/// \file
/// Vector clocks: which accesses of which actor a thread is ordered after.
///
/// Actors are the threads of a block, 0 to threads - 1, and whatever add_actor adds: things that
/// access memory on their own. An actor's clock is 1 at first and goes up at each release, so that
/// an access at clock c happens before every release that publishes c or more. A thread sees an
/// epoch (actor, clock) when it has acquired at least that clock of the actor.
///
/// Threads that met share one vector: a barrier of n threads with u different vectors of length a
/// costs n + u a.
///
/// Blocks of a cluster are ordered among each other as threads of one block are, but see what
/// others stored to their memory only after release_cluster and acquire_cluster: sees_stored.
///
/// To extend: an asynchronous writer that barriers announce is an added actor. Write with an epoch
/// of that actor, set the same clock in the vector that waiting threads acquire.

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

/// A clock for each actor.
using Vector = std::vector<Clock>;

class Clocks {
 public:
  static constexpr int kMaxAdded = 384;

  /// \param of_block  threads of each block
  explicit Clocks(int threads, int of_block)
      : threads_(threads),
        of_block_(of_block),
        actors_(threads),
        own_(static_cast<std::size_t>(threads), 1),
        seen_(static_cast<std::size_t>(threads),
              std::make_shared<const Vector>(static_cast<std::size_t>(threads + kMaxAdded))),
        fences_(static_cast<std::size_t>(threads)),
        cluster_fences_(fences_.size()),
        stored_(threads > of_block ? fences_.size() : 0, Vector(fences_.size())) {}

  int threads() const { return threads_; }

  /// An actor that is no thread.
  Actor add_actor() {
    if (actors_ == threads_ + kMaxAdded) throw std::length_error("emulator: too many actors");
    return static_cast<Actor>(actors_++);
  }

  /// Zeros for all actors.
  Vector nothing() const { return Vector(static_cast<std::size_t>(threads_ + kMaxAdded)); }

  Epoch now(Actor thread) const { return {thread, own_[thread]}; }

  bool sees(Actor thread, Epoch e) const {
    return e.actor == thread || e.clock <= (*seen_[thread])[e.actor];
  }

  /// What the thread did and saw so far becomes part of `into`.
  void release(Actor thread, Vector& into) {
    merge(into, *seen_[thread]);
    into[thread] = std::max(into[thread], own_[thread]++);
  }

  /// The thread is ordered after all that `from` contains.
  void acquire(Actor thread, const Vector& from) {
    if (contains(*seen_[thread], from)) return;
    auto seen = std::make_shared<Vector>(*seen_[thread]);
    merge(*seen, from);
    seen_[thread] = std::move(seen);
  }

  /// Whether threads are of the same block; actors that are no threads are of all.
  bool together(Actor thread, Actor other) const {
    return stored_.empty() || other >= threads_ || thread / of_block_ == other / of_block_;
  }
  /// Whether `thread` sees what a thread of another block made at `e` in memory of the cluster.
  bool sees_stored(Actor thread, Epoch e) const { return e.clock <= stored_[thread][e.actor]; }
  /// What the thread did, and saw of its block, can be seen by other blocks; before release.
  void release_cluster(Actor thread, Vector& into) const {
    into.resize(static_cast<std::size_t>(threads_));
    const int first = thread / of_block_ * of_block_;
    for (int t = first; t < first + of_block_; ++t) {
      const auto at = static_cast<std::size_t>(t);
      into[at] = std::max(into[at], t == thread ? own_[at] : (*seen_[thread])[at]);
    }
  }
  void acquire_cluster(Actor thread, const Vector& from) {
    if (!from.empty() && !stored_.empty()) {
      for (std::size_t i = 0; i < from.size(); ++i) {
        stored_[thread][i] = std::max(stored_[thread][i], from[i]);
      }
    }
  }

  /// The threads meet: each is ordered after what all did before, and after `others`.
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

  /// fence_proxy_async of a thread, or that of the cluster.
  void fence(Actor thread, bool cluster) {
    if (cluster) cluster_fences_[thread].push_back(own_[thread]);
    fences_[thread].push_back(own_[thread]++);
  }

  /// Whether the thread that made `e` has fenced after it, and `thread` is ordered after that
  /// fence.
  bool fenced(Actor thread, Epoch e) const {
    const Vector& fences = (together(thread, e.actor) ? fences_ : cluster_fences_)[e.actor];
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

  int threads_, of_block_, actors_;
  Vector own_;
  std::vector<std::shared_ptr<const Vector>> seen_;
  std::vector<Vector> fences_;  ///< clocks of each thread's fences, ascending
  std::vector<Vector> cluster_fences_;
  std::vector<Vector> stored_;  ///< what threads see of other blocks, where there are some
};

}  // namespace emulator

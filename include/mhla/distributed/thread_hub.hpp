#pragma once

/// \file
/// State that the ranks of one process share (thread_ranks.hpp).

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "mhla/core/arch.hpp"
#include "mhla/core/error.hpp"
#include "mhla/distributed/communicator.hpp"

namespace mhla {
inline namespace MHLA_TARGET {
namespace distributed {
namespace detail {

/// One rank's part of a call.
struct ThreadPart {
  std::span<const std::byte> record{};
  std::vector<SharedRows> arrays{};
  std::vector<PeerRows> sends{};
};

/// Progress of a rank in a call.
enum class Progress { kNone, kBegun, kCopying, kCopied };

/// A call of all ranks. Progress is guarded by the hub; parts are read once all have begun.
struct ThreadCall {
  std::vector<ThreadPart> parts;   // by rank
  std::vector<Progress> progress;  // by rank

  bool all(Progress least) const {
    return std::all_of(progress.begin(), progress.end(),
                       [least](Progress p) { return p >= least; });
  }
};

/// Brings together the calls of all ranks.
class ThreadHub {
 public:
  ThreadHub(Index ranks, double timeout) : ranks_(ranks), timeout_(timeout) {}

  Index size() const { return ranks_; }
  double timeout() const { return timeout_; }

  /// Begins call `number` of a rank.
  std::shared_ptr<ThreadCall> begin(Index rank, std::size_t number, ThreadPart part);
  /// Runs f(), which copies, once all ranks have begun the call. f() returns "", or the reason why
  /// no call can succeed. Returns true if f ran; with `wait`, waits for the ranks first.
  template <class F>
  bool copy(ThreadCall& call, Index rank, bool wait, F&& f);
  /// True if all ranks have copied; with `wait`, returns when they have.
  bool all_copied(const ThreadCall& call, bool wait) {
    std::unique_lock lock(mutex_);
    return reached(lock, call, Progress::kCopied, wait);
  }
  /// Makes every later call fail, because a rank has ended. The first reason stays.
  void fail(Index rank) noexcept;

 private:
  /// True if all ranks have reached `least`; with `wait`, returns when they have. Throws a failure
  /// only once no rank copies, since then memory of the caller may end.
  bool reached(std::unique_lock<std::mutex>& lock, const ThreadCall& call, Progress least,
               bool wait);
  void fail_locked(const std::string& why) {
    if (failure_.empty()) failure_ = why;
    changed_.notify_all();
  }
  [[noreturn]] void refuse() const { throw communication_error("mhla::distributed: " + failure_); }

  Index ranks_;
  double timeout_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::size_t, std::shared_ptr<ThreadCall>> open_;  // that not all ranks have begun
  std::string failure_;
};

// ------------------------------------------------------------------------------------------------

inline std::shared_ptr<ThreadCall> ThreadHub::begin(Index rank, std::size_t number,
                                                    ThreadPart part) {
  const std::lock_guard lock(mutex_);
  if (!failure_.empty()) refuse();
  std::shared_ptr<ThreadCall>& open = open_[number];
  const auto r = static_cast<std::size_t>(rank), ranks = static_cast<std::size_t>(ranks_);
  if (!open) {
    open = std::make_shared<ThreadCall>(
        ThreadCall{std::vector<ThreadPart>(ranks), std::vector<Progress>(ranks, Progress::kNone)});
  }
  std::shared_ptr<ThreadCall> call = open;
  call->parts[r] = std::move(part);
  call->progress[r] = Progress::kBegun;
  if (call->all(Progress::kBegun)) open_.erase(number);
  changed_.notify_all();
  return call;
}

inline bool ThreadHub::reached(std::unique_lock<std::mutex>& lock, const ThreadCall& call,
                               Progress least, bool wait) {
  const auto ready = [&] { return call.all(least) || !failure_.empty(); };
  if (wait && !changed_.wait_for(lock, std::chrono::duration<double>(timeout_), ready)) {
    std::string missing;
    for (std::size_t r = 0; r < call.progress.size(); ++r) {
      if (call.progress[r] < least) missing += (missing.empty() ? "" : ", ") + std::to_string(r);
    }
    fail_locked("no answer within " + std::to_string(timeout_) + " s from rank " + missing);
  }
  if (failure_.empty() || call.all(Progress::kCopied)) return call.all(least);
  changed_.wait(lock, [&] {
    return std::count(call.progress.begin(), call.progress.end(), Progress::kCopying) == 0;
  });
  refuse();
}

template <class F>
bool ThreadHub::copy(ThreadCall& call, Index rank, bool wait, F&& f) {
  std::unique_lock lock(mutex_);
  if (!reached(lock, call, Progress::kBegun, wait)) return false;
  Progress& progress = call.progress[static_cast<std::size_t>(rank)];
  progress = Progress::kCopying;
  lock.unlock();
  std::string mistake;
  try {
    mistake = f();
  } catch (const std::exception& e) {
    mistake = e.what();
  }
  lock.lock();
  progress = mistake.empty() ? Progress::kCopied : Progress::kBegun;
  if (!mistake.empty()) fail_locked(mistake);
  changed_.notify_all();
  return true;
}

inline void ThreadHub::fail(Index rank) noexcept {
  const std::lock_guard lock(mutex_);
  try {
    fail_locked("rank " + std::to_string(rank) + " ended with an exception");
  } catch (const std::bad_alloc&) {
    fail_locked("out of memory");  // short enough to need none
  }
}

}  // namespace detail
}  // namespace distributed
}  // namespace MHLA_TARGET
}  // namespace mhla

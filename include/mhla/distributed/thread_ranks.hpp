#pragma once

/// \file
/// Ranks that are threads of one process, to test programs that run on many machines:
///
///     run_ranks(4, [&](ThreadRank& rank) { ... });

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <exception>
#include <list>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "mhla/core/arch.hpp"
#include "mhla/core/error.hpp"
#include "mhla/distributed/communicator.hpp"
#include "mhla/distributed/thread_hub.hpp"

namespace mhla {
inline namespace MHLA_TARGET {
namespace distributed {
namespace detail {

/// Copies the rows it receives from the memory of those that send them.
class ThreadTransfer {
 public:
  ThreadTransfer(ThreadHub& hub, Index rank, std::shared_ptr<ThreadCall> call,
                 std::vector<PeerRows> receives)
      : hub_(&hub), rank_(rank), call_(std::move(call)), receives_(std::move(receives)) {}
  ThreadTransfer(ThreadTransfer&&) = default;
  ThreadTransfer& operator=(ThreadTransfer&& other) noexcept {
    std::swap(hub_, other.hub_);
    std::swap(rank_, other.rank_);
    std::swap(call_, other.call_);
    std::swap(receives_, other.receives_);
    std::swap(copied_, other.copied_);
    return *this;
  }
  ~ThreadTransfer() {
    try {
      wait();
    } catch (const std::exception&) {  // the next call of the rank throws a communication_error
    }
  }

  bool done() { return advance(false); }
  void wait() { advance(true); }

 private:
  bool advance(bool wait);
  std::string copy() const;

  ThreadHub* hub_;
  Index rank_;
  std::shared_ptr<ThreadCall> call_;  // null once moved from, or done
  std::vector<PeerRows> receives_;
  bool copied_ = false;
};
static_assert(Transfer<ThreadTransfer>);

/// A thread whose destructor joins it, like std::jthread, which libc++ 14 lacks.
struct JoinedThread : std::thread {
  using std::thread::thread;
  ~JoinedThread() { join(); }
};

}  // namespace detail

/// A rank that is a thread which run_ranks started, among size().
class ThreadRank {
 public:
  ThreadRank(detail::ThreadHub& hub, Index rank) : hub_(&hub), rank_(rank) {}

  Index rank() const { return rank_; }
  Index size() const { return hub_->size(); }
  double timeout() const { return hub_->timeout(); }

  void agree(std::span<const std::byte> record, std::span<std::byte> records);
  detail::ThreadTransfer all_gather(std::span<const SharedRows> arrays,
                                    std::span<const Index> first);
  detail::ThreadTransfer exchange(std::span<const SharedRows> arrays,
                                  std::span<const PeerRows> sends,
                                  std::span<const PeerRows> receives);

 private:
  detail::ThreadHub* hub_;
  Index rank_;
  std::size_t calls_ = 0;
};
static_assert(Communicator<ThreadRank>);

/// Calls f(rank) on `ranks` threads and returns when all have returned. If one throws, calls that
/// wait for it fail, and the first exception is rethrown.
/// \param timeout  seconds
/// \throws option_error unless ranks >= 1
template <class F>
void run_ranks(Index ranks, F&& f, double timeout = 30) {
  if (ranks < 1) {
    mhla::detail::fail_option("run_ranks", "ranks", "is " + std::to_string(ranks), "at least 1");
  }
  detail::ThreadHub hub(ranks, timeout);
  std::mutex mutex;
  std::exception_ptr failure;
  const auto run = [&](Index r) {
    try {
      ThreadRank rank(hub, r);
      f(rank);
    } catch (...) {
      {
        const std::lock_guard lock(mutex);
        if (!failure) failure = std::current_exception();
      }
      hub.fail(r);
    }
  };
  {
    std::list<detail::JoinedThread> threads;
    Index r = 0;
    try {
      for (; r < ranks; ++r) threads.emplace_back(run, r);
    } catch (...) {
      hub.fail(r);  // the started ranks do not wait for it
      throw;
    }
  }
  if (failure) std::rethrow_exception(failure);
}

// ------------------------------------------------------------------------------------------------

namespace detail {

inline bool ThreadTransfer::advance(bool wait) {
  if (!call_) return true;
  copied_ = copied_ || hub_->copy(*call_, rank_, wait, [this] { return copy(); });
  if (!copied_ || !hub_->all_copied(*call_, wait)) return false;
  call_.reset();
  return true;
}

/// Returns "", or the reason of a failure: a peer must send what this rank receives, or other
/// transports would wait for ever.
inline std::string ThreadTransfer::copy() const {
  const auto& arrays = call_->parts[static_cast<std::size_t>(rank_)].arrays;
  std::vector<std::size_t> sent(call_->parts.size());  // sends of each peer that came here
  for (const PeerRows& rows : receives_) {
    const auto p = static_cast<std::size_t>(rows.peer);
    const ThreadPart& peer = call_->parts[p];
    std::size_t& next = sent[p];
    while (next < peer.sends.size() && peer.sends[next].peer != rank_) ++next;
    if (next == peer.sends.size() || peer.sends[next].begin != rows.begin ||
        peer.sends[next].end != rows.end || peer.arrays.size() != arrays.size()) {
      return "rank " + std::to_string(rank_) + " receives rows that rank " +
             std::to_string(rows.peer) + " does not send";
    }
    ++next;
    for (std::size_t i = 0; i < arrays.size(); ++i) {
      const auto copy_from = [&](Index row, std::size_t bytes) {
        if (bytes > 0) std::memcpy(arrays[i].row(row), peer.arrays[i].row(row), bytes);
      };
      if (arrays[i].padding == 0) {
        copy_from(rows.begin,
                  static_cast<std::size_t>(rows.end - rows.begin) * arrays[i].row_bytes);
        continue;
      }
      for (Index row = rows.begin; row < rows.end; ++row) copy_from(row, arrays[i].row_bytes);
    }
  }
  return "";
}

}  // namespace detail

inline void ThreadRank::agree(std::span<const std::byte> record, std::span<std::byte> records) {
  const auto call = hub_->begin(rank_, calls_++, {.record = record});
  hub_->copy(*call, rank_, true, [&] {
    for (std::size_t r = 0; r < call->parts.size(); ++r) {
      const auto part = call->parts[r].record;
      std::copy(part.begin(), part.end(), records.data() + r * record.size());
    }
    return "";
  });
  hub_->all_copied(*call, true);
}

inline detail::ThreadTransfer ThreadRank::exchange(std::span<const SharedRows> arrays,
                                                   std::span<const PeerRows> sends,
                                                   std::span<const PeerRows> receives) {
  // Allocated first: once the call has begun, peers may copy from the caller's memory.
  std::vector<PeerRows> rows(receives.begin(), receives.end());
  auto call = hub_->begin(
      rank_, calls_++,
      {.arrays = {arrays.begin(), arrays.end()}, .sends = {sends.begin(), sends.end()}});
  return {*hub_, rank_, std::move(call), std::move(rows)};
}

inline detail::ThreadTransfer ThreadRank::all_gather(std::span<const SharedRows> arrays,
                                                     std::span<const Index> first) {
  const GatherRows rows(rank_, first);
  return exchange(arrays, rows.sends, rows.receives);
}

}  // namespace distributed
}  // namespace MHLA_TARGET
}  // namespace mhla

#pragma once

/// \file
/// Executors of independent pieces of work: the calling thread, or a pool. Forms split only over
/// independent outputs, so results are bitwise the same for any executor and any number of workers.

#include <atomic>
#include <chrono>
#include <concepts>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "mhla/core/arch.hpp"
#include "mhla/core/error.hpp"
#include "mhla/core/floating_point.hpp"
#include "mhla/core/scalar.hpp"

namespace mhla {
inline namespace MHLA_TARGET {

namespace detail {
/// True for executors that give calls the floating-point environment of their caller.
template <class X>
inline constexpr bool kKeepsFloatingPoint = false;

/// A function of an index and a worker, by reference, so that executors are compiled once.
struct Task {
  template <class F>
  requires(!std::same_as<std::remove_cvref_t<F>, Task>)
      Task(F&& f)  // NOLINT(google-explicit-constructor)
      : function(const_cast<void*>(static_cast<const void*>(std::addressof(f)))),
        call(call_of<std::remove_reference_t<F>>) {}

  void operator()(Index index, Index worker) const { call(function, index, worker); }

  void* function;
  void (*call)(void* function, Index index, Index worker);

 private:
  template <class F>
  static void call_of(void* function, Index index, Index worker) {
    (*static_cast<F*>(function))(index, worker);
  }
};
}  // namespace detail

/// Runs f(index, worker) once for every index in [0, count), in any order, and returns when all
/// calls have ended. Laws: 0 <= worker < workers(). No two calls with the same worker run at the
/// same time. An exception stops no other call, and the first one is rethrown at the end. Forms and
/// layers give every call the floating-point environment of their caller, for any executor.
template <class X>
concept Executor = requires(std::remove_reference_t<X>& x, Index count, void (*f)(Index, Index)) {
  { x.workers() } -> std::convertible_to<Index>;
  x.for_each(count, f);
};

/// The calling thread, in order.
struct Sequential {
  constexpr Index workers() const { return 1; }

  void for_each(Index count, detail::Task task) const {
    std::exception_ptr failure;
    for (Index i = 0; i < count; ++i) {
      try {
        task.call(task.function, i, 0);
      } catch (...) {
        if (!failure) failure = std::current_exception();
      }
    }
    if (failure) std::rethrow_exception(failure);
  }
};
static_assert(Executor<Sequential>);
template <>
inline constexpr bool detail::kKeepsFloatingPoint<Sequential> = true;

/// `threads` workers: the calling thread and threads - 1 threads of the pool. Between calls, the
/// pool's threads poll for 100 us, yielding to other threads, and then sleep. A sleeping thread
/// takes 10 to 200 us to wake up, and a call waits for no thread that has not joined it.
/// Threads may share a pool, whose calls then run one after another. A nested call runs on the
/// thread that makes it, in order. Pools must not call each other in a circle. Workers have the
/// caller's floating-point environment (rounding mode, flush to zero) during a call.
class ThreadPool {
 public:
  /// \throws option_error unless threads >= 1, std::system_error if one cannot start.
  explicit ThreadPool(Index threads);
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;
  ~ThreadPool();

  Index workers() const { return static_cast<Index>(threads_.size()) + 1; }

  /// Allocates nothing.
  void for_each(Index count, detail::Task task);

 private:
  using Word = std::uint32_t;  // threads can sleep on an atomic of it
  static constexpr std::chrono::microseconds kAwake{100};

  // A round is a call of for_each. Bits of round_, from the lowest: workers may join, the number of
  // the pool's threads that joined, the number of the round, and stop.
  static constexpr Word kOpen = 1, kJoined = 2, kRound = 1 << 12, kStop = Word{1} << 31;
  static Word joined(Word round) { return round % kRound / kJoined; }
  static Word number(Word round) { return round / kRound; }
  /// The next round, without workers. Round numbers wrap after 2^19. A thread that sleeps through a
  /// whole cycle of rounds, which only rounds of one piece allow, mistakes the new round for its
  /// last.
  static Word next(Word round) { return (number(round) + 1) * kRound % kStop; }

  /// Ends the threads.
  void stop();
  void serve(Index worker);
  void work(Index worker);
  /// Returns the value of `word` once done(value).
  template <class Done>
  static Word await(const std::atomic<Word>& word, Done done);
  /// Returns the pool of this thread, or null.
  static const ThreadPool*& employer() {
    thread_local const ThreadPool* pool = nullptr;
    return pool;
  }

  std::vector<std::thread> threads_;
  std::mutex turn_;  // held by the caller of a round
  std::atomic<Word> round_{0};
  std::atomic<Word> finished_{0};  // joined threads that have finished
  // The task of the round, written before the round opens.
  const detail::Task* task_ = nullptr;
  Index count_ = 0;
  detail::FloatingPoint caller_;
  std::atomic<Index> next_{0};
  std::mutex failure_mutex_;
  std::exception_ptr failure_;
};

template <>
inline constexpr bool detail::kKeepsFloatingPoint<ThreadPool> = true;

/// Any executor, by reference, so that forms are compiled once for all executors. The executor must
/// outlive it. Cost: one indirect call per piece of work.
class ExecutorRef {
 public:
  ExecutorRef() = default;
  ExecutorRef(const Sequential& /*x*/) {}  // NOLINT(google-explicit-constructor)
  template <Executor X>
  requires(!std::same_as<std::remove_cvref_t<X>, ExecutorRef> &&
           !std::same_as<std::remove_cvref_t<X>, Sequential>)
      ExecutorRef(X&& x)  // NOLINT(google-explicit-constructor)
      : executor_(const_cast<void*>(static_cast<const void*>(std::addressof(x)))),
        workers_(workers_of<std::remove_reference_t<X>>),
        for_each_(for_each_of<std::remove_reference_t<X>>) {}

  /// True for the calling thread, in order.
  bool sequential() const { return executor_ == nullptr; }
  Index workers() const { return sequential() ? 1 : workers_(executor_); }

  void for_each(Index count, detail::Task task) const {
    if (sequential()) return Sequential{}.for_each(count, task);
    for_each_(executor_, count, task);
  }

 private:
  template <class X>
  static Index workers_of(void* executor) {
    return static_cast<Index>(static_cast<X*>(executor)->workers());
  }
  template <class X>
  static void for_each_of(void* executor, Index count, detail::Task task) {
    if constexpr (detail::kKeepsFloatingPoint<std::remove_const_t<X>>) {
      static_cast<X*>(executor)->for_each(count, task);
    } else {
      static_cast<X*>(executor)->for_each(count, TaskOfCaller{task});
    }
  }
  /// The task, in the floating-point environment of the thread that made this.
  struct TaskOfCaller {
    detail::Task task;
    std::thread::id thread = std::this_thread::get_id();
    detail::FloatingPoint caller{};

    void operator()(Index index, Index worker) const {
      if (std::this_thread::get_id() == thread) return task(index, worker);
      const detail::FloatingPointScope scope(caller);
      task(index, worker);
    }
  };

  void* executor_ = nullptr;  // null: the calling thread
  Index (*workers_)(void*) = nullptr;
  void (*for_each_)(void*, Index, detail::Task) = nullptr;
};
static_assert(Executor<ExecutorRef>);

// ------------------------------------------------------------------------------------------------

inline ThreadPool::ThreadPool(Index threads) {
  constexpr Index kMost = kRound / kJoined;
  if (threads < 1 || threads > kMost) {
    detail::fail_option("ThreadPool", "threads", "is " + std::to_string(threads),
                        "1 to " + std::to_string(kMost));
  }
  threads_.reserve(static_cast<std::size_t>(threads - 1));
  try {
    for (Index worker = 1; worker < threads; ++worker) {
      threads_.emplace_back([this, worker] { serve(worker); });
    }
  } catch (...) {
    stop();
    throw;
  }
}

inline ThreadPool::~ThreadPool() { stop(); }

inline void ThreadPool::stop() {
  round_ |= kStop;
  round_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

inline void ThreadPool::for_each(Index count, detail::Task task) {
  if (count <= 0) return;
  if (employer() == this) return Sequential{}.for_each(count, task);
  const std::lock_guard turn(turn_);
  task_ = &task;
  count_ = count;
  caller_ = {};
  next_ = 0;
  finished_ = 0;
  round_ = next(round_) + (count > 1 ? kOpen : 0);
  if (count > 1) round_.notify_all();
  const ThreadPool* const outer = std::exchange(employer(), this);
  work(0);
  employer() = outer;
  const Word helpers = joined(round_.fetch_and(~kOpen));
  await(finished_, [&](Word finished) { return finished == helpers; });
  if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
}

inline void ThreadPool::serve(Index worker) {
  employer() = this;
  Word served = 0;
  while (true) {
    Word round = await(round_, [&](Word now) { return number(now) != served; });
    served = number(round);
    if ((round & kStop) != 0) return;
    while ((round & kOpen) != 0 && number(round) == served) {
      if (!round_.compare_exchange_weak(round, round + kJoined)) continue;
      {
        const detail::FloatingPointScope scope(caller_);
        work(worker);
      }
      ++finished_;
      finished_.notify_one();
      break;
    }
  }
}

template <class Done>
ThreadPool::Word ThreadPool::await(const std::atomic<Word>& word, Done done) {
  using Clock = std::chrono::steady_clock;
  const auto sleep = Clock::now() + kAwake;
  while (true) {
    const Word value = word.load();
    if (done(value)) return value;
    if (Clock::now() < sleep) {
      std::this_thread::yield();
    } else {
      word.wait(value);
    }
  }
}

inline void ThreadPool::work(Index worker) {
  for (Index i = next_.fetch_add(1); i < count_; i = next_.fetch_add(1)) {
    try {
      task_->call(task_->function, i, worker);
    } catch (...) {
      const std::lock_guard lock(failure_mutex_);
      if (!failure_) failure_ = std::current_exception();
    }
  }
}

static_assert(Executor<ThreadPool>);

}  // namespace MHLA_TARGET
}  // namespace mhla

#include "mhla/core/executor.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#include "support/message_of.hpp"

namespace mhla {
namespace {

static_assert(Executor<Sequential> && Executor<ThreadPool>);
static_assert(!Executor<int>);
static_assert(!std::is_copy_constructible_v<ThreadPool> && !std::is_copy_assignable_v<ThreadPool>);

constexpr Index kThreads[] = {1, 2, 3, 8};
constexpr Index kCounts[] = {0, 1, 2, 7, 1000};

/// Counts what an executor's laws are about.
struct Witness {
  std::vector<std::atomic<int>> calls;    // of each index
  std::vector<std::atomic<int>> running;  // calls of each worker under way
  std::atomic<int> strays{0};             // indices or workers out of range, and overlaps

  Witness(Index count, Index workers)
      : calls(static_cast<std::size_t>(count)), running(static_cast<std::size_t>(workers)) {}

  void operator()(Index index, Index worker) {
    if (index < 0 || index >= std::ssize(calls) || worker < 0 || worker >= std::ssize(running)) {
      ++strays;
      return;
    }
    std::atomic<int>& mine = running[static_cast<std::size_t>(worker)];
    if (++mine != 1) ++strays;
    ++calls[static_cast<std::size_t>(index)];
    --mine;
  }
  bool each_index_once() const {
    for (const std::atomic<int>& n : calls) {
      if (n != 1) return false;
    }
    return true;
  }
};

template <class X>
void expect_laws(X& executor, Index count) {
  Witness witness(count, executor.workers());
  executor.for_each(count, [&](Index index, Index worker) { witness(index, worker); });
  EXPECT_TRUE(witness.each_index_once()) << count << " on " << executor.workers();
  EXPECT_EQ(witness.strays, 0) << count << " on " << executor.workers();
}

TEST(Sequential, RunsEveryIndexOnceInOrderOnWorkerZero) {
  const Sequential executor;
  EXPECT_EQ(executor.workers(), 1);
  for (const Index count : kCounts) {
    std::vector<Index> order;
    executor.for_each(count, [&](Index index, Index worker) {
      EXPECT_EQ(worker, 0);
      order.push_back(index);
    });
    ASSERT_EQ(std::ssize(order), count);
    for (Index i = 0; i < count; ++i) EXPECT_EQ(order[static_cast<std::size_t>(i)], i);
  }
}

TEST(Sequential, ThrowsWhatACallThrows) {
  const auto thrower = [](Index index, Index) {
    if (index == 3) throw std::runtime_error("call 3");
  };
  EXPECT_THROW(Sequential{}.for_each(7, thrower), std::runtime_error);
  EXPECT_NO_THROW(Sequential{}.for_each(3, thrower));
}

TEST(ThreadPool, RunsEveryIndexExactlyOnce) {
  for (const Index threads : kThreads) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.workers(), threads);
    for (const Index count : kCounts) expect_laws(pool, count);
  }
}

TEST(ThreadPool, ManyRoundsFollowEachOther) {
  ThreadPool pool(3);
  Index total = 0;
  std::atomic<Index> sum{0};
  for (Index round = 0; round < 2000; ++round) {
    const Index count = round % 5;
    pool.for_each(count, [&](Index index, Index) { sum += index + 1; });
    total += count * (count + 1) / 2;
    ASSERT_EQ(sum, total) << "round " << round;  // all calls of a round have ended by its end
  }
}

TEST(ThreadPool, MayBeDestroyedWithoutOrRightAfterACall) {
  for (const Index threads : kThreads) {
    const ThreadPool idle(threads);
    ThreadPool used(threads);
    expect_laws(used, 2 * threads);
  }
}

TEST(ThreadPool, ANegativeCountIsNothing) {
  ThreadPool pool(2);
  pool.for_each(-1, [](Index, Index) { FAIL(); });
}

TEST(ThreadPool, TakesTemporariesConstantsAndFunctionPointers) {
  static std::atomic<int> calls;
  calls = 0;
  ThreadPool pool(2);
  const auto constant = [](Index, Index) { ++calls; };
  pool.for_each(3, constant);
  pool.for_each(3, +constant);
  int own = 0;
  pool.for_each(1, [own](Index, Index) mutable { calls += ++own; });
  EXPECT_EQ(calls, 7);
}

TEST(ThreadPool, WorkersSeeWhatTheCallerWroteAndTheCallerWhatTheyWrote) {
  ThreadPool pool(3);
  std::vector<Index> values(64, 0);  // plain memory: for_each itself must order the accesses
  for (Index round = 0; round < 200; ++round) {
    pool.for_each(64, [&](Index index, Index) { ++values[static_cast<std::size_t>(index)]; });
    for (Index& value : values) {
      ASSERT_EQ(value, 2 * round + 1);
      ++value;
    }
  }
}

TEST(ThreadPool, AnExceptionReachesTheCallerAfterAllCallsHaveEnded) {
  for (const Index threads : kThreads) {
    ThreadPool pool(threads);
    Witness witness(100, threads);
    const auto call = [&] {
      pool.for_each(100, [&](Index index, Index worker) {
        witness(index, worker);
        if (index == 5) throw std::runtime_error("call 5");
      });
    };
    EXPECT_EQ(test::message_of<std::runtime_error>(call), "call 5");
    EXPECT_TRUE(witness.each_index_once());
    EXPECT_EQ(witness.strays, 0);
    expect_laws(pool, 100);
  }
}

TEST(ThreadPool, WaitsForTheSlowestCallEvenWhenTheCallersOwnThrows) {
  ThreadPool pool(2);
  for (const bool throws : {false, true}) {
    std::atomic<int> started{0}, slow_ones{0};
    const auto call = [&](Index, Index worker) {
      ++started;
      while (started < 2) std::this_thread::yield();  // both workers are inside a call now
      if (worker == 0 && throws) throw std::runtime_error("the caller's own");
      if (worker == 0) return;
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      ++slow_ones;
    };
    if (throws) {
      EXPECT_THROW(pool.for_each(2, call), std::runtime_error);
    } else {
      pool.for_each(2, call);
    }
    EXPECT_EQ(slow_ones, 1);
  }
}

TEST(ThreadPool, OfManyExceptionsOneArrivesAndNoneIsLeftBehind) {
  ThreadPool pool(3);
  for (int round = 0; round < 50; ++round) {
    EXPECT_THROW(pool.for_each(9, [](Index, Index) { throw std::runtime_error("each"); }),
                 std::runtime_error);
    EXPECT_NO_THROW(expect_laws(pool, 9));
  }
}

TEST(ThreadPool, RejectsLessThanOneThread) {
  for (const Index threads : {Index{0}, Index{-3}}) {
    EXPECT_EQ(test::message_of<option_error>([threads] { ThreadPool pool(threads); }),
              "mhla::ThreadPool: threads is " + std::to_string(threads) + ", expected at least 1");
  }
}

}  // namespace
}  // namespace mhla

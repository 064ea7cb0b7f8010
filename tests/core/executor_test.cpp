#include "mhla/core/executor.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <barrier>
#include <cfenv>
#include <chrono>
#include <limits>
#include <stdexcept>
#include <string>
#include <thread>
#include <type_traits>
#include <vector>

#ifdef __SSE2__
#include <xmmintrin.h>
#endif

#include "contract/executor.hpp"
#include "support/message_of.hpp"

namespace mhla {
namespace {

static_assert(!Executor<int> && !Executor<const ThreadPool>);
static_assert(!std::is_copy_constructible_v<ThreadPool> && !std::is_copy_assignable_v<ThreadPool>);

constexpr Index kThreads[] = {1, 2, 3, 8};

/// A user's executor: backwards, alternating between two workers.
struct Backwards {
  mutable Index rounds = 0;

  int workers() const { return 2; }
  void for_each(Index count, auto&& f) const {
    ++rounds;
    Sequential{}.for_each(count, [&](Index i, Index) { f(count - 1 - i, i % 2); });
  }
};

/// An executor that may be called only if it is not const.
struct Mutable {
  Index calls = 0;

  Index workers() { return 1; }
  void for_each(Index count, const auto& f) {
    Sequential{}.for_each(count, f);
    calls += count;
  }
};

TEST(Executors, LawsHold) {
  test::expect_executor_laws(Sequential{});
  test::expect_executor_laws(Backwards{});
  test::expect_executor_laws(Mutable{});
  test::expect_executor_laws(ExecutorRef());
  test::expect_executor_laws(ExecutorRef(Backwards{}));
  for (const Index threads : kThreads) {
    const ThreadPool idle(threads);  // ends without a call
    ThreadPool pool(threads);
    EXPECT_EQ(pool.workers(), threads);
    test::expect_executor_laws(pool);
    test::expect_executor_laws(ExecutorRef(pool));
  }
}

/// Returns the indices of a call in the order in which they ran.
std::vector<Index> order_of(const auto& executor, Index count) {
  std::vector<Index> order;
  executor.for_each(count, [&](Index index, Index) { order.push_back(index); });
  return order;
}

TEST(Sequential, RunsInOrderAndThrowsTheFirstException) {
  EXPECT_EQ(order_of(Sequential{}, 4), (std::vector<Index>{0, 1, 2, 3}));
  const auto thrower = [](Index index, Index) {
    if (index > 2) throw std::runtime_error("call " + std::to_string(index));
  };
  EXPECT_EQ(test::message_of<std::runtime_error>([&] { Sequential{}.for_each(7, thrower); }),
            "call 3");
}

TEST(ExecutorRef, RunsTheExecutorItWasMadeOf) {
  const Backwards constant;
  Mutable counting;
  const ExecutorRef backwards = constant, forwards = counting, sequential;
  EXPECT_EQ(order_of(backwards, 3), (std::vector<Index>{2, 1, 0}));
  EXPECT_EQ(constant.rounds, 1);
  EXPECT_EQ(order_of(forwards, 3), (std::vector<Index>{0, 1, 2}));
  EXPECT_EQ(counting.calls, 3);
  EXPECT_EQ(backwards.workers(), 2);
  EXPECT_EQ(forwards.workers(), 1);
  EXPECT_EQ(sequential.workers(), 1);
  EXPECT_EQ(order_of(sequential, 3), (std::vector<Index>{0, 1, 2}));
  // A copy does not need the original, and may change what it refers to.
  ExecutorRef copy;
  {
    const ExecutorRef original = constant;
    copy = original;
  }
  EXPECT_EQ(order_of(copy, 2), (std::vector<Index>{1, 0}));
  EXPECT_EQ(constant.rounds, 2);
  // An argument may refer to a temporary, which lives as long as the call.
  const auto last_of = [](const ExecutorRef& executor) { return order_of(executor, 3).back(); };
  EXPECT_EQ(last_of(Backwards{}), 0);
  EXPECT_EQ(last_of(Sequential{}), 2);
}

TEST(Executors, TakeTemporariesConstantsAndFunctionPointers) {
  static std::atomic<int> calls;
  ThreadPool pool(2);
  const auto check = [](auto& executor) {
    calls = 0;
    const auto constant = [](Index, Index) { ++calls; };
    executor.for_each(3, constant);
    executor.for_each(3, +constant);
    int count = 0;
    executor.for_each(1, [count](Index, Index) mutable { calls += ++count; });
    executor.for_each(-1, [](Index, Index) { FAIL() << "a negative count is nothing"; });
    EXPECT_EQ(calls, 7);
  };
  const ExecutorRef ref = pool;
  check(pool);
  check(ref);
}

/// A user's executor, whose threads do not take over their caller's floating-point environment.
struct DefaultEnvironment {
  ThreadPool& pool;

  Index workers() const { return pool.workers(); }
  void for_each(Index count, auto&& f) const {
    pool.for_each(count, [&](Index index, Index worker) {
      if (worker == 0) return f(index, worker);
      std::fesetenv(FE_DFL_ENV);
      f(index, worker);
      EXPECT_EQ(std::fegetround(), FE_TONEAREST);
    });
  }
};

bool tiny_numbers_are_zero() {
  volatile float least = std::numeric_limits<float>::min();
  return least / 2 == 0;
}

/// Expects that all workers round, and treat tiny numbers, like the calling thread.
void expect_environment_of_the_caller(auto&& executor) {
  const int rounding = std::fegetround();
  const bool flushes = tiny_numbers_are_zero();
  const Index workers = executor.workers();
  std::atomic<Index> started{0}, alike{0};
  executor.for_each(workers, [&](Index, Index) {
    ++started;
    while (started < workers) std::this_thread::yield();  // every worker has a call
    if (std::fegetround() == rounding && tiny_numbers_are_zero() == flushes) ++alike;
  });
  EXPECT_EQ(alike, workers) << "rounding mode " << rounding << ", flushes " << flushes;
}

TEST(Executors, CallsHaveTheFloatingPointEnvironmentOfTheirCaller) {
  ThreadPool pool(3);
  DefaultEnvironment other{pool};
  const auto expect_alike = [&] {
    expect_environment_of_the_caller(pool);
    expect_environment_of_the_caller(ExecutorRef(pool));
    expect_environment_of_the_caller(ExecutorRef(other));
  };
  for (const int rounding : {FE_UPWARD, FE_TOWARDZERO, FE_TONEAREST}) {
    std::fesetround(rounding);
    expect_alike();
    EXPECT_EQ(std::fegetround(), rounding);
  }
#ifdef __SSE2__
  const unsigned before = _mm_getcsr();
  _mm_setcsr(before | 0x8040);  // tiny results and tiny operands are 0
  EXPECT_TRUE(tiny_numbers_are_zero());
  expect_alike();
  _mm_setcsr(before);
#endif
  expect_alike();
}

TEST(ThreadPool, ManyRoundsFollowEachOtherAndSeeWhatWasWrittenBefore) {
  ThreadPool pool(3);
  std::vector<Index> values(64, 0);  // plain memory: for_each itself must order the accesses
  Index total = 0;
  std::atomic<Index> sum{0};
  for (Index round = 0; round < 1000; ++round) {
    pool.for_each(64, [&](Index index, Index) { ++values[static_cast<std::size_t>(index)]; });
    for (Index& value : values) ASSERT_EQ(value++, 2 * round + 1);
    const Index count = round % 5;
    pool.for_each(count, [&](Index index, Index) { sum += index + 1; });
    total += count * (count + 1) / 2;
    ASSERT_EQ(sum, total) << "round " << round;  // all calls of a round have ended by its end
  }
}

TEST(ThreadPool, WorkersThatSleepComeAgain) {
  ThreadPool pool(2);
  for (int round = 0; round < 5; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(round));  // from awake to asleep
    std::atomic<int> started{0};
    pool.for_each(2, [&](Index, Index) {
      ++started;
      while (started < 2) std::this_thread::yield();  // ends if the other worker comes
    });
  }
}

/// Rounds of one piece wake nobody, and the numbers of rounds begin again.
TEST(ThreadPool, AWorkerThatHasSleptForAllNumbersOfRoundsEnds) {
  for (const int rounds : {(1 << 19) - 1, (1 << 20) - 1}) {
    ThreadPool pool(2);
    pool.for_each(2, [](Index, Index) {});
    std::this_thread::sleep_for(std::chrono::milliseconds(20));  // now it sleeps
    for (int i = 0; i < rounds; ++i) pool.for_each(1, [](Index, Index) {});
  }
}

/// True if every worker gets a call, out of one piece per worker, within 10 s.
bool all_workers_come(ThreadPool& pool) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
  std::vector<std::atomic<bool>> came(static_cast<std::size_t>(pool.workers()));
  std::atomic<Index> distinct{0};
  pool.for_each(pool.workers(), [&](Index, Index worker) {
    if (!came[static_cast<std::size_t>(worker)].exchange(true)) ++distinct;
    while (distinct < pool.workers() && std::chrono::steady_clock::now() < end) {
      std::this_thread::yield();
    }
  });
  return distinct == pool.workers();
}

TEST(ThreadPool, AllWorkersComeAfterAnyNumberOfRounds) {
  ThreadPool pool(3);
  Index rounds = 0;
  for (const Index until : {(1 << 19) - 2, (1 << 19) + 1, (1 << 20) + 3}) {
    for (; rounds < until; ++rounds) pool.for_each(1, [](Index, Index) {});
    EXPECT_TRUE(all_workers_come(pool)) << rounds;
    ++rounds;
  }
}

TEST(ThreadPool, ThreadsThatShareItTakeTurns) {
  ThreadPool pool(4);
  std::atomic<Index> wrong{0};
  const auto call_often = [&](Index caller) {
    for (Index round = 0; round < 2000; ++round) {
      const Index count = 1 + (round + caller) % 9;
      std::vector<Index> workers(static_cast<std::size_t>(count), -1);
      try {
        pool.for_each(count, [&](Index index, Index worker) {
          workers[static_cast<std::size_t>(index)] = worker;
          std::this_thread::yield();  // lets another caller run
          if (round % 100 == caller && index == count - 1) throw caller;
        });
        if (round % 100 == caller) ++wrong;
      } catch (Index thrown) {  // an exception of this call, not of another
        if (thrown != caller) ++wrong;
      }
      for (const Index worker : workers) {
        if (worker < 0 || worker >= pool.workers()) ++wrong;
      }
    }
  };
  std::vector<std::thread> callers;
  for (Index caller = 0; caller < 4; ++caller) callers.emplace_back(call_often, caller);
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(wrong, 0);
}

TEST(ThreadPool, CallsFromInsideItsOwnRunOnTheirThread) {
  ThreadPool pool(3), other(2);
  std::atomic<Index> pieces{0}, elsewhere{0};
  pool.for_each(8, [&](Index, Index) {
    const std::thread::id self = std::this_thread::get_id();
    pool.for_each(4, [&](Index, Index) {
      ++pieces;
      if (std::this_thread::get_id() != self) ++elsewhere;
    });
    other.for_each(2, [&](Index, Index) { ++pieces; });
    pool.for_each(1, [&](Index, Index) { ++pieces; });  // also after a call of the other pool
  });
  EXPECT_EQ(pieces, 8 * (4 + 2 + 1));
  EXPECT_EQ(elsewhere, 0);
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

TEST(ThreadPool, RejectsNumbersOfThreadsThatItCannotCount) {
  for (const Index threads : {Index{0}, Index{-3}, Index{2049}}) {
    EXPECT_EQ(test::message_of<option_error>([threads] { ThreadPool pool(threads); }),
              "mhla::ThreadPool: threads is " + std::to_string(threads) + ", expected 1 to 2048");
  }
}

TEST(Executors, CallsThatThrowTogetherWriteOneException) {
  ThreadPool pool(2);
  std::barrier both(2);
  const auto thrower = [&](Index index, Index) {
    both.arrive_and_wait();
    throw std::runtime_error("call " + std::to_string(index));
  };
  for (int round = 0; round < 10; ++round) {
    const std::string text =
        test::message_of<std::runtime_error>([&] { pool.for_each(2, thrower); });
    EXPECT_TRUE(text == "call 0" || text == "call 1") << text;
  }
}

}  // namespace
}  // namespace mhla

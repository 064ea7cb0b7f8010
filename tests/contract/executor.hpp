#pragma once

/// \file
/// The laws of an Executor, for checks of the library's and of users' executors.

#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>
#include <vector>

#include "mhla/core/executor.hpp"
#include "support/message_of.hpp"

namespace mhla::test {

/// Counts the calls that the laws are about.
struct Witness {
  std::vector<std::atomic<int>> calls;    // of each index
  std::vector<std::atomic<int>> running;  // running calls of each worker
  std::atomic<int> strays{0};             // indices or workers out of range, and overlaps

  Witness(Index count, Index workers)
      : calls(static_cast<std::size_t>(count)), running(static_cast<std::size_t>(workers)) {}

  /// Calls f and counts it as running meanwhile.
  void call(Index index, Index worker, auto&& f) {
    if (index < 0 || index >= std::ssize(calls) || worker < 0 || worker >= std::ssize(running)) {
      ++strays;
      return;
    }
    struct Entry {
      std::atomic<int>& running;
      ~Entry() { --running; }
    };
    const Entry entry{running[static_cast<std::size_t>(worker)]};
    if (++entry.running != 1) ++strays;
    ++calls[static_cast<std::size_t>(index)];
    f();
  }
  int under_way() const {
    int sum = 0;
    for (const std::atomic<int>& n : running) sum += n;
    return sum;
  }
};

/// Every index is called once, workers are in range and never called concurrently, and all calls
/// have ended at the end.
template <class X>
requires Executor<X>
void expect_every_index_once(X& executor, Index count) {
  Witness witness(count, executor.workers());
  std::vector<Index> plain(static_cast<std::size_t>(count), 0);  // calls order writes
  executor.for_each(count, [&](Index index, Index worker) {
    witness.call(index, worker, [&] { ++plain[static_cast<std::size_t>(index)]; });
  });
  EXPECT_EQ(witness.strays, 0) << count << " on " << executor.workers();
  EXPECT_EQ(witness.under_way(), 0) << count << " on " << executor.workers();
  for (const std::atomic<int>& calls : witness.calls) ASSERT_EQ(calls, 1) << count;
  EXPECT_EQ(plain, std::vector<Index>(plain.size(), 1)) << count;
}

/// An exception reaches the caller after all calls have run; the executor stays usable.
template <class X>
requires Executor<X>
void expect_exceptions_arrive(X& executor) {
  for (const bool all : {false, true}) {
    Witness witness(100, executor.workers());
    const auto call = [&](Index index, Index worker) {
      witness.call(index, worker, [&] {
        if (all || index == 5) throw std::runtime_error("a call");
      });
    };
    EXPECT_EQ(message_of<std::runtime_error>([&] { executor.for_each(100, call); }), "a call");
    EXPECT_EQ(witness.under_way(), 0);
    EXPECT_EQ(witness.strays, 0);
    for (const std::atomic<int>& calls : witness.calls) EXPECT_EQ(calls, 1);
    expect_every_index_once(executor, 100);
  }
}

template <class X>
requires Executor<X>
void expect_executor_laws(X&& executor) {
  EXPECT_GE(executor.workers(), 1);
  for (const Index count : {0, 1, 2, 7, 1000}) expect_every_index_once(executor, count);
  expect_exceptions_arrive(executor);
}

}  // namespace mhla::test

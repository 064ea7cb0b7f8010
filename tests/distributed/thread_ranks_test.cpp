#include "mhla/distributed/thread_ranks.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "contract/communicator.hpp"
#include "mhla/distributed/causal.hpp"
#include "support/failing_memory.hpp"
#include "support/message_of.hpp"
#include "support/thread_ranks.hpp"

namespace mhla::test {

INSTANTIATE_TYPED_TEST_SUITE_P(Threads, CommunicatorContract, ThreadRanks);

namespace {

using distributed::run_ranks;
using distributed::ThreadRank;

TEST(ThreadRanks, AnExceptionEndsTheOthersAndReachesTheCaller) {
  const std::string said = message_of<std::runtime_error>([] {
    run_ranks(4, [](ThreadRank& rank) {
      if (rank.rank() == 2) throw std::runtime_error("of rank 2");
      EXPECT_EQ(message_of<communication_error>([&] {
                  std::byte record{}, records[4];
                  rank.agree({&record, 1}, records);
                }),
                "mhla::distributed: rank 2 ended with an exception");
    });
  });
  EXPECT_EQ(said, "of rank 2");
}

TEST(ThreadRanks, ARankThatComesToCopyTooLateCopiesNothing) {
  constexpr double kTimeout = ThreadRanks::kImpatience;
  const std::string late = "mhla::distributed: no answer within 0.500000 s from rank 1";
  const auto run = [&](ThreadRank& rank) {
    int rows[] = {-1, -1};
    rows[rank.rank()] = 7;
    const distributed::SharedRows shared{reinterpret_cast<std::byte*>(rows), sizeof(int)};
    auto transfer = rank.all_gather({&shared, 1}, std::vector<Index>{0, 1, 2});
    if (rank.rank() == 1) std::this_thread::sleep_for(std::chrono::duration<double>(3 * kTimeout));
    EXPECT_EQ(message_of<communication_error>([&] { transfer.wait(); }), late);
    EXPECT_EQ(rows[1 - rank.rank()], rank.rank() == 0 ? 7 : -1);
  };
  EXPECT_NO_THROW(run_ranks(2, run, kTimeout));
}

/// Memory that another rank copies from stays in place until the copy ends, even if its rank fails.
TEST(ThreadHub, AFailureIsThrownOnceNoRankCopies) {
  distributed::detail::ThreadHub hub(3, 30);
  const auto call = hub.begin(0, 0, {});
  hub.begin(1, 0, {});
  hub.begin(2, 0, {});
  std::atomic<bool> copying{false}, go_on{false}, thrown{false};
  std::jthread copier([&] {
    hub.copy(*call, 0, true, [&] {
      copying = true;
      while (!go_on) std::this_thread::yield();
      return std::string();
    });
  });
  while (!copying) std::this_thread::yield();
  hub.fail(2);
  std::jthread waiter([&] {
    EXPECT_EQ(message_of<communication_error>([&] { hub.all_copied(*call, true); }),
              "mhla::distributed: rank 2 ended with an exception");
    thrown = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_FALSE(thrown);
  go_on = true;
  waiter.join();
  EXPECT_TRUE(thrown);
}

#ifdef MHLA_TEST_FAILS_MALLOC

/// Every allocation of a form over ranks fails. The other ranks end with an error and none waits.
TEST(ThreadRanks, MemoryThatFailsIsAnErrorOnAll) {
  const Matrix<float> x = Matrix<float>::Random(12, 4);
  const auto mixing = uniform_causal<float>(9);
  expect_safe("distributed::causal", {[&] {
                const auto begin = std::chrono::steady_clock::now();
                const auto end = [&] {
                  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
                };
                try {
                  run_ranks(3, [&](ThreadRank& rank) {
                    Matrix<float> out(12, 4);
                    distributed::causal(rank, inputs(x, x, x), ContiguousBlocks{4}, mixing,
                                        Operator<>(), out);
                  });
                } catch (...) {
                  end();
                  throw;
                }
                end();
              }});
}

#endif

TEST(ThreadRanks, NoRanksAreRefused) {
  EXPECT_EQ(message_of<option_error>([] { run_ranks(0, [](ThreadRank&) {}); }),
            "mhla::run_ranks: ranks is 0, expected at least 1");
}

}  // namespace
}  // namespace mhla::test

#include "mhla/distributed/thread_ranks.hpp"

#include <gtest/gtest.h>

#include <stdexcept>

#include "contract/communicator.hpp"
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

TEST(ThreadRanks, NoRanksAreRefused) {
  EXPECT_EQ(message_of<option_error>([] { run_ranks(0, [](ThreadRank&) {}); }),
            "mhla::run_ranks: ranks is 0, expected at least 1");
}

}  // namespace
}  // namespace mhla::test

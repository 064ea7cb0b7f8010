#pragma once

/// \file
/// Ranks of a test: threads of its process.

#include <gtest/gtest.h>

#include "mhla/distributed/thread_ranks.hpp"

namespace mhla::test {

struct ThreadRanks {
  /// Timeout in seconds, for tests in which a rank does not answer.
  static constexpr double kImpatience = 0.5;

  /// Calls f(rank) on each rank, for several numbers of ranks.
  static void run(auto&& f, double timeout = 60) {
    for (const Index ranks : {1, 2, 3, 4, 7, 16}) {
      distributed::run_ranks(ranks, f, timeout);
      if (testing::Test::HasFailure()) FAIL() << "with " << ranks << " ranks";
    }
  }
};

}  // namespace mhla::test

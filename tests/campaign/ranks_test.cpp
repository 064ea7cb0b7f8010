// Ranks of MPI that are killed at random moments, or run out of memory. The others end with an
// error or have their results, and ranks that start again have the same results.
//
// MHLA_KILLS        number of kills, 100 by default
// MHLA_ALLOCATIONS  step between the allocations that fail, 1 by default

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <regex>
#include <string>
#include <string_view>

#include "support/random.hpp"

namespace mhla::test {
namespace {

constexpr std::size_t kRanks = 3;

struct Ended {
  std::string output;
  int status;
};

/// Starts ranks, and stops them if they hang.
Ended run_ranks(int seconds, const std::string& options, const std::string& program) {
  const std::string command = "timeout -k 5 " + std::to_string(seconds) + " " MHLA_MPIEXEC " " +
                              options + " " + program + " 2>/dev/null";
  std::FILE* const pipe = popen(command.c_str(), "r");
  Ended run{"", -1};
  if (pipe == nullptr) return run;
  char piece[4096];
  while (const std::size_t bytes = std::fread(piece, 1, sizeof(piece), pipe)) {
    run.output.append(piece, bytes);
  }
  run.status = WEXITSTATUS(pclose(pipe));
  return run;
}

/// Results or error that a rank printed.
struct Said {
  std::string hash;  // of its results, or empty
  double microseconds = 0;
  std::string error;
};
using AllSaid = std::array<Said, kRanks>;

AllSaid said(const std::string& output) {
  AllSaid all;
  static const std::regex line("rank ([0-2]): (?:hash (\\w+) in (\\d+) us|(.*))\n");
  for (std::sregex_iterator at(output.begin(), output.end(), line), end; at != end; ++at) {
    Said& rank = all[static_cast<std::size_t>(std::stoi((*at)[1]))];
    rank.hash = (*at)[2];
    rank.microseconds = rank.hash.empty() ? 0 : std::stod((*at)[3]);
    rank.error = (*at)[4];
  }
  return all;
}

TEST(Ranks, ThatAreKilledEndTheOthersAndStartAgain) {
  const char* const text = std::getenv("MHLA_KILLS");
  const int kills = text == nullptr ? 100 : std::atoi(text);
  const std::string program = MHLA_WORKING_RANK " ", unharmed = program + "-1 0";
  const Ended first = run_ranks(60, "", unharmed);
  const AllSaid expected = said(first.output);
  for (const Said& rank : expected) ASSERT_FALSE(rank.hash.empty()) << first.output;
  Random rng(1);
  int ended = 0;
  for (int i = 0; i < kills && !HasFailure(); ++i) {
    const auto killed = static_cast<std::size_t>(rng.integer(0, kRanks - 1));
    const auto moment = static_cast<long>(rng.uniform(0, 1.2) * expected[0].microseconds);
    const std::string arguments = std::to_string(killed) + " " + std::to_string(moment);
    // Over shared memory: over TCP, Open MPI may end ranks itself.
    const Ended run = run_ranks(60, "--enable-recovery --mca btl vader,self", program + arguments);
    const AllSaid others = said(run.output);
    bool failed = false, named = false;
    for (std::size_t r = 0; r < kRanks; ++r) {
      const auto& [hash, microseconds, error] = others[r];
      if (r == killed && hash.empty() && error.empty()) continue;
      if (!hash.empty()) {
        EXPECT_EQ(hash, expected[r].hash) << arguments;
        continue;
      }
      const std::string_view begin = "mhla::distributed: no answer within 1.000000 s from rank ";
      EXPECT_TRUE(error.starts_with(begin)) << arguments << "\n" << run.output;
      failed = true;
      named = named || error.find(std::to_string(killed), begin.size()) != std::string::npos;
    }
    EXPECT_EQ(failed, named) << arguments << "\n" << run.output;
    ended += failed ? 1 : 0;
    const Ended again = run_ranks(60, "", unharmed);
    const AllSaid results = said(again.output);
    for (std::size_t r = 0; r < kRanks; ++r) {
      EXPECT_EQ(results[r].hash, expected[r].hash) << "after " << arguments << "\n" << again.output;
    }
  }
  std::cout << ended << " ended the others\n" << kills << " cases\n";
}

TEST(Ranks, WithoutMemoryEndTheOthers) {
  setenv("MHLA_ALLOCATIONS", "1", 0);
  const Ended run = run_ranks(7200, "-x MHLA_ALLOCATIONS",
                              MHLA_MPI_TEST " --gtest_brief=1 --gtest_filter=MpiMemory.*");
  std::smatch cases;
  EXPECT_TRUE(std::regex_search(run.output, cases, std::regex("\\d+ cases\n")));
  EXPECT_EQ(run.status, 0) << run.output;
  if (run.status == 0) std::cout << cases[0];
}

}  // namespace
}  // namespace mhla::test

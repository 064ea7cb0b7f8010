#pragma once

/// \file
/// A line on stderr that says which case runs, how many are done and how much time is left.

#include <chrono>
#include <map>
#include <string>

namespace mhla::bench {

class Progress {
 public:
  /// \param runs  repetitions of all cases together
  void expect(long runs);

  /// A run of a case begins. Trials for the number of iterations, each longer than the one before,
  /// count as one with the repetition they end in.
  void start(const std::string& name, long iterations);

  /// Nothing more will run.
  void finish();

 private:
  using Clock = std::chrono::steady_clock;

  long runs_ = 0;
  long begun_ = 0;
  bool line_open_ = false;
  std::map<std::string, long> iterations_;  // of the latest run of each case
  Clock::time_point start_ = Clock::now();
  Clock::time_point shown_{};
};

/// That of this program.
Progress& progress();

}  // namespace mhla::bench

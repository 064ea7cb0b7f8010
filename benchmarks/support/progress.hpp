#pragma once

/// \file
/// A line on stderr that names the running case, the number of finished cases and the time left.

#include <chrono>
#include <map>
#include <string>

namespace mhla::bench {

class Progress {
 public:
  /// \param runs  repetitions of all cases together
  void expect(long runs);

  /// Notes that a run of a case begins. Google Benchmark's trials for the number of iterations,
  /// each longer than the last, count as one run with the repetition that follows them.
  void start(const std::string& name, long iterations);

  /// Ends the line.
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

/// The progress line of this program.
Progress& progress();

}  // namespace mhla::bench

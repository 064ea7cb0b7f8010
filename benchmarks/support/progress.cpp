#include "support/progress.hpp"

#include <unistd.h>

#include <cstdio>

namespace mhla::bench {

void Progress::expect(long runs) {
  runs_ = runs;
  start_ = Clock::now();
}

void Progress::start(const std::string& name, long iterations) {
  const auto [known, is_new] = iterations_.try_emplace(name, iterations);
  const bool repetition = is_new || iterations <= known->second;
  known->second = iterations;
  if (!repetition) return;
  ++begun_;
  const bool terminal = isatty(STDERR_FILENO) != 0;
  const auto now = Clock::now();
  if (!terminal && now - shown_ < std::chrono::seconds(5)) return;
  shown_ = now;
  const double seconds = std::chrono::duration<double>(now - start_).count();
  std::string left;
  if (begun_ > 3 && runs_ >= begun_) {
    const double ahead = static_cast<double>(runs_ - begun_ + 1) / static_cast<double>(begun_ - 1);
    left = ", about " + std::to_string(static_cast<long>(seconds * ahead) + 1) + " s left";
  }
  std::fprintf(stderr, "%srun %ld of %ld%s: %s%s", terminal ? "\r\033[K" : "", begun_, runs_,
               left.c_str(), name.c_str(), terminal ? "" : "\n");
  std::fflush(stderr);
  line_open_ = terminal;
}

void Progress::finish() {
  if (line_open_) std::fputs("\r\033[K", stderr);
  line_open_ = false;
}

Progress& progress() {
  static Progress one;
  return one;
}

}  // namespace mhla::bench

#pragma once

/// \file
/// Progress of a training on stderr. On a terminal it is one line, updated several times per
/// second. Otherwise it is a new line at the first step, every few seconds and at the last step.

#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <mhla/core/scalar.hpp>
#include <string>
#include <utility>

namespace examples {

class ProgressLine {
  using Index = mhla::Index;

 public:
  /// \param name  name of the trained model
  explicit ProgressLine(std::string name)
      : name_(std::move(name)), terminal_(isatty(STDERR_FILENO) == 1) {}

  /// Prints the progress if it is due.
  /// \param step   number of the finished step, from 1
  /// \param what   returns a text such as "loss 0.4312  1681 images/s", called if it is due
  template <class What>
  void operator()(Index step, Index steps, double seconds_left, What&& what) {
    const auto now = std::chrono::steady_clock::now();
    const bool last = step == steps;
    const std::chrono::duration<double> pause(terminal_ ? 0.2 : 5);
    if (!last && now - printed_ < pause) return;
    printed_ = now;
    const std::string text = what();
    std::fprintf(stderr, "%s%-7s  step %*td/%td  %s  %3.0f s left%s", terminal_ ? "\r" : "",
                 name_.c_str(), static_cast<int>(std::to_string(steps).size()), step, steps,
                 text.c_str(), seconds_left, terminal_ && !last ? "\033[K" : "\n");
  }

 private:
  std::string name_;
  bool terminal_;
  std::chrono::steady_clock::time_point printed_{};  // long ago: the first step is due
};

/// printf to a string of up to 255 letters.
inline std::string text(const char* format, auto... values) {
  char buffer[256];
  std::snprintf(buffer, sizeof(buffer), format, values...);
  return buffer;
}

}  // namespace examples

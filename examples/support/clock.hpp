#pragma once

/// \file
/// Time of a call.

#include <algorithm>
#include <chrono>
#include <vector>

namespace examples {

/// Seconds of call(), the median of at least 3 calls and of as many as fit in `budget` seconds. A
/// first call warms caches and memory. prepare() precedes each call and is not timed. A call longer
/// than the budget is made once.
template <class Call, class Prepare>
double seconds_of(double budget, Call&& call, Prepare&& prepare) {
  using Clock = std::chrono::steady_clock;
  const auto once = [&] {
    prepare();
    const auto begin = Clock::now();
    call();
    return std::chrono::duration<double>(Clock::now() - begin).count();
  };
  const double first = once();
  if (first > budget) return first;
  std::vector<double> times;
  for (double spent = 0; times.size() < 3 || spent < budget; spent += times.back()) {
    times.push_back(once());
  }
  const auto middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
  std::nth_element(times.begin(), middle, times.end());
  return *middle;
}
template <class Call>
double seconds_of(double budget, Call&& call) {
  return seconds_of(budget, call, [] {});
}

}  // namespace examples

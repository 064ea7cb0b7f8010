#pragma once

/// \file
/// One case: its name, the check before its first timing, its counters.

#include <benchmark/benchmark.h>

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "support/cost.hpp"

namespace mhla::bench {

/// One run of a case: a repetition, or a trial for the number of iterations.
class Session {
 public:
  /// \param checked  set once a run of this case has been checked
  Session(benchmark::State& state, bool& checked) : state_(state), checked_(checked) {}

  /// Times `run`. The first call is not timed; its results are checked.
  /// \param peak   flops per second of the cores that `run` uses
  /// \param worst  largest error of the results over the allowed error
  void time(const Cost& cost, double peak, const std::function<void()>& run,
            const std::function<double()>& worst);

  /// Times the gradient `run` of a form. A call of `forward` precedes every call of `run`; its time
  /// is not reported. of_forward is the median time of `run` over the median time of `forward`.
  void time_gradient(const Cost& cost, double peak, const std::function<void()>& forward,
                     const std::function<void()>& run, const std::function<double()>& worst);

  /// Checks the results of a case that times itself. False marks the case as failed.
  bool accept(const std::function<double()>& worst);
  benchmark::State& state() { return state_; }
  /// Reports `iterations` calls of cost `cost` in `seconds`.
  void report(const Cost& cost, double peak, double seconds, double iterations);
  void counter(const char* name, double value) { state_.counters[name] = value; }

 private:
  benchmark::State& state_;
  bool& checked_;
};

/// Registers `run` as <form>/cpu/<scalar>/<shape>/threads:<threads>.
void register_case(std::string_view form, std::string_view scalar, const Shape& shape,
                   Index threads, std::function<void(Session&)> run);

/// Names of all cases, in the order of registration.
const std::vector<std::string>& case_names();

/// Number of failed cases so far: wrong results and exceptions.
int failures();

template <class T>
inline constexpr std::string_view kScalarName = "";
template <>
inline constexpr std::string_view kScalarName<float> = "float";
template <>
inline constexpr std::string_view kScalarName<double> = "double";
template <>
inline constexpr std::string_view kScalarName<Eigen::bfloat16> = "bfloat16";

}  // namespace mhla::bench

#pragma once

/// \file
/// One case: its name, the check that comes before its first timing, its counters.

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
  /// \param checked  whether an earlier run of this case was checked; kept up to date
  Session(benchmark::State& state, bool& checked) : state_(state), checked_(checked) {}

  /// Times `run`, whose first call is not timed: `worst` then says by how much its results miss,
  /// as a fraction of what is allowed.
  /// \param peak  flops per second of the cores that `run` uses
  void time(const Cost& cost, double peak, const std::function<void()>& run,
            const std::function<double()>& worst);

  /// The same for the gradient of a form, with a call of `forward` before every one of `run`,
  /// outside of what is reported. of_forward is the median time of `run` over that of `forward`.
  void time_gradient(const Cost& cost, double peak, const std::function<void()>& forward,
                     const std::function<void()>& run, const std::function<double()>& worst);

  /// For cases that time themselves. False if the results miss: the case has failed then.
  bool accept(const std::function<double()>& worst);
  benchmark::State& state() { return state_; }
  /// Reports `iterations` calls of that cost each in `seconds`.
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

/// Cases that failed so far: wrong results and exceptions.
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

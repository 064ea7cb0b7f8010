#include "support/session.hpp"

#include <chrono>
#include <exception>
#include <memory>
#include <numeric>

#include "support/median.hpp"
#include "support/progress.hpp"

namespace mhla::bench {
namespace {

using Clock = std::chrono::steady_clock;

int failed_cases = 0;

std::vector<std::string>& names() {
  static std::vector<std::string> all;
  return all;
}

double seconds_of(const std::function<void()>& run) {
  const auto start = Clock::now();
  run();
  return std::chrono::duration<double>(Clock::now() - start).count();
}

void fail(benchmark::State& state, const std::string& why) {
  ++failed_cases;
  state.SkipWithError(why.c_str());
}

}  // namespace

bool Session::accept(const std::function<double()>& worst) {
  if (checked_) return true;
  const double ratio = worst();
  checked_ = ratio <= 1;
  if (!checked_)
    fail(state_, "wrong result: " + std::to_string(ratio) + " times the allowed error");
  return checked_;
}

void Session::time(const Cost& cost, double peak, const std::function<void()>& run,
                   const std::function<double()>& worst) {
  run();
  if (!accept(worst)) return;
  const auto start = Clock::now();
  for (auto _ : state_) run();
  const std::chrono::duration<double> elapsed = Clock::now() - start;
  report(cost, peak, elapsed.count(), static_cast<double>(state_.iterations()));
}

void Session::time_gradient(const Cost& cost, double peak, const std::function<void()>& forward,
                            const std::function<void()>& run,
                            const std::function<double()>& worst) {
  forward();
  run();
  if (!accept(worst)) return;
  std::vector<double> forwards, runs;
  forwards.reserve(static_cast<std::size_t>(state_.max_iterations));
  runs.reserve(static_cast<std::size_t>(state_.max_iterations));
  for (auto _ : state_) {
    state_.PauseTiming();
    forwards.push_back(seconds_of(forward));
    state_.ResumeTiming();
    runs.push_back(seconds_of(run));
  }
  report(cost, peak, std::accumulate(runs.begin(), runs.end(), 0.0),
         static_cast<double>(state_.iterations()));
  counter("of_forward", median(runs) / median(forwards));
}

void Session::report(const Cost& cost, double peak, double seconds, double iterations) {
  const double calls = iterations / seconds;
  if (cost.flops > 0) counter("flops", cost.flops * calls);
  if (cost.bytes > 0) counter("bytes", cost.bytes * calls);
  if (cost.tokens > 0) counter("tokens", cost.tokens * calls);
  counter("of_peak", cost.flops * calls / peak);
}

void register_case(std::string_view form, std::string_view scalar, const Shape& shape,
                   Index threads, std::function<void(Session&)> run) {
  const std::string name = std::string(form) + "/cpu/" + std::string(scalar) + "/" + shape.name +
                           "/threads:" + std::to_string(threads);
  names().push_back(name);
  const auto checked = std::make_shared<bool>(false);
  benchmark::RegisterBenchmark(name.c_str(), [name, checked, label = shape.text(),
                                              run = std::move(run)](benchmark::State& state) {
    progress().start(name, static_cast<long>(state.max_iterations));
    state.SetLabel(label);
    Session session(state, *checked);
    try {
      run(session);
    } catch (const std::exception& error) {
      fail(state, error.what());
    }
  })->Unit(benchmark::kMicrosecond);
}

const std::vector<std::string>& case_names() { return names(); }

int failures() { return failed_cases; }

}  // namespace mhla::bench

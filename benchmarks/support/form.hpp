#pragma once

/// \file
/// Times one form over all heads of a shape, after a check of sampled rows.

#include <cmath>
#include <limits>
#include <vector>

#include "mhla/core/call.hpp"
#include "support/definition.hpp"
#include "support/peak.hpp"
#include "support/session.hpp"
#include "support/workload.hpp"

namespace mhla::bench {

inline constexpr int kSampledRows = 8;
/// Allowed error of the derivative along one tensor's gradient, relative to the derivative: at
/// least seven times the rounding errors of layers.
inline constexpr double kDerivativeError = 1e-4;

/// Error over allowed error; infinite if it is not a number.
inline double fraction(double error, double allowed) {
  const double found = error / allowed;
  return std::isfinite(found) ? found : std::numeric_limits<double>::infinity();
}

/// Largest error over bound of some rows of work.out() with tokens in [begin, end).
/// \param weights  function: (inputs of a head, token) -> Weights
template <Scalar T, class WeightsOf>
double worst_of_samples(Workload<T>& work, Index begin, Index end, const WeightsOf& weights) {
  const Shape& s = work.shape();
  std::uint64_t counter = 0;
  const auto below = [&counter](Index bound) {
    return static_cast<Index>(splitmix64(++counter) % static_cast<std::uint64_t>(bound));
  };
  double worst = 0;
  for (int sample = 0; sample < kSampledRows; ++sample) {
    const Index b = below(s.batch), h = below(s.heads), t = begin + below(end - begin);
    const Inputs<T> head = detail::head_inputs(work.inputs(), b, h);
    const ExactRow row = weigh<T>(weights(head, t), head.v);
    worst = std::max(worst, error_over_bound(row, &work.out().head(b, h)(t, 0)));
  }
  return worst;
}

/// Checks a form, and measures its time. The parameters are functions.
/// \param bytes    (inputs, executor) -> bytes of workspace
/// \param run      (inputs, out, call), computes all heads
/// \param weights  () -> the `weights` of worst_of_samples, called once per case
template <Scalar T, class Bytes, class Run, class MakeWeights>
void time_form(Session& session, const Shape& shape, Index threads, const Cost& cost,
               const Bytes& bytes, const Run& run, const MakeWeights& weights) {
  Workload<T> work(shape);
  ThreadPool pool(threads);
  const BatchInputs<T> in = work.inputs();
  std::vector<std::byte, Allocator<std::byte>> memory(bytes(in, pool));
  const double peak = measure_peak<accumulator_t<T>>(pool);
  session.time(
      cost, peak,
      [&] {
        run(in, work.out(), Call{.workspace = memory, .executor = pool});
        benchmark::ClobberMemory();
      },
      [&] { return worst_of_samples(work, 0, shape.tokens(), weights()); });
}

/// Calls f(threads) for one thread, and for two if the shape has more than one head to share out.
template <class F>
void for_each_thread_count(const Shape& shape, F&& f) {
  f(Index{1});
  if (shape.heads > 1) f(Index{2});
}

}  // namespace mhla::bench

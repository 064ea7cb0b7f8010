#pragma once

/// \file
/// What one core can do: multiply-adds on registers alone.

#include <algorithm>
#include <chrono>

#include "mhla/core/packet.hpp"

namespace mhla::bench {

/// Flops of one call of run_peak.
template <Accumulator A>
inline constexpr double kPeakFlops = 2.0 * 16 * 2000 *
                                     static_cast<double>(detail::kLanes<detail::Packet<A>>);

/// Independent chains of multiply-adds, enough to hide the latency of any of them.
template <Accumulator A>
A run_peak() {
  using P = detail::Packet<A>;
  constexpr int kChains = kVectorRegisters >= 32 ? 16 : 8;
  P sums[kChains];
  for (int c = 0; c < kChains; ++c) sums[c] = Eigen::internal::pset1<P>(A(c));
  const P factor = Eigen::internal::pset1<P>(A(0.5));
  for (int i = 0; i < 2000 * 16 / kChains; ++i) {
    MHLA_UNROLL
    for (int c = 0; c < kChains; ++c) sums[c] = detail::multiply_add(sums[c], factor, factor);
  }
  P total = sums[0];
  for (int c = 1; c < kChains; ++c) total = Eigen::internal::padd(total, sums[c]);
  return Eigen::internal::predux(total);
}

/// Flops per second of one core, the best of some milliseconds.
template <Accumulator A>
double measure_peak() {
  using Clock = std::chrono::steady_clock;
  double best = 0;
  volatile A sink = 0;
  for (const auto end = Clock::now() + std::chrono::milliseconds(5); Clock::now() < end;) {
    const auto start = Clock::now();
    for (int i = 0; i < 10; ++i) sink = run_peak<A>();
    const std::chrono::duration<double> seconds = Clock::now() - start;
    best = std::max(best, 10 * kPeakFlops<A> / seconds.count());
  }
  static_cast<void>(sink);
  return best;
}

}  // namespace mhla::bench

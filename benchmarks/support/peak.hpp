#pragma once

/// \file
/// Limits of cores: multiply-adds on registers alone, and reading from L2.

#include <algorithm>
#include <chrono>
#include <vector>

#include "mhla/core/executor.hpp"
#include "mhla/kernel/packet.hpp"

namespace mhla::bench {

/// Multiply-adds of packets in one call of run_peak, in 12 or 16 chains.
inline constexpr int kPeakSteps = 48 * 700;
/// Flops of one call of run_peak.
template <Accumulator A>
inline constexpr double kPeakFlops =
    2.0 * kPeakSteps* static_cast<double>(Eigen::internal::packet_traits<A>::size);

/// Number of independent chains of multiply-adds, enough to hide the latency of one. Without a
/// fused instruction the latency is that of a product and a sum: 6 to 8 cycles at 1.5 or 2 per
/// cycle.
template <Accumulator A>
A run_peak() {
  using P = detail::Packet<A>;
  constexpr int kChains = kVectorRegisters >= 32 ? 16 : 12;
  P sums[kChains];
  for (int c = 0; c < kChains; ++c) sums[c] = Eigen::internal::pset1<P>(A(c));
  const P factor = Eigen::internal::pset1<P>(A(0.5));
  for (int i = 0; i < kPeakSteps / kChains; ++i) {
    MHLA_UNROLL
    for (int c = 0; c < kChains; ++c) {
      sums[c] = detail::multiply_add(sums[c], factor, factor);
    }
  }
  P total = sums[0];
  for (int c = 1; c < kChains; ++c) total = Eigen::internal::padd(total, sums[c]);
  return Eigen::internal::predux(total);
}

/// Sum of `count` numbers by loads and additions in 8 chains; `count` is a multiple of 8 packets.
template <Accumulator A>
A read_all(const A* x, Index count) {
  using P = detail::Packet<A>;
  constexpr Index kLanes = Eigen::internal::packet_traits<A>::size;
  P sums[8];
  for (P& sum : sums) sum = Eigen::internal::pset1<P>(A(0));
  for (Index i = 0; i < count; i += 8 * kLanes) {
    MHLA_UNROLL
    for (int c = 0; c < 8; ++c) {
      sums[c] = Eigen::internal::padd(sums[c], detail::load<A, P>(x + i + c * kLanes));
    }
  }
  for (int c = 1; c < 8; ++c) sums[0] = Eigen::internal::padd(sums[0], sums[c]);
  return Eigen::internal::predux(sums[0]);
}

/// Seconds of the quickest call of `run` within some milliseconds.
template <class Run>
double least_seconds(Run&& run) {
  using Clock = std::chrono::steady_clock;
  double least = 1;
  for (const auto end = Clock::now() + std::chrono::milliseconds(5); Clock::now() < end;) {
    const auto start = Clock::now();
    run();
    least = std::min(least, std::chrono::duration<double>(Clock::now() - start).count());
  }
  return least;
}

/// Flops per second of all workers of a pool at once.
template <Accumulator A>
double measure_peak(ThreadPool& pool) {
  std::vector<double> rates(static_cast<std::size_t>(pool.workers()));
  pool.for_each(pool.workers(), [&rates](Index i, Index) {
    volatile A sink = 0;
    const double seconds = least_seconds([&sink] {
      for (int r = 0; r < 10; ++r) sink = run_peak<A>();
    });
    rates[static_cast<std::size_t>(i)] = 10 * kPeakFlops<A> / seconds;
  });
  double total = 0;
  for (const double rate : rates) total += rate;
  return total;
}

/// Seconds in which one core reads `count` floats from its L2, which has to hold them.
inline double measure_read(Index count) {
  const std::vector<float> data(static_cast<std::size_t>(count), 1.0f);
  volatile float sink = 0;
  return least_seconds([&] { sink = read_all(data.data(), count); });
}

}  // namespace mhla::bench

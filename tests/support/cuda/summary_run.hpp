#pragma once

/// \file
/// Runs of the summary kernels.
///
/// Features are compared as rounded, and products of two numbers of T are exact floats. S and z
/// therefore only have the errors of their additions (output_bound.hpp). Rounding S to T adds u
/// |S^|, or as high + low u^2 |S^|, since the rest x - high is a float and at most u |x|. An
/// underflow adds half the least number of T per part. Sums of small integers are exact before
/// rounding.

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "emulator/device.hpp"
#include "support/cuda/kernel_run.hpp"
#include "support/cuda/output_bound.hpp"
#include "support/cuda/summary_memory.hpp"

namespace cuda_test {

/// \tparam Kernels  ::Kernel<T, D, E, P>
template <class Kernels, class T, int D, int E, Precision P>
struct SummaryRun {
  using Kernel = typename Kernels::template Kernel<T, D, E, P>;

  Case c;
  Tensor<T> k, v;
  SummaryMemory<T, D, E, P> out;
  bool key_sum = true;
  emulator::Report report;

  explicit SummaryRun(const Case& given)
      : c(given), k(c.queries<T>(D)), v(c.queries<T>(E, 1)), out(c.items()) {
    Random random(c.seed);
    for (Tensor<T>* x : {&k, &v}) x->fill([&] { return random.uniform(-2, 2); });
  }

  static std::string name() { return kernel_name<T>(D, E); }

  bool launch(std::uint64_t schedule) {
    const mhla::cuda::SummaryParameters stage{.k = k.input(),
                                              .v = v.input(),
                                              .blocks = c.blocks,
                                              .heads = c.heads,
                                              .map = c.key_map,
                                              .out = out.array(key_sum)};
    emulator::Device device(schedule);
    device.track("k", k.raw(), k.bytes(), emulator::Access::kRead);
    device.track("v", v.raw(), v.bytes(), emulator::Access::kRead);
    out.track(device, emulator::Access::kWrite, key_sum);
    const auto launch = launched<Kernel>(device, stage, c);
    if (launch) report = *launch;
    return launch.has_value();
  }

  void expect_traffic() const {
    EXPECT_EQ(report.bytes_read("k"), k.row_bytes());
    EXPECT_EQ(report.bytes_read("v"), v.row_bytes());
    EXPECT_EQ(report.bytes_written("high"), out.high.bytes());
    if (P == Precision::kPair) {
      EXPECT_EQ(report.bytes_written("low"), out.low.bytes());
    }
    if (key_sum) {
      EXPECT_EQ(report.bytes_written("z"), out.key_sum.bytes());
    }
    EXPECT_EQ(report.bank_conflicts, 0u);
  }

  void check() const {
    for_each_sum([&](const BoundedSum& sum, std::int64_t row, int e) {
      const Bounded s = sum.in_any_order();
      if (e == E) {
        ASSERT_NEAR(out.key_sum.value(row), s.value, s.error) << "z[" << row << "]";
        return;
      }
      const double high = out.high.value(row * E + e);
      ASSERT_NEAR(high, s.value, then_rounded<T>(s).error) << row << " " << e;
      if (P == Precision::kPair) {
        const double u = kRoundoff<T>;
        ASSERT_NEAR(high + out.low.value(row * E + e), s.value,
                    s.error + u * u * (std::abs(s.value) + s.error) + 2 * kUnderflow<T>)
            << row << " " << e;
      }
    });
  }

  /// Calls f(sum, item D + d, e) for every number of S, and with e = E for z, until the test fails.
  template <class F>
  void for_each_sum(F&& f) const {
    for (std::int64_t item = 0; item < c.items() && !testing::Test::HasFatalFailure(); ++item) {
      const std::vector<BoundedSum> sums = sums_of(item);
      for (int i = 0; i < D * (E + 1) && !testing::Test::HasFatalFailure(); ++i) {
        f(sums[static_cast<std::size_t>(i)], item * D + i / (E + 1), i % (E + 1));
      }
    }
  }

  bool wrote_as(const SummaryRun& other) const { return out.is_as(other.out); }

 private:
  /// Returns [D, E + 1]; the last column is z.
  std::vector<BoundedSum> sums_of(std::int64_t item) const {
    const auto pair = static_cast<int>(item / c.blocks.blocks());
    const int b = pair / c.heads, h = pair % c.heads;
    const auto at = c.blocks.origin(static_cast<std::int32_t>(item % c.blocks.blocks()));
    std::vector<BoundedSum> sums(D * (E + 1));
    std::vector<double> value(E + 1, 1);
    for (std::int32_t slot = 0; slot < c.blocks.slots(); ++slot) {
      const std::int32_t t = c.blocks.token(at, slot);
      if (t < 0) continue;
      for (int e = 0; e < E; ++e) value[static_cast<std::size_t>(e)] = v.value(b, t, h, e);
      for (int d = 0; d < D; ++d) {
        const double phi = rounded_phi(c.key_map, k.at(b, t, h, d));
        BoundedSum* row = sums.data() + d * (E + 1);
        for (std::size_t e = 0; e <= E; ++e) row[e].add(phi * value[e]);
      }
    }
    return sums;
  }
};

/// Uses integers from -2 to 2: S is rounded once, z is exact.
template <class Kernels, class T, int D, int E, Precision P>
struct IntegerSummaryRun : SummaryRun<Kernels, T, D, E, P> {
  explicit IntegerSummaryRun(const Case& given) : SummaryRun<Kernels, T, D, E, P>(given) {
    this->c.key_map = mhla::cuda::FeatureMap::identity();
    Random random(given.seed);
    for (Tensor<T>* x : {&this->k, &this->v}) {
      x->fill([&] { return static_cast<double>(random.integer(-2, 2)); });
    }
  }

  void check() const {
    this->for_each_sum([&](const BoundedSum& sum, std::int64_t row, int e) {
      const double s = sum.in_any_order().value;
      if (e == E) {
        ASSERT_EQ(this->out.key_sum.value(row), s) << row;
        return;
      }
      const double high = this->out.high.value(row * E + e);
      ASSERT_EQ(high, round_to<T>(s)) << row << " " << e;
      if (P == Precision::kPair) {
        ASSERT_EQ(this->out.low.value(row * E + e), round_to<T>(s - high)) << row << " " << e;
      }
    });
  }
};

/// Makes keys and values of a block NaN. Its sums must be NaN, and no others.
template <class Run>
void expect_not_a_number_stays_in_its_block() {
  Run run({.blocks = {1, 9, 9, 1, 4, 5},
           .key_map = mhla::cuda::FeatureMap::relu(0.5f),
           .layout = 2,
           .multiprocessors = 3});
  for (auto* x : {&run.k, &run.v}) {
    x->each([&](int b, int t, int h, int d) {
      if (run.c.blocks.block_of(t) == 2) x->at(b, t, h, d).bits = 0x7FFF;
    });
  }
  ASSERT_TRUE(run.launch(1));
  const int d = run.k.width(), e = run.v.width();
  for (std::int64_t i = 0; i < run.out.high.size(); ++i) {
    ASSERT_EQ(std::isnan(run.out.high.value(i)), i / (d * e) == 2) << i;
  }
  for (std::int64_t i = 0; i < run.out.key_sum.size(); ++i) {
    ASSERT_EQ(std::isnan(run.out.key_sum.value(i)), i / d == 2) << i;
  }
}

/// Expects that without memory for z nothing else changes.
template <class Run>
void expect_key_sums_are_left_out() {
  Run without({.blocks = sequence(100, 32)}), with(without.c);
  without.key_sum = false;
  for (Run* run : {&without, &with}) {
    ASSERT_TRUE(run->launch(1));
    run->expect_traffic();
  }
  for (std::int64_t i = 0; i < with.out.high.size(); ++i) {
    ASSERT_EQ(without.out.high[i].bits, with.out.high[i].bits) << i;
  }
}

}  // namespace cuda_test

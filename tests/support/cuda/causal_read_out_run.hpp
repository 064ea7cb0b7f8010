#pragma once

/// \file
/// Runs of the kernels of the causal form's last stage, and a check that no later token enters an
/// output. output_sums.hpp has the error bounds.

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "emulator/device.hpp"
#include "support/cuda/kernel_run.hpp"
#include "support/cuda/mixing_memory.hpp"
#include "support/cuda/output_sums.hpp"
#include "support/cuda/summary_memory.hpp"

namespace cuda_test {

/// Rows of keys and of values, and mixtures, that a kernel reads per pair.
struct CausalReads {
  std::size_t keys = 0, mixtures = 0;
};

/// \tparam Kernels  ::Kernel<T, D, E, P> and its reads(blocks)
template <class Kernels, class T, int D, int E, Precision P>
struct CausalReadOutRun {
  using Kernel = typename Kernels::template Kernel<T, D, E, P>;

  Case c;
  Tensor<T> q, k, v, o;
  SummaryMemory<T, D, E, P> mixtures;
  MixingMemory mixing;
  OutputNorms<T> norms;
  emulator::Report report;

  /// Memory that kernels must not read is NaN: mixtures of absent blocks, coefficients of later
  /// blocks.
  explicit CausalReadOutRun(const Case& given)
      : c(given),
        q(c.queries<T>(D)),
        k(c.queries<T>(D, 1)),
        v(c.queries<T>(E, 2)),
        o(c.queries<T>(E, 1)),
        mixtures(c.items()),
        mixing(c.blocks.blocks(), c.blocks.blocks()),
        norms(c, E) {
    Random random(c.seed);
    for (Tensor<T>* x : {&q, &k, &v}) x->fill([&] { return random.normal(); });
    mixtures.fill(random, c.blocks.blocks(), true);
    mixing.fill(random, !key_sum(), true);
  }

  static std::string name() { return kernel_name<T>(D, E); }
  bool key_sum() const { return c.denominator == mhla::cuda::Denominator::kKeySum; }

  mhla::cuda::CausalReadOutParameters stage() {
    return {.q = q.input(),
            .k = k.input(),
            .v = v.input(),
            .o = o.output(),
            .blocks = c.blocks,
            .heads = c.heads,
            .query_map = c.query_map,
            .key_map = c.key_map,
            .mixtures = mixtures.array(key_sum()),
            .normalization = c.normalization(),
            .mixing = mixing.array(),
            .norm = norms.stage()};
  }
  bool fits() { return prepared<Kernel>(stage(), c).has_value(); }

  bool launch(std::uint64_t schedule) {
    emulator::Device device(schedule);
    device.track("q", q.raw(), q.bytes(), emulator::Access::kRead);
    device.track("k", k.raw(), k.bytes(), emulator::Access::kRead);
    device.track("v", v.raw(), v.bytes(), emulator::Access::kRead);
    device.track("o", o.raw(), o.bytes(), emulator::Access::kWrite);
    mixtures.track(device, emulator::Access::kRead, key_sum());
    mixing.track(device);
    norms.track(device);
    const auto launch = launched<Kernel>(device, stage(), c);
    if (launch) report = *launch;
    return launch.has_value();
  }

  void expect_traffic() const {
    const CausalReads reads = Kernels::reads(c.blocks);
    const auto pairs = static_cast<std::size_t>(c.pairs());
    EXPECT_EQ(report.bytes_read("q"), q.row_bytes());
    EXPECT_EQ(report.bytes_written("o"), o.row_bytes());
    EXPECT_EQ(report.bytes_read("k"), pairs * reads.keys * D * 2);
    EXPECT_EQ(report.bytes_read("v"), pairs * reads.keys * E * 2);
    EXPECT_EQ(report.bytes_read("high"), pairs * reads.mixtures * D * E * 2);
    if (P == Precision::kPair) {
      EXPECT_EQ(report.bytes_read("low"), pairs * reads.mixtures * D * E * 2);
    }
    if (key_sum()) {
      EXPECT_EQ(report.bytes_read("z"), pairs * reads.mixtures * D * 4);
    }
    norms.expect_traffic(report);
    EXPECT_EQ(report.bank_conflicts, 0u);
  }

  void check() const { expect_right_outputs(*this); }

  void check(Comparison& comparison, int b, int h) const {
    const int length = c.blocks.slots();
    std::vector<std::vector<double>> keys;
    for (int t = 0; t < c.blocks.tokens(); ++t) {
      const int i = t / length;
      const std::vector<double> query = features(c.query_map, q, b, t, h);
      keys.push_back(features(c.key_map, k, b, t, h));
      OutputSums<T> sums(E);
      if (i > 0) sums.add_mixture(query, mixtures, c.item(b, h, i), c.denominator);
      for (int j = i * length; j <= t; ++j) {
        sums.add_value(weight<T>(query, keys[static_cast<std::size_t>(j)], mixing.value(i, i)), v,
                       b, j, h);
      }
      sums.compare(comparison, o, b, t, h, c.normalization(), &norms);
    }
  }

  bool wrote_as(const CausalReadOutRun& other) const {
    return std::memcmp(o.raw(), other.o.raw(), o.bytes()) == 0;
  }
};

/// Cases with all feature maps, numerators of both signs, no denominators.
struct SignedCases {
  Case identity{.blocks = sequence(100, 33),
                .query_map = mhla::cuda::FeatureMap::identity(),
                .key_map = mhla::cuda::FeatureMap::elu_plus_one(),
                .denominator = mhla::cuda::Denominator::kNone,
                .heads = 2,
                .layout = 2,
                .seed = 5};
  Case elu{.blocks = sequence(90, 49),
           .query_map = mhla::cuda::FeatureMap::elu_plus_one(),
           .key_map = mhla::cuda::FeatureMap::relu(1),
           .denominator = mhla::cuda::Denominator::kNone,
           .batch = 2,
           .heads = 2,
           .layout = 1,
           .seed = 6};
};

/// Makes one value of each token infinite or NaN, each in another column. Exactly the outputs of
/// that column from the token to the end of its block must be so, too.
template <template <class T, int D, int E, Precision P> class Run, class T, int D, int E>
void expect_no_later_value(int length, int spoilt_token) {
  const Case c{.blocks = sequence(2 * length, length),
               .seed = static_cast<std::uint64_t>(spoilt_token) + 1};
  Run<T, D, E, Precision::kSingle> clean(c), spoilt(c);
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const double values[] = {kInfinity, std::numeric_limits<double>::quiet_NaN(), -kInfinity};
  const int column = (37 * spoilt_token) % E;
  spoilt.v.at(0, spoilt_token, 0, column) = from_double<T>(values[spoilt_token % 3]);
  for (auto* run : {&clean, &spoilt}) ASSERT_TRUE(run->launch(c.seed % 7));
  Comparison comparison("token " + std::to_string(spoilt_token));
  spoilt.check(comparison, 0, 0);
  for (int t = 0; t < 2 * length; ++t) {
    const bool later = t >= spoilt_token && t / length == spoilt_token / length;
    EXPECT_EQ(std::isfinite(spoilt.o.value(0, t, 0, column)), !later) << spoilt_token << " " << t;
    for (int e = 0; e < E && t < spoilt_token / 16 * 16; ++e) {
      ASSERT_EQ(spoilt.o.at(0, t, 0, e).bits, clean.o.at(0, t, 0, e).bits);
    }
  }
}

/// Makes a key NaN. Outputs from that key to the end of its block must be NaN. The others must keep
/// their bits.
template <class Run>
void expect_no_later_key() {
  const Case c{.blocks = sequence(80, 40)};
  Run clean(c), spoilt(c);
  for (int d = 0; d < spoilt.k.width(); ++d) spoilt.k.at(0, 21, 0, d).bits = 0x7FFF;
  for (Run* run : {&clean, &spoilt}) ASSERT_TRUE(run->launch(1));
  clean.o.each([&](int b, int t, int h, int e) {
    if (t >= 21 && t < 40) {
      EXPECT_FALSE(std::isfinite(spoilt.o.value(b, t, h, e)));
    } else {
      EXPECT_EQ(spoilt.o.at(b, t, h, e).bits, clean.o.at(b, t, h, e).bits) << t;
    }
  });
}

}  // namespace cuda_test

#pragma once

/// \file
/// Queries, keys, values and a mixing matrix for kernels that compute outputs directly from them.

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>

#include "emulator/device.hpp"
#include "support/cuda/kernel_run.hpp"
#include "support/cuda/mixing_memory.hpp"

namespace cuda_test {

template <class T, int D, int E>
struct DirectProblem {
  Case c;
  Tensor<T> q, k, v, o;
  MixingMemory mixing;
  emulator::Report report;

  /// Coefficients of later blocks stay NaN if `causal`.
  explicit DirectProblem(const Case& given, bool causal = false)
      : c(given),
        q(c.queries<T>(D)),
        k(c.keys<T>(D, 1)),
        v(c.keys<T>(E)),
        o(c.queries<T>(E, 2)),
        mixing(c.blocks.blocks(), c.key_blocks.blocks()) {
    Random random(c.seed);
    for (Tensor<T>* x : {&q, &k, &v}) x->fill([&] { return random.normal(); });
    mixing.fill(random, c.denominator == mhla::cuda::Denominator::kNone, causal);
  }

  static std::string name() { return kernel_name<T>(D, E); }

  mhla::cuda::DirectParameters stage() {
    return {.q = q.input(),
            .k = k.input(),
            .v = v.input(),
            .o = o.output(),
            .query_blocks = c.blocks,
            .key_blocks = c.key_blocks,
            .heads = c.heads,
            .query_map = c.query_map,
            .key_map = c.key_map,
            .normalization = c.normalization(),
            .mixing = mixing.array()};
  }

  template <class Kernel>
  bool launch_as(std::uint64_t schedule) {
    emulator::Device device(schedule);
    device.track("q", q.raw(), q.bytes(), emulator::Access::kRead);
    device.track("k", k.raw(), k.bytes(), emulator::Access::kRead);
    device.track("v", v.raw(), v.bytes(), emulator::Access::kRead);
    device.track("o", o.raw(), o.bytes(), emulator::Access::kWrite);
    mixing.track(device);
    const auto launch = launched<Kernel>(device, stage(), c);
    if (launch) report = *launch;
    return launch.has_value();
  }

  /// Expects that every tensor was moved once.
  void expect_traffic() const {
    EXPECT_EQ(report.bytes_read("q"), q.row_bytes());
    EXPECT_EQ(report.bytes_read("k"), k.row_bytes());
    EXPECT_EQ(report.bytes_read("v"), v.row_bytes());
    EXPECT_EQ(report.bytes_written("o"), o.row_bytes());
    EXPECT_EQ(report.bank_conflicts, 0u);
  }

  bool wrote_as(const DirectProblem& other) const {
    return std::memcmp(o.raw(), other.o.raw(), o.bytes()) == 0;
  }
};

/// Runs a problem, and again with NaN where `spoil(run)` writes them. Then outputs of token t of
/// head h must be NaN where spoilt(t, h), and have the same bits elsewhere.
template <class Run, class Spoil, class Spoilt>
void expect_nan_alone(const Case& c, Spoil&& spoil, Spoilt&& spoilt) {
  Run clean(c), run(c);
  spoil(run);
  ASSERT_TRUE(clean.launch(1));
  ASSERT_TRUE(run.launch(1));
  clean.o.each([&](int b, int t, int h, int e) {
    if (spoilt(t, h)) {
      ASSERT_TRUE(std::isnan(run.o.value(b, t, h, e))) << t;
    } else {
      ASSERT_EQ(run.o.at(b, t, h, e).bits, clean.o.at(b, t, h, e).bits) << t;
    }
  });
}
/// Makes head 1 NaN.
template <class Run>
void expect_nan_head_spoils_no_other(const Case& c) {
  expect_nan_alone<Run>(
      c,
      [](Run& run) {
        for (auto* tensor : {&run.q, &run.k, &run.v}) {
          tensor->each([&](int b, int t, int h, int d) {
            if (h == 1) tensor->at(b, t, h, d) = {0x7FFF};
          });
        }
      },
      [](int, int h) { return h == 1; });
}
/// Makes query 30 of head 0 NaN.
template <class Run>
void expect_nan_query_spoils_no_other(const Case& c) {
  expect_nan_alone<Run>(
      c,
      [](Run& run) {
        run.q.each([&](int b, int t, int h, int d) {
          if (t == 30 && h == 0) run.q.at(b, t, h, d) = {0x7FFF};
        });
      },
      [](int t, int h) { return t == 30 && h == 0; });
}

}  // namespace cuda_test

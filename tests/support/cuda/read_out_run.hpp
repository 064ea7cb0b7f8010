#pragma once

/// \file
/// Runs of the read-out kernels. output_sums.hpp has the error bounds.

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "emulator/device.hpp"
#include "support/cuda/kernel_run.hpp"
#include "support/cuda/mixing_memory.hpp"
#include "support/cuda/output_sums.hpp"
#include "support/cuda/summary_memory.hpp"

namespace cuda_test {

/// \tparam Kernels  ::Kernel<T, D, E, P>. mixture_reads(blocks) and query_reads(c, E, P) return how
///                  often it reads a mixture and queries, if not once
template <class Kernels, class T, int D, int E, Precision P>
struct ReadOutRun {
  using Kernel = typename Kernels::template Kernel<T, D, E, P>;

  Case c;
  Tensor<T> q, o;
  SummaryMemory<T, D, E, P> mixtures;
  Array<float> scores;  ///< [pairs, M, W]
  MixingMemory mixing;
  OutputNorms<T> norms;
  emulator::Report report;

  /// Scores of empty slots are NaN, since no output may read them.
  explicit ReadOutRun(const Case& given)
      : c(given),
        q(c.queries<T>(D)),
        o(c.queries<T>(E, 1)),
        mixtures(c.items()),
        scores(c.items() * c.blocks.slots()),
        mixing(c.blocks.blocks(), c.blocks.blocks()),
        norms(c, E) {
    Random random(c.seed);
    q.fill([&] { return random.normal(); });
    mixtures.fill(random, c.blocks.blocks());
    mixing.fill(random, false);
    for (std::int64_t i = 0; i < scores.size(); ++i) {
      const auto slot = static_cast<std::int32_t>(i % c.blocks.slots());
      const auto block = static_cast<std::int32_t>(i / c.blocks.slots() % c.blocks.blocks());
      if (c.blocks.token(c.blocks.origin(block), slot) < 0) continue;
      scores[i] = static_cast<float>(random.uniform(1, 9));
    }
  }

  static std::string name() { return kernel_name<T>(D, E); }
  bool key_sum() const { return c.denominator == mhla::cuda::Denominator::kKeySum; }
  bool cross_query() const { return c.denominator == mhla::cuda::Denominator::kCrossQuery; }

  bool launch(std::uint64_t schedule) {
    using emulator::Access;
    emulator::Device device(schedule);
    device.track("q", q.raw(), q.bytes(), Access::kRead);
    device.track("o", o.raw(), o.bytes(), Access::kWrite);
    mixtures.track(device, Access::kRead, key_sum());
    if (cross_query()) {
      device.track("scores", scores.raw(), scores.bytes(), Access::kRead);
      mixing.track(device);
    }
    norms.track(device);
    const mhla::cuda::ReadOutParameters stage{
        .q = q.input(),
        .o = o.output(),
        .blocks = c.blocks,
        .heads = c.heads,
        .map = c.query_map,
        .mixtures = mixtures.array(key_sum()),
        .normalization = c.normalization(),
        .scores = cross_query() ? scores.data() : nullptr,
        .mixing = cross_query() ? mixing.array() : mhla::cuda::MixingArray{},
        .norm = norms.stage()};
    const auto launch = launched<Kernel>(device, stage, c);
    if (launch) report = *launch;
    return launch.has_value();
  }

  /// Expects the planned traffic. A block reads the scores of all blocks.
  void expect_traffic() const {
    const auto reads = static_cast<std::size_t>(Kernels::mixture_reads(c.blocks));
    std::size_t turns = 1;  // reads of all queries, each with a part of a mixture
    if constexpr (requires { Kernels::query_reads(c, E, P); }) {
      turns = static_cast<std::size_t>(Kernels::query_reads(c, E, P));
    }
    EXPECT_EQ(report.bytes_read("q"), turns * q.row_bytes());
    EXPECT_EQ(report.bytes_written("o"), o.row_bytes());
    const std::size_t whole = turns == 4 ? 2 * reads : reads;  // two of these read a mixture once
    EXPECT_EQ(report.bytes_read("high"), whole * mixtures.high.bytes());
    if (P == Precision::kPair) {
      EXPECT_EQ(report.bytes_read("low"), whole * mixtures.low.bytes());
    }
    if (key_sum()) {
      EXPECT_EQ(report.bytes_read("z"), reads * mixtures.key_sum.bytes());
    }
    if (cross_query()) {
      EXPECT_LE(report.bytes_read("scores"),
                scores.bytes() * static_cast<std::size_t>(c.blocks.blocks()));
    }
    norms.expect_traffic(report);
    EXPECT_EQ(report.bank_conflicts, 0u);
  }

  void check() const { expect_right_outputs(*this); }

  void check(Comparison& comparison, int b, int h) const {
    for (std::int32_t block = 0; block < c.blocks.blocks(); ++block) {
      for (std::int32_t slot = 0; slot < c.blocks.slots(); ++slot) {
        check(comparison, b, h, block, slot);
      }
    }
  }

  void check(Comparison& comparison, int b, int h, std::int32_t block, std::int32_t slot) const {
    const std::int32_t t = c.blocks.token(c.blocks.origin(block), slot);
    if (t < 0) return;
    OutputSums<T> sums(E);
    sums.add_mixture(features(c.query_map, q, b, t, h), mixtures, c.item(b, h, block),
                     c.denominator);
    for (std::int32_t j = 0; cross_query() && j < c.blocks.blocks(); ++j) {
      const std::int64_t row = c.item(b, h, j) * c.blocks.slots();
      sums.add_to_denominator(mixing.value(block, j) * scores.value(row + slot));
    }
    sums.compare(comparison, o, b, t, h, c.normalization(), &norms);
  }

  bool wrote_as(const ReadOutRun& other) const {
    return std::memcmp(o.raw(), other.o.raw(), o.bytes()) == 0;
  }
};

}  // namespace cuda_test

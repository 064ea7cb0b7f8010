#pragma once

/// \file
/// Streams that mix by decaying terms, in the emulator, of many blocks (streaming_run.hpp).

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>

#include "support/cuda/streaming_run.hpp"

namespace cuda_test {

/// Two heads of a sequence.
inline StreamCase endless(int terms, int length, int tokens,
                          Denominator denominator = Denominator::kKeySum, unsigned seed = 1) {
  StreamCase c{(tokens - 1) / length + 1,
               length,
               tokens,
               FeatureMap::relu(1e-6f),
               denominator,
               1,
               2,
               0,
               seed};
  c.terms = terms;
  return c;
}

/// Compares all outputs with the causal form.
template <class T, int D, int E, Precision P>
void expect_within_the_bound(const Streams<T, D, E, P>& x, const char* name) {
  Comparison comparison(name);
  for (int b = 0; b < x.c.batch; ++b) {
    for (int h = 0; h < x.c.heads; ++h) compare(comparison, x, b, h);
  }
  EXPECT_GT(comparison.worst(), 0);
}

/// Decodes whole sequences. A step moves the same sums of terms at every position.
template <class T, int D, int E, Precision P>
void check_steps(const StreamCase& c) {
  SCOPED_TRACE(std::to_string(c.terms) + " terms, W " + std::to_string(c.length));
  Streams<T, D, E, P> x(c, c.seed);
  constexpr int kPieces = D * E / 8;
  const int slices = E / streaming_slice(E);
  for (int t = 0; t < c.tokens; ++t) {
    x.step(t);
    ASSERT_EQ(x.report.bank_conflicts, 0u);
    const int each = (kPieces / slices - 1) / c.length + 1, slot = t % c.length;
    const int share = std::clamp(kPieces / slices - slot * each, 0, each) * slices;
    const auto bytes = static_cast<std::uint64_t>(c.batch * c.heads * c.terms * share * 32);
    ASSERT_EQ(x.report.bytes_written("terms"), bytes) << t;
    ASSERT_EQ(x.report.bytes_read("terms"), t < c.length ? 0 : bytes) << t;
  }
  EXPECT_TRUE(x.o.padding_is_untouched());
  expect_within_the_bound(x, "steps");
}

}  // namespace cuda_test

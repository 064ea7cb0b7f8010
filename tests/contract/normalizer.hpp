#pragma once

/// \file
/// The laws of a Normalizer, for checks of the library's and of users' normalisers, and an example.

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "mhla/policy/normalizer.hpp"
#include "support/placed.hpp"

namespace mhla::test {

/// A user's normaliser: den = r^2 + 1.
struct SquarePlusOne {
  static constexpr WeightSums sums() { return WeightSums::kToken; }
  template <class A>
  void denominators(const A* r, Index count, A* den) const {
    for (Index t = 0; t < count; ++t) den[t] = r[t] * r[t] + A(1);
  }
  template <class A>
  void slopes(const A* r, Index count, A* slope) const {
    for (Index t = 0; t < count; ++t) slope[t] = A(2) * r[t];
  }
};

/// den[t] depends on r[t] alone, at any position. den may be r, and nothing else is written.
/// \param low,high  range of the sums r
template <class A, Normalizer Z>
void expect_normalizer_laws(const Z& z, double low = -3, double high = 3) {
  Random rng(1);
  for (Index count = 0; count <= 40; ++count) {
    const std::vector<A> r = numbers<A>(rng, count, low, high);
    std::vector<A> expected(r.size());
    for (std::size_t t = 0; t < r.size(); ++t) z.denominators(&r[t], 1, &expected[t]);
    const Placed<A> sums(r, rng.integer(0, 15));
    Placed<A> apart(r, rng.integer(0, 15)), in_place = sums;
    z.denominators(sums.data(), count, apart.data());
    z.denominators(in_place.data(), count, in_place.data());
    ASSERT_TRUE(apart.holds(expected)) << count;
    ASSERT_TRUE(in_place.holds(expected)) << count << ", in place";
    ASSERT_TRUE(sums.holds(r)) << count << ", what is only read";
  }
}

/// slope[t] is d den[t] / d r[t], checked against a central difference. The sums between `low` and
/// `high` must avoid kinks.
template <class A, DifferentiableNormalizer Z>
void expect_slope_laws(const Z& z, double low = -3, double high = 3) {
  const A step = std::cbrt(std::numeric_limits<A>::epsilon());
  Random rng(2);
  for (Index count = 0; count <= 40; ++count) {
    const std::vector<A> r = numbers<A>(rng, count, low, high);
    std::vector<A> slopes(r.size());
    z.slopes(r.data(), count, slopes.data());
    const Placed<A> sums(r, rng.integer(0, 15));
    Placed<A> placed(r, rng.integer(0, 15));
    z.slopes(sums.data(), count, placed.data());
    ASSERT_TRUE(placed.holds(slopes)) << count;
    for (std::size_t t = 0; t < r.size(); ++t) {
      const A ends[] = {r[t] - step, r[t] + step};
      A den[2];
      z.denominators(ends, 2, den);
      const A difference = (den[1] - den[0]) / (ends[1] - ends[0]);
      ASSERT_NEAR(slopes[t], difference, 100 * step * step * (1 + std::abs(slopes[t]))) << r[t];
    }
  }
}

}  // namespace mhla::test

#pragma once

/// \file
/// The laws of a FeatureMap and of its adjoint, for checks of the library's and of users' maps.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <thread>
#include <vector>

#include "mhla/policy/feature_map.hpp"
#include "support/placed.hpp"

namespace mhla::test {

/// A function for Elementwise, as users write it.
struct Square {
  template <class A>
  A operator()(A x) const {
    return x * x;
  }
};

/// phi(x).
template <class A, class Map>
std::vector<A> features_of(const Map& map, const std::vector<A>& x) {
  const Index d = std::ssize(x);
  std::vector<A> y(static_cast<std::size_t>(map.features(d)), kNaN<A>);
  map(x.data(), y.data(), d);
  return y;
}

/// Features depend on the values of x alone. All features are written, and nothing else. Copies of
/// the map and concurrent threads get the same features.
/// \param x  some numbers to try
template <class A, FeatureMap<A> Map>
void expect_feature_map_laws(const Map& map, const std::vector<A>& x) {
  const std::vector<A> y = features_of(map, x);
  const Index d = std::ssize(x);
  for (const A feature : y) ASSERT_FALSE(std::isnan(feature)) << "not written, or NaN of numbers";
  for (Index offset = 0; offset < 16; ++offset) {
    const Placed<A> from(x, (5 * offset + 3) % 16);
    Placed<A> to(std::vector<A>(y.size(), kNaN<A>), offset);
    map(from.data(), to.data(), d);
    ASSERT_TRUE(to.holds(y)) << d << " at " << offset;
    ASSERT_TRUE(from.holds(x)) << "x is only read";
  }
  const Map copy = map;
  std::vector<A> other, third;
  std::thread thread([&] {
    for (int i = 0; i < 20; ++i) other = features_of(map, x);
  });
  for (int i = 0; i < 20; ++i) third = features_of(copy, x);
  thread.join();
  EXPECT_EQ(other, y);
  EXPECT_EQ(third, y);
}

/// The adjoint adds J^T dy to dx, checked against a central difference of the map.
/// \param x  numbers away from kinks of the map
template <class A, DifferentiableFeatureMap<A> Map>
void expect_adjoint_is_derivative(Random& rng, const Map& map, const std::vector<A>& x) {
  const Index d = std::ssize(x);
  const std::vector<A> y = features_of(map, x), dy = numbers<A>(rng, std::ssize(y));
  const std::vector<A> before = numbers<A>(rng, d);
  std::vector<A> dx = before;
  map.adjoint(x.data(), y.data(), dy.data(), dx.data(), d, static_cast<A*>(nullptr));
  const A step = std::cbrt(std::numeric_limits<A>::epsilon());
  for (std::size_t i = 0; i < x.size(); ++i) {
    std::vector<A> above = x, below = x;
    above[i] += step;
    below[i] -= step;
    const std::vector<A> high = features_of(map, above), low = features_of(map, below);
    A expected = 0, size = 1;
    for (std::size_t j = 0; j < y.size(); ++j) {
      expected += dy[j] * (high[j] - low[j]) / (above[i] - below[i]);
      size += std::abs(y[j]);
    }
    EXPECT_NEAR(dx[i] - before[i], expected, 100 * step * step * size) << i << " of " << d;
  }
}

/// Gradients depend on the values alone, and nothing else is written. The gradient of the weights
/// is optional.
/// \param x  some numbers to try
template <class A, DifferentiableFeatureMap<A> Map>
void expect_adjoint_laws(Random& rng, const Map& map, const std::vector<A>& x) {
  const Index d = std::ssize(x);
  const std::vector<A> y = features_of(map, x), dy = numbers<A>(rng, std::ssize(y));
  const std::vector<A> dx = numbers<A>(rng, d), dweights = numbers<A>(rng, map.weights());
  std::vector<A> sum = dx, weights = dweights;
  map.adjoint(x.data(), y.data(), dy.data(), sum.data(), d, weights.data());
  for (Index offset = 0; offset < 16; ++offset) {
    const auto place = [offset](Index times) { return times * (offset + 3) % 16; };
    const Placed<A> px(x, place(1)), py(y, place(5)), pdy(dy, place(3));
    Placed<A> to(dx, place(7)), alone(dx, place(9)), to_weights(dweights, place(11));
    map.adjoint(px.data(), py.data(), pdy.data(), to.data(), d, to_weights.data());
    ASSERT_TRUE(to.holds(sum) && to_weights.holds(weights)) << d << " at " << offset;
    map.adjoint(px.data(), py.data(), pdy.data(), alone.data(), d, static_cast<A*>(nullptr));
    ASSERT_TRUE(alone.holds(sum)) << d << " at " << offset << ", without a place for weights";
  }
}

/// Rows [n, cols] of NaN, followed by more NaN.
template <class A>
struct SpacedRows {
  Index n, cols;
  Matrix<A> all;

  SpacedRows(Index n_, Index cols_)
      : n(n_), cols(cols_), all(Matrix<A>::Constant(n, cols + 3, kNaN<A>)) {}
  explicit SpacedRows(const Matrix<A>& values) : SpacedRows(values.rows(), values.cols()) {
    all.leftCols(cols) = values;
  }
  MatrixView<A> view() { return {all.data(), n, cols, cols + 3}; }
  bool operator==(const SpacedRows& other) const {
    return std::equal(all.data(), all.data() + all.size(), other.all.data(), same_number<A>);
  }
};

/// The tangent of a strip has the bits of one call per token. An absent direction counts as zeros.
template <class A, TangentStripFeatureMap<A> Map>
void expect_strip_tangent_laws(Random& rng, const Map& map, SpacedRows<A>& x, SpacedRows<A>& y,
                               Index n) {
  const Index d = x.view().cols, features = map.features(d);
  const std::vector<A> dweights = numbers<A>(rng, map.weights());
  SpacedRows<A> dx(rng.matrix<A>(n, d));
  for (const bool of_x : {true, false}) {
    for (const A* const weights : {dweights.data(), static_cast<const A*>(nullptr)}) {
      if (!of_x && (weights == nullptr || dweights.empty())) continue;
      SpacedRows<A> dy(n, features), expected(n, features);
      for (Index r = 0; r < n; ++r) {
        map.tangent(x.view().row(r), y.view().row(r), of_x ? dx.view().row(r) : nullptr,
                    expected.view().row(r), d, weights);
      }
      map.strip_tangent(x.view(), y.view(), of_x ? dx.view() : MatrixView<A>(), dy.view(), weights);
      ASSERT_TRUE(dy == expected) << n << " tokens of " << d;
    }
  }
}

/// A strip, its adjoint and its tangent have the bits of one call per token, for any length.
/// Nothing is written outside the rows.
template <class A, DifferentiableStripFeatureMap<A> Map>
void expect_strip_laws(Random& rng, const Map& map, Index d) {
  for (const Index n : {1, 2, 9, 33, 64}) {
    const Index features = map.features(d);
    SpacedRows<A> x(rng.matrix<A>(n, d)), y(n, features), expected(n, features);
    SpacedRows<A> dy(rng.matrix<A>(n, features)), dx(rng.matrix<A>(n, d)), expected_dx = dx;
    std::vector<A> dweights = numbers<A>(rng, map.weights()), expected_dweights = dweights;
    for (Index r = 0; r < n; ++r) {
      A* const row = expected.view().row(r);
      map(static_cast<const A*>(x.view().row(r)), row, d);
      map.adjoint(x.view().row(r), row, dy.view().row(r), expected_dx.view().row(r), d,
                  expected_dweights.data());
    }
    map.strip(x.view(), y.view());
    ASSERT_TRUE(y == expected) << n << " tokens of " << d;
    SpacedRows<A> alone = dx;
    map.strip_adjoint(x.view(), y.view(), dy.view(), dx.view(), dweights.data());
    map.strip_adjoint(x.view(), y.view(), dy.view(), alone.view(), static_cast<A*>(nullptr));
    ASSERT_TRUE(dx == expected_dx && alone == expected_dx) << n << " tokens of " << d;
    ASSERT_EQ(dweights, expected_dweights) << n << " tokens of " << d;
    if constexpr (TangentStripFeatureMap<Map, A>) expect_strip_tangent_laws(rng, map, x, y, n);
  }
}

}  // namespace mhla::test

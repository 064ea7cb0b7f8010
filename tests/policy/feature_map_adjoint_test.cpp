// The adjoints of all feature maps, learned ones too, against differences of their definitions.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "support/any_map.hpp"
#include "support/message_of.hpp"
#include "support/random.hpp"

namespace mhla {
namespace {

struct Square {
  template <class A>
  A operator()(A x) const {
    return x * x;
  }
};
struct Twice {
  template <class A>
  A operator()(A x) const {
    return 2 * x;
  }
};
static_assert(DifferentiableFeatureMap<Elementwise<Square, Twice>, float>);
static_assert(FeatureMap<Elementwise<Square>, float>);
static_assert(!DifferentiableFeatureMap<Elementwise<Square>, float>);
static_assert(DifferentiableFeatureMap<Hedgehog<double>, double>);
static_assert(DifferentiableFeatureMap<T2R<double>, double>);
static_assert(DifferentiableFeatureMap<ElementwiseProduct<double>, double>);
static_assert(DifferentiableFeatureMap<Dpfp, double>);
static_assert(!DifferentiableFeatureMap<T2R<double>, float>);
static_assert(DifferentiableFeatureMap<test::AnyMap<float>, float>);

constexpr Index kKinds = 8;  // of test::random_map

template <class A>
std::vector<A> numbers(test::Random& rng, Index count) {
  const Matrix<A> m = rng.matrix<A>(1, count);
  return {m.data(), m.data() + count};
}

using Wide = long double;

template <class A>
std::vector<Wide> widened(const std::vector<A>& x) {
  return {x.begin(), x.end()};
}

/// The derivative of sum_i dy[i] y[i] after every parameter, by central differences.
template <class F>
std::vector<Wide> differences(std::vector<Wide> parameters, const std::vector<Wide>& dy, F&& y_of) {
  constexpr Wide kStep = 1e-6L;
  const auto total = [&] {
    const std::vector<Wide> y = y_of(parameters);
    Wide sum = 0;
    for (std::size_t i = 0; i < dy.size(); ++i) sum += dy[i] * y[i];
    return sum;
  };
  std::vector<Wide> gradient;
  for (Wide& p : parameters) {
    const Wide at = p;
    p = at + kStep;
    const Wide above = total();
    p = at - kStep;
    gradient.push_back((above - total()) / (2 * kStep));
    p = at;
  }
  return gradient;
}

/// One row of a map, with gradients that already hold numbers.
template <class A>
struct Row {
  test::AnyMap<A> map;
  std::vector<A> x, y, dy, dx, dweights;

  Row(test::Random& rng, Index kind, Index d)
      : map(test::random_map<A>(rng, kind, d)), x(numbers<A>(rng, d)) {
    y.resize(static_cast<std::size_t>(map.features(d)));
    map(x.data(), y.data(), d);
    dy = numbers<A>(rng, std::ssize(y));
    dx = numbers<A>(rng, d);
    dweights = numbers<A>(rng, map.weights());
  }
  void adjoint(bool weights = true) {
    map.adjoint(x.data(), y.data(), dy.data(), dx.data(), std::ssize(x),
                weights ? dweights.data() : nullptr);
  }
};

template <class A>
class FeatureMapAdjoint : public testing::Test {};
using Accumulators = testing::Types<float, double>;
TYPED_TEST_SUITE(FeatureMapAdjoint, Accumulators);

TYPED_TEST(FeatureMapAdjoint, AddsTheDerivativeOfTheDefinition) {
  using A = TypeParam;
  // With numbers in [-1, 1] and D <= 11 no layer's output exceeds 12 and no gradient 12 * 12; each
  // takes fewer than 50 roundings. Differences of steps of 1e-6 are off by 1e-12 times the third
  // derivative and 1e-13 times the value.
  const Wide bound = 50 * 144 * static_cast<Wide>(std::numeric_limits<A>::epsilon()) / 2 + 1e-9L;
  test::Random rng(1);
  for (Index kind = 0; kind < kKinds; ++kind) {
    for (const Index d : {1, 2, 3, 4, 5, 8, 9, 11}) {
      Row<A> row(rng, kind, d);
      const Row<A> before = row;
      row.adjoint();
      const std::vector<Wide> x = widened(row.x), dy = widened(row.dy);
      const std::vector<Wide> weights = widened(test::flat_weights(row.map));
      ASSERT_EQ(std::ssize(weights), row.map.weights());
      const std::vector<Wide> dx = differences(x, dy, [&](const std::vector<Wide>& at) {
        return test::wide_features(row.map, at, weights);
      });
      const std::vector<Wide> dweights = differences(weights, dy, [&](const std::vector<Wide>& at) {
        return test::wide_features(row.map, x, at);
      });
      for (std::size_t i = 0; i < x.size(); ++i) {
        EXPECT_LE(std::abs(row.dx[i] - (before.dx[i] + dx[i])), bound)
            << row.map.name() << " " << d;
      }
      for (std::size_t i = 0; i < weights.size(); ++i) {
        EXPECT_LE(std::abs(row.dweights[i] - (before.dweights[i] + dweights[i])), bound)
            << row.map.name() << " " << d << ", weight " << i;
      }
    }
  }
}

TYPED_TEST(FeatureMapAdjoint, TheDefinitionIsTheMap) {
  using A = TypeParam;
  const Wide bound = 50 * 144 * static_cast<Wide>(std::numeric_limits<A>::epsilon()) / 2;
  test::Random rng(2);
  for (Index kind = 0; kind < kKinds; ++kind) {
    for (const Index d : {1, 3, 8}) {
      const Row<A> row(rng, kind, d);
      // Weights of another map of the same shapes, so that they come from the flat row alone.
      const std::vector<A> weights = numbers<A>(rng, row.map.weights());
      const test::AnyMap<A> map = test::with_weights(row.map, weights);
      EXPECT_EQ(test::flat_weights(map), weights);
      std::vector<A> y(row.y.size());
      map(row.x.data(), y.data(), d);
      const std::vector<Wide> wide = test::wide_features(row.map, widened(row.x), widened(weights));
      ASSERT_EQ(wide.size(), y.size());
      for (std::size_t i = 0; i < y.size(); ++i) EXPECT_LE(std::abs(y[i] - wide[i]), bound);
    }
  }
}

TYPED_TEST(FeatureMapAdjoint, WithoutAPlaceForTheWeightsTheRestIsTheSame) {
  test::Random rng(3);
  for (Index kind = 0; kind < kKinds; ++kind) {
    Row<TypeParam> row(rng, kind, 13), without = row;
    row.adjoint();
    const std::vector<TypeParam> untouched = without.dweights;
    without.adjoint(false);
    EXPECT_EQ(without.dx, row.dx) << row.map.name();
    EXPECT_EQ(without.dweights, untouched);
  }
}

TYPED_TEST(FeatureMapAdjoint, BitsDependOnTheValuesAloneAndNothingElseIsWritten) {
  using A = TypeParam;
  test::Random rng(4);
  for (Index kind = 0; kind < kKinds; ++kind) {
    for (const Index d : {0, 1, 5, 16, 19, 37}) {
      const Row<A> start(rng, kind, d);
      Row<A> row = start;
      row.adjoint();
      for (std::size_t offset = 0; offset < 16; ++offset) {
        const std::size_t steps[] = {offset, (5 * offset + 3) % 16, (3 * offset + 1) % 16,
                                     (7 * offset + 2) % 16, (11 * offset + 5) % 16};
        const auto placed = [](const std::vector<A>& values, std::size_t at) {
          std::vector<A> all(values.size() + 32, A(-7));
          std::copy(values.begin(), values.end(), all.begin() + static_cast<std::ptrdiff_t>(at));
          return all;
        };
        const std::vector<A> x = placed(row.x, steps[0]), y = placed(row.y, steps[1]),
                             dy = placed(row.dy, steps[2]);
        std::vector<A> dx = placed(start.dx, steps[3]), dw = placed(start.dweights, steps[4]);
        row.map.adjoint(x.data() + steps[0], y.data() + steps[1], dy.data() + steps[2],
                        dx.data() + steps[3], d, dw.data() + steps[4]);
        ASSERT_EQ(dx, placed(row.dx, steps[3])) << row.map.name() << " " << d;
        ASSERT_EQ(dw, placed(row.dweights, steps[4])) << row.map.name() << " " << d;
      }
    }
  }
}

/// What the adjoint of a map adds to zeros for dy of ones.
template <class A>
std::vector<A> slopes(const auto& map, const std::vector<A>& x) {
  std::vector<A> y(static_cast<std::size_t>(map.features(std::ssize(x)))), dy(y.size(), A(1));
  std::vector<A> dx(x.size(), A(0));
  map(x.data(), y.data(), std::ssize(x));
  map.adjoint(x.data(), y.data(), dy.data(), dx.data(), std::ssize(x));
  return dx;
}

TYPED_TEST(FeatureMapAdjoint, AtZeroTheSlopeOfTheRectifierIsZero) {
  using A = TypeParam;
  constexpr A kTiny = std::numeric_limits<A>::denorm_min();
  const std::vector<A> x{-A(0), 0, kTiny, -kTiny, 3, -3};
  EXPECT_EQ(slopes(Relu{}, x), (std::vector<A>{0, 0, 1, 0, 1, 0}));
  EXPECT_EQ(slopes(EluPlusOne{}, std::vector<A>{-A(0), 0, 2}), (std::vector<A>{1, 1, 1}));
  EXPECT_EQ(slopes(T2R<A>(Matrix<A>::Zero(2, 2)), std::vector<A>{1, 1}), (std::vector<A>{0, 0}));
  EXPECT_EQ(slopes(Dpfp{1}, std::vector<A>{0, 1})[0], 0);
}

TYPED_TEST(FeatureMapAdjoint, AtTheEndsOfTheRangeSlopesAreTheLimits) {
  using A = TypeParam;
  constexpr A kInfinity = std::numeric_limits<A>::infinity();
  const std::vector<A> x{-kInfinity, -1e4, 1e4, kInfinity};
  EXPECT_EQ(slopes(Relu{}, x), (std::vector<A>{0, 0, 1, 1}));
  EXPECT_EQ(slopes(EluPlusOne{}, x), (std::vector<A>{0, 0, 1, 1}));
  EXPECT_EQ(slopes(Identity{}, x), (std::vector<A>{1, 1, 1, 1}));
  EXPECT_EQ(slopes(Exp{}, x), (std::vector<A>{0, 0, kInfinity, kInfinity}));
}

TYPED_TEST(FeatureMapAdjoint, OfAFunctionUsesTheDerivativeGivenWithIt) {
  using A = TypeParam;
  EXPECT_EQ(slopes(Elementwise(Square{}, Twice{}), std::vector<A>{-3, 0, 4}),
            (std::vector<A>{-6, 0, 8}));
  EXPECT_EQ(Elementwise(Square{}).weights(), 0);
}

TEST(FeatureMapAdjointShapes, WeightsAreCountedWithTheirBiases) {
  const Matrix<float> w = Matrix<float>::Ones(3, 3), b = Matrix<float>::Ones(1, 3);
  EXPECT_EQ(Hedgehog<float>({w, {}}).weights(), 9);
  EXPECT_EQ(Hedgehog<float>({w, b}).weights(), 12);
  EXPECT_EQ(T2R<float>(w).weights(), 9);
  EXPECT_EQ(ElementwiseProduct<float>({w, {}}, {w, b}).weights(), 21);
  EXPECT_EQ(Relu{}.weights() + EluPlusOne{}.weights() + Identity{}.weights() + Exp{}.weights(), 0);
  EXPECT_EQ(Dpfp{}.weights(), 0);
}

TEST(FeatureMapAdjointShapes, TokensOfAnotherWidthAreRejectedBeforeAnythingIsWritten) {
  const Matrix<float> w = Matrix<float>::Ones(3, 3);
  const std::vector<float> x(8, 1.f);
  std::vector<float> dx(8, 5.f), dweights(18, 5.f);
  const auto check = [&](const auto& map, const char* name) {
    EXPECT_EQ(
        test::message_of<shape_error>(
            [&] { map.adjoint(x.data(), x.data(), x.data(), dx.data(), 4, dweights.data()); }),
        std::string("mhla::") + name + ": x has width 4, expected 3 (the width of the weight)");
    EXPECT_EQ(dx, std::vector<float>(8, 5.f));
    EXPECT_EQ(dweights, std::vector<float>(18, 5.f));
  };
  check(Hedgehog<float>({w, {}}), "Hedgehog");
  check(T2R<float>(w), "T2R");
  check(ElementwiseProduct<float>({w, {}}, {w, {}}), "ElementwiseProduct");
}

}  // namespace
}  // namespace mhla

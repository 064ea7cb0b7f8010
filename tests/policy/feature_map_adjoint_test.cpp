// The adjoints of all feature maps, also learned ones, against differences of their definitions.

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "contract/feature_map.hpp"
#include "mhla/policy/feature_map.hpp"
#include "mhla/policy/learned_feature_map.hpp"
#include "support/any_map.hpp"
#include "support/differences.hpp"

namespace mhla {
namespace {

using test::numbers;
using test::Square;

struct Twice {
  template <class A>
  A operator()(A x) const {
    return 2 * x;
  }
};

constexpr Index kKinds = 8;  // of test::random_map

template <class A>
class FeatureMapAdjoint : public testing::Test {};
using Accumulators = testing::Types<float, double>;
TYPED_TEST_SUITE(FeatureMapAdjoint, Accumulators);

/// Gradient of sum_i dy[i] y[i] of a map's definition with respect to x or to the weights.
template <class A>
std::vector<long double> definition_gradient(const test::AnyMap<A>& map, const std::vector<A>& x,
                                             const std::vector<A>& dy, bool of_weights) {
  using Wide = std::vector<long double>;
  Wide at[] = {Wide(x.begin(), x.end()), {}};
  for (const A weight : test::flat_weights(map)) at[1].push_back(weight);
  Wide& parameters = at[of_weights ? 1 : 0];
  test::WideMatrix row = Eigen::Map<test::WideMatrix>(parameters.data(), 1, std::ssize(parameters));
  const test::WideMatrix gradient = test::differences(row, [&] {
    parameters.assign(row.data(), row.data() + row.size());
    const Wide y = test::wide_features(map, at[0], at[1]);
    long double sum = 0;
    for (std::size_t i = 0; i < dy.size(); ++i) sum += dy[i] * y[i];
    return sum;
  });
  return {gradient.data(), gradient.data() + gradient.size()};
}

TYPED_TEST(FeatureMapAdjoint, AddsTheDerivativeOfTheDefinition) {
  using A = TypeParam;
  // With numbers in [-1, 1] and D <= 11, layer outputs are at most 12 and gradients at most
  // 12 * 12. Each takes fewer than 50 roundings. Differences with steps of 1e-6 are off by 1e-12
  // times the third derivative and 1e-13 times the value.
  const long double bound = 50 * 144 * test::kRoundoff<A> + 1e-9L;
  test::Random rng(1);
  for (Index kind = 0; kind < kKinds; ++kind) {
    for (const Index d : {1, 2, 3, 4, 5, 8, 9, 11}) {
      const test::AnyMap<A> map = test::random_map<A>(rng, kind, d);
      const std::vector<A> x = numbers<A>(rng, d), y = test::features_of(map, x);
      const std::vector<A> dy = numbers<A>(rng, std::ssize(y));
      const std::vector<A> before[] = {numbers<A>(rng, d), numbers<A>(rng, map.weights())};
      std::vector<A> after[] = {before[0], before[1]};
      map.adjoint(x.data(), y.data(), dy.data(), after[0].data(), d, after[1].data());
      for (const bool of_weights : {false, true}) {
        const auto gradient = definition_gradient(map, x, dy, of_weights);
        ASSERT_EQ(gradient.size(), after[of_weights].size());
        for (std::size_t i = 0; i < gradient.size(); ++i) {
          EXPECT_LE(std::abs(after[of_weights][i] - (before[of_weights][i] + gradient[i])), bound)
              << map.name() << " " << d << (of_weights ? ", weight " : ", x ") << i;
        }
      }
    }
  }
}

TYPED_TEST(FeatureMapAdjoint, LawsHold) {
  using A = TypeParam;
  test::Random rng(2);
  for (const Index d : {0, 1, 5, 16, 19, 37}) {
    for (Index kind = 0; kind < kKinds; ++kind) {
      if (kind == 6 && d == 0) continue;  // softmax over no elements
      const auto map = test::random_map<A>(rng, kind, d);
      SCOPED_TRACE(map.name());
      test::expect_adjoint_laws(rng, map, numbers<A>(rng, d));
      if (kind == 4) continue;  // its kinks may be anywhere
      test::expect_adjoint_is_derivative(rng, map, numbers<A>(rng, d, 0.1, 1));
      test::expect_adjoint_is_derivative(rng, map, numbers<A>(rng, d, -1, -0.1));
    }
    const Elementwise square(Square{}, Twice{});
    test::expect_adjoint_laws(rng, square, numbers<A>(rng, d, -3, 3));
    test::expect_adjoint_is_derivative(rng, square, numbers<A>(rng, d, -3, 3));
  }
}

/// Returns the numbers that the adjoint of a map adds to zeros for dy of ones.
template <class A>
std::vector<A> slopes(const auto& map, const std::vector<A>& x) {
  const std::vector<A> y = test::features_of(map, x), dy(y.size(), A(1));
  std::vector<A> dx(x.size(), A(0));
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

TEST(FeatureMapWeights, MapsOfOneNumberHaveNone) {
  EXPECT_EQ(Relu{}.weights() + EluPlusOne{}.weights() + Identity{}.weights() + Exp{}.weights(), 0);
  EXPECT_EQ(Elementwise(Square{}).weights(), 0);
}

}  // namespace
}  // namespace mhla

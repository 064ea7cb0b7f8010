#include "mhla/policy/feature_map.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "contract/feature_map.hpp"
#include "support/any_map.hpp"

namespace mhla {
namespace {

using test::features_of;
using test::numbers;
using test::Square;

struct WrongResult {
  Index features(Index d) const { return d; }
  void operator()(const float*, double*, Index) const {}
};
static_assert(!FeatureMap<WrongResult, float> && !FeatureMap<Relu, Eigen::half>);
static_assert(!FeatureMap<Hedgehog<double>, float>);
static_assert(!DifferentiableFeatureMap<Elementwise<Square>, float>);

constexpr Index kElementwise = 4;  // of the maps of test::random_map, the first ones

template <class A>
class FeatureMapOf : public testing::Test {
 public:
  static constexpr A kInfinity = std::numeric_limits<A>::infinity();
};
using Accumulators = testing::Types<float, double>;
TYPED_TEST_SUITE(FeatureMapOf, Accumulators);

TYPED_TEST(FeatureMapOf, IsItsDefinitionWithinTheDerivedBound) {
  using A = TypeParam;
  test::Random rng(1);
  for (Index kind = 0; kind < kElementwise; ++kind) {
    for (const double size : {1e-6, 1.0, 10.0, 80.0}) {
      const test::AnyMap<A> map = test::random_map<A>(rng, kind, 1000);
      const std::vector<A> x = numbers<A>(rng, 1000, -size, size), y = features_of(map, x);
      const auto expected = test::reference_features<long double>(
          map, std::vector<long double>(x.begin(), x.end()), test::kRoundoff<A>);
      ASSERT_EQ(y.size(), expected.value.size());
      for (std::size_t i = 0; i < y.size(); ++i) {
        EXPECT_LE(std::abs(y[i] - expected.value[i]), expected.error[i])
            << map.name() << " of " << x[i];
      }
    }
  }
}

TYPED_TEST(FeatureMapOf, LawsHoldAndEveryFeatureDependsOnItsNumberAlone) {
  using A = TypeParam;
  test::Random rng(2);
  const auto check = [&rng](const auto& map, Index d) {
    const std::vector<A> x = numbers<A>(rng, d, -3, 3), y = features_of(map, x);
    test::expect_feature_map_laws(map, x);
    ASSERT_EQ(y.size(), x.size());
    for (std::size_t i = 0; i < x.size(); ++i) {
      ASSERT_EQ(features_of(map, std::vector{x[i]})[0], y[i]);
      std::vector<A> poisoned = x;
      poisoned[i] = test::kNaN<A>;
      const std::vector<A> touched = features_of(map, poisoned);
      for (std::size_t j = 0; j < x.size(); ++j) {
        ASSERT_TRUE(i == j ? std::isnan(touched[j]) : touched[j] == y[j]) << i << ", " << j;
      }
    }
  };
  for (Index d = 0; d <= 40; ++d) {
    for (Index kind = 0; kind < kElementwise; ++kind) check(test::random_map<A>(rng, kind, d), d);
    check(Elementwise(Square{}), d);
  }
}

TYPED_TEST(FeatureMapOf, ReluOfEverySpecialNumberIsTheSameInEveryPlace) {
  using A = TypeParam;
  using Limits = std::numeric_limits<A>;
  const A pairs[][2] = {{-A(0), 0},
                        {this->kInfinity, this->kInfinity},
                        {-this->kInfinity, 0},
                        {Limits::denorm_min(), Limits::denorm_min()},
                        {-Limits::denorm_min(), 0},
                        {Limits::max(), Limits::max()},
                        {Limits::lowest(), 0},
                        {-test::kNaN<A>, test::kNaN<A>}};
  for (std::size_t d = 1; d <= 35; ++d) {
    for (std::size_t place = 0; place < d; ++place) {
      for (const auto& [special, feature] : pairs) {
        std::vector<A> x(d, -2), expected(d, 0);
        x[place] = special;
        expected[place] = feature;
        const std::vector<A> y = features_of(Relu{.eps = 0}, x);
        for (std::size_t i = 0; i < d; ++i) {
          ASSERT_TRUE(test::same_number(y[i], expected[i])) << special << " at " << place;
        }
      }
    }
  }
  EXPECT_EQ(features_of(Relu{.eps = 0.5}, std::vector<A>{-3, 0, 2, this->kInfinity}),
            (std::vector<A>{0.5, 0.5, 2.5, this->kInfinity}));
  EXPECT_EQ(features_of(Relu{}, std::vector<A>{0})[0], static_cast<A>(1e-6));
}

TYPED_TEST(FeatureMapOf, EndsOfTheRangeAndZeroAreExact) {
  using A = TypeParam;
  constexpr A inf = std::numeric_limits<A>::infinity();
  const std::vector<A> x{-inf, -1e4, -A(0), 0, 1e4, inf};
  EXPECT_EQ(features_of(EluPlusOne{}, x), (std::vector<A>{0, 0, 1, 1, 10001, inf}));
  EXPECT_EQ(features_of(Exp{}, x), (std::vector<A>{0, 0, 1, 1, inf, inf}));
  const std::vector<A> special{-A(0), std::numeric_limits<A>::denorm_min(), inf, -inf};
  const std::vector<A> y = features_of(Identity{}, special);
  EXPECT_EQ(std::memcmp(special.data(), y.data(), sizeof(A) * y.size()), 0);
}

TYPED_TEST(FeatureMapOf, ElementwiseTakesAnyFunctionOfOneNumber) {
  using A = TypeParam;
  EXPECT_EQ(features_of(Elementwise(Square{}), std::vector<A>{-3, 4}), (std::vector<A>{9, 16}));
  Elementwise map([](auto x) { return x < 0 ? 1 : 2; });  // an int result is converted
  EXPECT_EQ(features_of(map, std::vector<A>{-3, 3}), (std::vector<A>{1, 2}));
}

}  // namespace
}  // namespace mhla

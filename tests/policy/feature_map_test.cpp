#include "mhla/policy/feature_map.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>
#include <vector>

#include "support/random.hpp"

namespace mhla {
namespace {

struct Square {
  template <class A>
  A operator()(A x) const {
    return x * x;
  }
};
struct WrongResult {
  Index features(Index d) const { return d; }
  void operator()(const float*, double*, Index) const {}
};
static_assert(FeatureMap<Elementwise<Square>, float> && FeatureMap<Elementwise<Square>, double>);
static_assert(!FeatureMap<WrongResult, float> && !FeatureMap<int, float>);
static_assert(!FeatureMap<Relu, Eigen::half>);

/// A map and an accumulator to test it in.
template <class M, class S>
struct In {
  using Map = M;
  using A = S;
};

template <class A>
constexpr long double kRoundoff = std::numeric_limits<A>::epsilon() / 2;

/// A definition of a map by itself: phi(x), and a bound of the error of the library's.
struct Value {
  long double exact, bound;
};

template <class A>
Value exponential_of(long double x) {
  const long double exact = std::exp(x);
  return {exact, exact < std::numeric_limits<A>::min()
                     ? exact
                     : detail::kExponentialRoundoffs * kRoundoff<A> * exact};
}

template <class A>
Value value_of(const Relu& map, long double x) {
  // eps is rounded to A, and so is the sum.
  const long double y = (x > 0 ? x : 0) + static_cast<long double>(map.eps);
  return {y, 2.01L * kRoundoff<A> * y};
}
template <class A>
Value value_of(EluPlusOne, long double x) {
  if (x > 0) return {x + 1, kRoundoff<A> * (x + 1)};
  return exponential_of<A>(x);
}
template <class A>
Value value_of(Identity, long double x) {
  return {x, 0};
}
template <class A>
Value value_of(Exp, long double x) {
  return exponential_of<A>(x);
}
template <class A>
Value value_of(const Elementwise<Square>&, long double x) {
  return {x * x, kRoundoff<A> * x * x};
}

template <class M>
M make() {
  if constexpr (std::is_same_v<M, Elementwise<Square>>) {
    return Elementwise(Square{});
  } else {
    return M{};
  }
}

template <class Map, class A>
std::vector<A> phi(const Map& map, const std::vector<A>& x) {
  std::vector<A> y(x.size(), std::numeric_limits<A>::quiet_NaN());
  map(x.data(), y.data(), std::ssize(x));
  return y;
}

template <class A>
std::vector<A> numbers(std::uint64_t seed, Index count, double size) {
  test::Random rng(seed);
  std::vector<A> x(static_cast<std::size_t>(count));
  for (A& value : x) value = static_cast<A>(rng.uniform(-size, size));
  return x;
}

template <class T>
class ElementwiseMap : public testing::Test {};
using Maps =
    testing::Types<In<Relu, float>, In<Relu, double>, In<EluPlusOne, float>, In<EluPlusOne, double>,
                   In<Identity, float>, In<Identity, double>, In<Exp, float>, In<Exp, double>,
                   In<Elementwise<Square>, float>, In<Elementwise<Square>, double>>;
TYPED_TEST_SUITE(ElementwiseMap, Maps);

TYPED_TEST(ElementwiseMap, IsItsDefinitionWithinTheDerivedBound) {
  using A = typename TypeParam::A;
  const auto map = make<typename TypeParam::Map>();
  for (const double size : {1e-6, 1.0, 10.0, 80.0}) {
    const std::vector<A> x = numbers<A>(1, 1000, size), y = phi(map, x);
    for (std::size_t i = 0; i < x.size(); ++i) {
      const Value value = value_of<A>(map, x[i]);
      EXPECT_LE(std::abs(y[i] - value.exact), value.bound) << "x = " << x[i];
    }
  }
}

TYPED_TEST(ElementwiseMap, HasAsManyFeaturesAsElements) {
  const auto map = make<typename TypeParam::Map>();
  for (const Index d : {0, 1, 7, 64}) EXPECT_EQ(map.features(d), d);
}

TYPED_TEST(ElementwiseMap, BitsDependOnTheValueAloneAndNothingElseIsWritten) {
  using A = typename TypeParam::A;
  const auto map = make<typename TypeParam::Map>();
  for (Index d = 0; d <= 40; ++d) {
    const std::vector<A> x = numbers<A>(2, d, 3), y = phi(map, x);
    for (std::size_t i = 0; i < x.size(); ++i) ASSERT_EQ(phi(map, std::vector{x[i]})[0], y[i]);
    for (std::size_t offset = 0; offset < 16; ++offset) {
      const std::size_t from = (5 * offset + 3) % 16;
      std::vector<A> in(x.size() + 32, A(9)), out(x.size() + 32, A(-7)), expected = out;
      std::copy(x.begin(), x.end(), in.data() + from);
      std::copy(y.begin(), y.end(), expected.data() + offset);
      map(in.data() + from, out.data() + offset, d);
      ASSERT_EQ(out, expected) << d << " at " << offset;
    }
  }
}

TYPED_TEST(ElementwiseMap, ANaNStaysNaNAndStaysInItsPlace) {
  using A = typename TypeParam::A;
  const auto map = make<typename TypeParam::Map>();
  for (std::size_t d = 1; d <= 20; ++d) {
    for (std::size_t place = 0; place < d; ++place) {
      std::vector<A> x(d, A(0.5));
      const std::vector<A> clean = phi(map, x);
      x[place] = std::numeric_limits<A>::quiet_NaN();
      const std::vector<A> y = phi(map, x);
      for (std::size_t i = 0; i < d; ++i) {
        if (i == place) {
          EXPECT_TRUE(std::isnan(y[i]));
        } else {
          EXPECT_EQ(y[i], clean[i]);
        }
      }
    }
  }
}

template <class A>
class FeatureMapOf : public testing::Test {
 public:
  static constexpr A kInfinity = std::numeric_limits<A>::infinity();
};
using Accumulators = testing::Types<float, double>;
TYPED_TEST_SUITE(FeatureMapOf, Accumulators);

TYPED_TEST(FeatureMapOf, ReluAddsItsEpsToEveryFeature) {
  const std::vector<TypeParam> x{-this->kInfinity, -2, -TypeParam(0), 0, 2, this->kInfinity};
  EXPECT_EQ(phi(Relu{.eps = 0}, x), (std::vector<TypeParam>{0, 0, 0, 0, 2, this->kInfinity}));
  EXPECT_EQ(phi(Relu{.eps = 0.5}, x),
            (std::vector<TypeParam>{0.5, 0.5, 0.5, 0.5, 2.5, this->kInfinity}));
  EXPECT_EQ(phi(Relu{}, std::vector<TypeParam>{0})[0], static_cast<TypeParam>(1e-6));
}

TYPED_TEST(FeatureMapOf, ReluOfEverySpecialNumberIsTheSameInEveryPlace) {
  using Limits = std::numeric_limits<TypeParam>;
  struct Pair {
    TypeParam x, y;
  };
  const Pair pairs[] = {{Limits::quiet_NaN(), Limits::quiet_NaN()},
                        {-Limits::quiet_NaN(), Limits::quiet_NaN()},
                        {-TypeParam(0), 0},
                        {this->kInfinity, this->kInfinity},
                        {-this->kInfinity, 0},
                        {Limits::denorm_min(), Limits::denorm_min()},
                        {-Limits::denorm_min(), 0},
                        {Limits::max(), Limits::max()},
                        {Limits::lowest(), 0}};
  for (std::size_t d = 1; d <= 70; ++d) {
    for (std::size_t place = 0; place < d; ++place) {
      for (const Pair pair : pairs) {
        std::vector<TypeParam> x(d, -2), expected(d, 0);
        x[place] = pair.x;
        expected[place] = pair.y;
        std::vector<TypeParam> y = phi(Relu{.eps = 0}, x);
        if (std::isnan(pair.y)) {
          ASSERT_TRUE(std::isnan(y[place])) << place << " of " << d;
          y[place] = expected[place] = 0;
        }
        ASSERT_EQ(std::memcmp(y.data(), expected.data(), sizeof(TypeParam) * d), 0)
            << pair.x << " at " << place << " of " << d;
      }
    }
  }
}

TYPED_TEST(FeatureMapOf, EluPlusOneIsOneAtZeroAndNeverNegative) {
  const std::vector<TypeParam> x{-this->kInfinity, -1e4, -TypeParam(0), 0, 2, this->kInfinity};
  EXPECT_EQ(phi(EluPlusOne{}, x), (std::vector<TypeParam>{0, 0, 1, 1, 3, this->kInfinity}));
}

TYPED_TEST(FeatureMapOf, ExpOverflowsToInfinityAndVanishesBelowTheNormalRange) {
  const std::vector<TypeParam> x{-this->kInfinity, -1e4, 0, 1e4, this->kInfinity};
  EXPECT_EQ(phi(Exp{}, x), (std::vector<TypeParam>{0, 0, 1, this->kInfinity, this->kInfinity}));
}

TYPED_TEST(FeatureMapOf, IdentityKeepsEveryBit) {
  using Limits = std::numeric_limits<TypeParam>;
  const std::vector<TypeParam> x{-TypeParam(0), Limits::denorm_min(), Limits::max(),
                                 -this->kInfinity};
  const std::vector<TypeParam> y = phi(Identity{}, x);
  EXPECT_EQ(std::memcmp(x.data(), y.data(), sizeof(TypeParam) * x.size()), 0);
}

TYPED_TEST(FeatureMapOf, ElementwiseTakesAnyFunctionOfOneNumber) {
  Elementwise map([](auto x) { return x < 0 ? 1 : 2; });  // an int result is converted
  static_assert(FeatureMap<decltype(map), TypeParam>);
  EXPECT_EQ(phi(map, std::vector<TypeParam>{-3, 3}), (std::vector<TypeParam>{1, 2}));
}

}  // namespace
}  // namespace mhla

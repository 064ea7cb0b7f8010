#include "mhla/policy/learned_feature_map.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "support/message_of.hpp"
#include "support/random.hpp"

namespace mhla {
namespace {

static_assert(FeatureMap<Hedgehog<double>, double> && FeatureMap<T2R<double>, double>);
static_assert(FeatureMap<Dpfp, double> && FeatureMap<ElementwiseProduct<double>, double>);
static_assert(!FeatureMap<Hedgehog<double>, float>);

template <class A>
constexpr long double kRoundoff = std::numeric_limits<A>::epsilon() / 2;

/// Bound of m roundings in a row, relative to the sum of magnitudes.
template <class A>
long double roundings(Index m) {
  const long double mu = static_cast<long double>(m) * kRoundoff<A>;
  return mu / (1 - mu);
}

template <class A>
std::vector<A> phi(const auto& map, const std::vector<A>& x) {
  const auto features = static_cast<std::size_t>(map.features(std::ssize(x)));
  std::vector<A> y(features, std::numeric_limits<A>::quiet_NaN());
  map(x.data(), y.data(), std::ssize(x));
  return y;
}

template <class A>
std::vector<A> numbers(test::Random& rng, Index count) {
  const Matrix<A> m = rng.matrix<A>(1, count, -2, 2);
  return {m.data(), m.data() + count};
}

/// Output j of a dense layer for x, and the sum of magnitudes of its terms.
struct Output {
  long double value, size;
};
template <class A>
Output output(const DenseWeights<A>& dense, const std::vector<A>& x, Index j) {
  Output y{0, 0};
  for (Index i = 0; i < std::ssize(x); ++i) {
    const long double term =
        static_cast<long double>(dense.weight(j, i)) * x[static_cast<std::size_t>(i)];
    y.value += term;
    y.size += std::abs(term);
  }
  if (dense.bias.size() == 0) return y;
  return {y.value + dense.bias(j), y.size + std::abs(dense.bias(j))};
}

/// Weights of width d; a bias as a column, as a row or none.
template <class A>
DenseWeights<A> weights(test::Random& rng, Index d) {
  const Matrix<A> biases[] = {rng.matrix<A>(1, d), rng.matrix<A>(d, 1), {}};
  return {rng.matrix<A>(d, d), biases[rng.integer(0, 2)]};
}

template <class A>
class LearnedMap : public testing::Test {};
using Accumulators = testing::Types<float, double>;
TYPED_TEST_SUITE(LearnedMap, Accumulators);

TYPED_TEST(LearnedMap, HedgehogIsTheSoftmaxOfBothSigns) {
  using A = TypeParam;
  test::Random rng(1);
  for (Index d = 1; d <= 40; ++d) {
    const DenseWeights<A> dense = weights<A>(rng, d);
    const std::vector<A> x = numbers<A>(rng, d), y = phi(Hedgehog<A>(dense), x);
    std::vector<long double> z, error;  // arguments of the softmax, and bounds of their errors
    for (const int sign : {2, -2}) {
      for (Index j = 0; j < d; ++j) {
        const Output o = output(dense, x, j);
        z.push_back(sign * o.value);
        error.push_back(2 * roundings<A>(d + 1) * o.size);
      }
    }
    const long double largest = *std::max_element(z.begin(), z.end());
    const long double worst = *std::max_element(error.begin(), error.end());
    long double total = 0;
    for (const long double a : z) total += std::exp(a - largest);
    for (std::size_t j = 0; j < z.size(); ++j) {
      const long double exact = std::exp(z[j] - largest) / total;
      // Subtracting the computed largest rounds; it is 2 worst at most from the exact one.
      const auto argument = [&](std::size_t i) {
        return error[i] + kRoundoff<A> * (largest - z[i] + error[i] + worst);
      };
      long double shift = argument(j);
      for (std::size_t i = 0; i < z.size(); ++i) shift = std::max(shift, argument(i));
      // The sum, the division and two exponentials.
      const Index rounded = 2 * d + 2 * static_cast<Index>(detail::kExponentialRoundoffs);
      const long double relative = std::expm1(argument(j) + shift + roundings<A>(rounded));
      EXPECT_LE(std::abs(y[j] - exact),
                relative * exact + 4 * static_cast<long double>(std::numeric_limits<A>::min()));
    }
  }
}

TYPED_TEST(LearnedMap, HedgehogFeaturesSumToOneHoweverLargeTheInput) {
  using A = TypeParam;
  test::Random rng(2);
  for (const double size : {1.0, 1e3, 1e30}) {
    const Hedgehog<A> map({rng.matrix<A>(9, 9), {}});
    std::vector<A> x = numbers<A>(rng, 9);
    for (A& value : x) value *= static_cast<A>(size);
    long double total = 0;
    for (const A y : phi(map, x)) {
      EXPECT_GE(y, 0);
      total += y;
    }
    EXPECT_LE(std::abs(total - 1), roundings<A>(2 * 9 + 1));  // of the sum and the divisions
  }
}

TYPED_TEST(LearnedMap, T2RIsTheRectifiedProduct) {
  using A = TypeParam;
  test::Random rng(3);
  for (Index d = 0; d <= 40; ++d) {
    const DenseWeights<A> dense{rng.matrix<A>(d, d), {}};
    const std::vector<A> x = numbers<A>(rng, d), y = phi(T2R<A>(dense.weight), x);
    for (Index j = 0; j < d; ++j) {
      const Output o = output(dense, x, j);
      const long double exact = std::max(o.value, 0.0L);
      EXPECT_LE(std::abs(y[static_cast<std::size_t>(j)] - exact), roundings<A>(d) * o.size);
      EXPECT_GE(y[static_cast<std::size_t>(j)], 0);
    }
  }
}

TYPED_TEST(LearnedMap, ElementwiseProductMultipliesTwoLayers) {
  using A = TypeParam;
  test::Random rng(4);
  for (Index d = 0; d <= 40; ++d) {
    const DenseWeights<A> first = weights<A>(rng, d), second = weights<A>(rng, d);
    const std::vector<A> x = numbers<A>(rng, d), y = phi(ElementwiseProduct<A>(first, second), x);
    for (Index j = 0; j < d; ++j) {
      const Output a = output(first, x, j), b = output(second, x, j);
      EXPECT_LE(std::abs(y[static_cast<std::size_t>(j)] - a.value * b.value),
                roundings<A>(2 * (d + 1) + 1) * a.size * b.size);
    }
  }
}

TYPED_TEST(LearnedMap, DpfpMultipliesTheRectifiedHalvesWithTheirRolls) {
  using A = TypeParam;
  test::Random rng(5);
  for (Index d = 0; d <= 12; ++d) {
    for (int nu = 1; nu <= 5; ++nu) {
      const std::vector<A> x = numbers<A>(rng, d), y = phi(Dpfp{nu}, x);
      const auto width = static_cast<std::size_t>(2 * d);
      ASSERT_EQ(y.size(), width * static_cast<std::size_t>(nu));
      std::vector<A> u;
      for (const A value : x) u.push_back(std::max(value, A(0)));
      for (const A value : x) u.push_back(-std::max(value, A(0)));
      std::vector<A> rolled = u;
      for (std::size_t j = 0; j < static_cast<std::size_t>(nu); ++j) {
        // roll(u, j + 1): once more to the right, the last element comes first.
        if (d > 0) std::rotate(rolled.begin(), rolled.end() - 1, rolled.end());
        for (std::size_t i = 0; i < width; ++i) EXPECT_EQ(y[j * width + i], u[i] * rolled[i]);
      }
    }
  }
}

TYPED_TEST(LearnedMap, BitsDependOnTheValuesAlone) {
  using A = TypeParam;
  test::Random rng(6);
  const auto check = [&rng](const auto& map, Index d) {
    const std::vector<A> x = numbers<A>(rng, d), y = phi(map, x);
    for (std::size_t offset = 0; offset < 16; ++offset) {
      std::vector<A> in(x.size() + 16, A(9)), out(y.size() + 32, A(-7)), expected = out;
      std::copy(x.begin(), x.end(), in.data() + offset);
      const std::size_t to = (5 * offset + 3) % 16;
      std::copy(y.begin(), y.end(), expected.data() + to);
      map(in.data() + offset, out.data() + to, d);
      EXPECT_EQ(out, expected) << d << " at " << offset;
    }
  };
  for (const Index d : {1, 5, 16, 19}) {
    check(Hedgehog<A>(weights<A>(rng, d)), d);
    check(T2R<A>(rng.matrix<A>(d, d)), d);
    check(ElementwiseProduct<A>(weights<A>(rng, d), weights<A>(rng, d)), d);
    check(Dpfp{3}, d);
  }
}

TEST(LearnedMapShapes, FeaturesAreCountedByTheTableOfTheHeader) {
  const Matrix<float> w = Matrix<float>::Ones(3, 3);
  EXPECT_EQ(Hedgehog<float>({w, {}}).features(3), 6);
  EXPECT_EQ(T2R<float>(w).features(3), 3);
  EXPECT_EQ(Dpfp{}.features(3), 24);
  EXPECT_EQ(Dpfp{1}.features(3), 6);
  EXPECT_EQ(ElementwiseProduct<float>({w, {}}, {w, {}}).features(3), 3);
}

TEST(LearnedMapShapes, MapsKeepTheirWeights) {
  test::Random rng(7);
  const auto a = weights<float>(rng, 3), b = weights<float>(rng, 3);
  EXPECT_EQ(Hedgehog<float>(a).dense().weight, a.weight);
  EXPECT_EQ(T2R<float>(a.weight).dense().bias.size(), 0);
  EXPECT_EQ(ElementwiseProduct<float>(a, b).first().weight, a.weight);
  EXPECT_EQ(ElementwiseProduct<float>(a, b).second().weight, b.weight);
}

TEST(LearnedMapShapes, WeightsThatAreNotSquareAreRejected) {
  const Matrix<float> wide(2, 3), square(3, 3);
  const auto text = [](const char* name) {
    return std::string("mhla::") + name +
           ": weight has shape [2, 3], expected a square matrix [D, D]";
  };
  EXPECT_EQ(test::message_of<shape_error>([&] { Hedgehog<float>({wide, {}}); }), text("Hedgehog"));
  EXPECT_EQ(test::message_of<shape_error>([&] { T2R<float>{wide}; }), text("T2R"));
  for (const bool first : {false, true}) {
    EXPECT_EQ(test::message_of<shape_error>([&] {
                ElementwiseProduct<float>({first ? wide : square, {}}, {first ? square : wide, {}});
              }),
              text("ElementwiseProduct"));
  }
}

TEST(LearnedMapShapes, BiasesThatDoNotFitAreRejected) {
  const Matrix<float> w(3, 3), bias(1, 2);
  const auto text = [](const char* name) {
    return std::string("mhla::") + name + ": bias has 2 elements, expected 3 or none";
  };
  EXPECT_EQ(test::message_of<shape_error>([&] { Hedgehog<float>({w, bias}); }), text("Hedgehog"));
  EXPECT_EQ(test::message_of<shape_error>([&] {
              ElementwiseProduct<float>({w, {}}, {w, bias});
            }),
            text("ElementwiseProduct"));
}

TEST(LearnedMapShapes, LayersOfTwoSizesAreRejected) {
  const Matrix<float> three(3, 3), four(4, 4);
  EXPECT_THROW(ElementwiseProduct<float>({three, {}}, {four, {}}), shape_error);
}

TEST(LearnedMapShapes, TokensOfAnotherWidthAreRejectedBeforeAnythingIsWritten) {
  const Matrix<float> w = Matrix<float>::Ones(3, 3);
  const std::vector<float> x(4, 1.f);
  std::vector<float> y(8, 5.f);
  const auto check = [&](const auto& map, const char* name) {
    EXPECT_EQ(
        test::message_of<shape_error>([&] { map(x.data(), y.data(), 4); }),
        std::string("mhla::") + name + ": x has width 4, expected 3 (the width of the weight)");
    EXPECT_EQ(y, std::vector<float>(8, 5.f));
  };
  check(Hedgehog<float>({w, {}}), "Hedgehog");
  check(T2R<float>(w), "T2R");
  check(ElementwiseProduct<float>({w, {}}, {w, {}}), "ElementwiseProduct");
}

}  // namespace
}  // namespace mhla

#include "mhla/policy/learned_feature_map.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "contract/feature_map.hpp"
#include "support/any_map.hpp"
#include "support/message_of.hpp"

namespace mhla {
namespace {

using test::features_of;
using test::numbers;

constexpr Index kLearned[] = {4, 5, 6, 7};  // of the maps of test::random_map

template <class A>
class LearnedMap : public testing::Test {};
using Accumulators = testing::Types<float, double>;
TYPED_TEST_SUITE(LearnedMap, Accumulators);

TYPED_TEST(LearnedMap, IsItsDefinitionWithinTheDerivedBound) {
  using A = TypeParam;
  test::Random rng(1);
  for (const Index kind : kLearned) {
    for (Index d = 1; d <= 40; ++d) {
      const test::AnyMap<A> map = test::random_map<A>(rng, kind, d);
      const std::vector<A> x = numbers<A>(rng, d, -2, 2), y = features_of(map, x);
      const auto expected = test::reference_features<long double>(
          map, std::vector<long double>(x.begin(), x.end()), test::kRoundoff<A>);
      ASSERT_EQ(y.size(), expected.value.size()) << map.name();
      for (std::size_t i = 0; i < y.size(); ++i) {
        EXPECT_LE(std::abs(y[i] - expected.value[i]), expected.error[i]) << map.name() << " " << d;
      }
    }
  }
}

TYPED_TEST(LearnedMap, LawsHold) {
  using A = TypeParam;
  test::Random rng(2);
  for (const Index kind : kLearned) {
    for (const Index d : {1, 5, 16, 19}) {
      const std::vector<A> x = numbers<A>(rng, d, -2, 2);
      test::expect_feature_map_laws(test::random_map<A>(rng, kind, d), x);
    }
    for (const Index d : {1, 5, 19, 64, 70}) {
      test::expect_strip_laws<A>(rng, test::random_map<A>(rng, kind, d), d);
    }
  }
  const std::vector<A> none;
  EXPECT_TRUE(features_of(T2R<A>(Matrix<A>()), none).empty());
  EXPECT_TRUE(features_of(ElementwiseProduct<A>({}, {}), none).empty());
  EXPECT_TRUE(features_of(Dpfp{3}, none).empty());
}

TYPED_TEST(LearnedMap, HedgehogFeaturesSumToOneHoweverLargeTheInput) {
  using A = TypeParam;
  test::Random rng(3);
  for (const double size : {1.0, 1e3, 1e30}) {
    const Hedgehog<A> map({rng.matrix<A>(9, 9), {}});
    long double total = 0;
    for (const A y : features_of(map, numbers<A>(rng, 9, -size, size))) {
      EXPECT_GE(y, 0);
      total += y;
    }
    EXPECT_LE(std::abs(total - 1), test::roundings<A>(2 * 9 + 1));  // the sum, divisions
  }
}

TYPED_TEST(LearnedMap, BiasesMayBeRowsOrColumns) {
  using A = TypeParam;
  test::Random rng(4);
  const Matrix<A> w = rng.matrix<A>(5, 5), column = rng.matrix<A>(5, 1), row = column.transpose();
  const std::vector<A> x = numbers<A>(rng, 5);
  EXPECT_EQ(features_of(Hedgehog<A>({w, column}), x), features_of(Hedgehog<A>({w, row}), x));
  EXPECT_NE(features_of(Hedgehog<A>({w, column}), x), features_of(Hedgehog<A>({w, {}}), x));
}

TEST(LearnedMapShapes, FeaturesAndWeightsAreCountedAndKept) {
  test::Random rng(5);
  const auto w = rng.matrix<float>(3, 3), v = rng.matrix<float>(3, 3), b = rng.matrix<float>(1, 3);
  const Hedgehog<float> hedgehog({w, b}), plain({w, {}});
  const T2R<float> t2r(w);
  const ElementwiseProduct<float> product({w, {}}, {v, b});
  EXPECT_EQ(hedgehog.features(3), 6);
  EXPECT_EQ(t2r.features(3), 3);
  EXPECT_EQ(product.features(3), 3);
  EXPECT_EQ(Dpfp{}.features(3), 24);
  EXPECT_EQ(Dpfp{1}.features(3), 6);
  EXPECT_EQ(hedgehog.weights(), 12);
  EXPECT_EQ(plain.weights(), 9);
  EXPECT_EQ(t2r.weights(), 9);
  EXPECT_EQ(product.weights(), 21);
  EXPECT_EQ(Dpfp{}.weights(), 0);
  EXPECT_EQ(hedgehog.dense().weight, w);
  EXPECT_EQ(hedgehog.dense().bias, b);
  EXPECT_EQ(t2r.dense().bias.size(), 0);
  EXPECT_EQ(product.first().weight, w);
  EXPECT_EQ(product.second().weight, v);
}

/// Returns the messages of creating each map with one wrong layer, in every position.
std::vector<std::string> messages(const DenseWeights<float>& wrong) {
  const DenseWeights<float> right{Matrix<float>(3, 3), {}};
  return {
      test::message_of<shape_error>([&] { Hedgehog<float>{wrong}; }),
      test::message_of<shape_error>([&] { ElementwiseProduct<float>(wrong, right); }),
      test::message_of<shape_error>([&] { ElementwiseProduct<float>(right, wrong); }),
  };
}

TEST(LearnedMapShapes, LayersThatDoNotFitAreRejected) {
  const Matrix<float> square(3, 3), wide(2, 3), four(4, 4), bias(1, 2);
  const auto at = [](const char* name, const std::string& text) {
    return std::string("mhla::") + name + ": " + text;
  };
  const auto all = [&](const std::string& text) {
    return std::vector<std::string>{at("Hedgehog", text), at("ElementwiseProduct", text),
                                    at("ElementwiseProduct", text)};
  };
  const std::string shape = "weight has shape [2, 3], expected a square matrix [D, D]";
  EXPECT_EQ(messages({wide, {}}), all(shape));
  EXPECT_EQ(messages({square, bias}), all("bias has 2 elements, expected 3 or none"));
  EXPECT_EQ(test::message_of<shape_error>([&] { T2R<float>{wide}; }), at("T2R", shape));
  EXPECT_THROW(ElementwiseProduct<float>({square, {}}, {four, {}}), shape_error);
}

TEST(LearnedMapWeights, MayBeLentAndAreSharedByCopies) {
  test::Random rng(1);
  const Index d = 19;
  const DenseWeights<float> dense{rng.matrix<float>(d, d), rng.matrix<float>(1, d)};
  const Matrix<float> x = rng.matrix<float>(3, d), dy = rng.matrix<float>(3, 2 * d);
  struct Result {
    Matrix<float> y, dx;
    std::vector<float> dweights;
    bool operator==(const Result&) const = default;
  };
  const auto run = [&](const Hedgehog<float>& map) {
    Result r{Matrix<float>(3, 2 * d), Matrix<float>::Zero(3, d),
             std::vector<float>(static_cast<std::size_t>(map.weights()))};
    map.strip(x, r.y);
    map.strip_adjoint(x, r.y, dy, r.dx, r.dweights.data());
    EXPECT_EQ(map.dense().weight, dense.weight);
    EXPECT_EQ(map.dense().bias, dense.bias);
    return r;
  };
  std::vector<float> scratch(static_cast<std::size_t>(d * d));
  const Hedgehog<float> lent(
      detail::MapLayer<float>(d, dense.weight.data(), dense.bias.data(), scratch.data()));
  auto owner = std::make_unique<Hedgehog<float>>(dense);
  const Result expected = run(*owner);
  EXPECT_TRUE(run(lent) == expected);
  const Hedgehog<float> copy = *owner;
  owner.reset();
  EXPECT_TRUE(run(copy) == expected);
}

TEST(LearnedMapShapes, TokensOfAnotherWidthAreRejectedBeforeAnythingIsWritten) {
  const Matrix<float> w = Matrix<float>::Ones(3, 3);
  const std::vector<float> x(8, 1.f), untouched(18, 5.f);
  std::vector<float> y = untouched, dweights = untouched;
  const auto check = [&](const auto& map, const char* name) {
    const std::string text =
        std::string("mhla::") + name + ": x has width 4, expected 3 (the width of the weight)";
    EXPECT_EQ(test::message_of<shape_error>([&] { map(x.data(), y.data(), 4); }), text);
    EXPECT_EQ(test::message_of<shape_error>(
                  [&] { map.adjoint(x.data(), x.data(), x.data(), y.data(), 4, dweights.data()); }),
              text);
    EXPECT_EQ(y, untouched);
    EXPECT_EQ(dweights, untouched);
  };
  check(Hedgehog<float>({w, {}}), "Hedgehog");
  check(T2R<float>(w), "T2R");
  check(ElementwiseProduct<float>({w, {}}, {w, {}}), "ElementwiseProduct");
}

}  // namespace
}  // namespace mhla

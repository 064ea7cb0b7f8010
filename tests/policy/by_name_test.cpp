#include "mhla/policy/by_name.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "mhla/attention/bidirectional.hpp"
#include "mhla/policy/locality.hpp"
#include "support/message_of.hpp"

namespace mhla {
namespace {

using test::message_of;

/// Bits of phi and of its adjoint for some numbers.
template <class Map>
std::vector<float> numbers_of(const Map& map) {
  const std::vector<float> x = {-2, -0.5f, 0, 0.25f, 3}, dy = {1, -1, 2, 0.5f, -3};
  std::vector<float> y(5), dx(5);
  map(x.data(), y.data(), 5);
  map.adjoint(x.data(), y.data(), dy.data(), dx.data(), 5);
  y.insert(y.end(), dx.begin(), dx.end());
  return y;
}

TEST(ByName, FeatureMapsAreThoseOfTheirNames) {
  EXPECT_EQ(numbers_of(feature_map("relu")), numbers_of(Relu{}));
  EXPECT_EQ(numbers_of(feature_map("elu_plus_one")), numbers_of(EluPlusOne{}));
  EXPECT_EQ(numbers_of(feature_map("identity")), numbers_of(Identity{}));
  EXPECT_EQ(numbers_of(feature_map("exp")), numbers_of(Exp{}));
  EXPECT_EQ(feature_map("exp").features(7), 7);
}

TEST(ByName, NormalisersAreThoseOfTheirNames) {
  const double r[] = {-1, 0, 2};
  double den[3];
  EXPECT_EQ(normalizer("none").sums(), WeightSums::kNone);
  EXPECT_EQ(normalizer("key_sum").sums(), WeightSums::kToken);
  EXPECT_EQ(normalizer("cross_query").sums(), WeightSums::kCrossQuery);
  normalizer("none").denominators(r, 3, den);
  EXPECT_EQ(den[2], 1);
  for (const char* name : {"key_sum", "cross_query"}) {
    normalizer(name, 0.5).denominators(r, 3, den);
    EXPECT_EQ(den[2], 2.5) << name;
  }
}

TEST(ByName, OtherNamesAreRefusedWithTheList) {
  EXPECT_EQ(message_of<option_error>([] { feature_map("rely"); }),
            "mhla::feature_map: name is \"rely\", expected relu, elu_plus_one, identity or exp");
  EXPECT_EQ(message_of<option_error>([] { normalizer(""); }),
            "mhla::normalizer: name is \"\", expected none, key_sum or cross_query");
}

TEST(ByName, AnOperatorOfNamesGivesTheBitsOfTheOneOfTypes) {
  const Matrix<float> x = Matrix<float>::Random(40, 12);
  const Contiguous blocks(40, 8);
  const auto mixing = locality(5);
  const Matrix<float> named =
      bidirectional(x, x, x, blocks, mixing,
                    Operator{feature_map("exp"), feature_map("relu"), normalizer("key_sum", 1)});
  EXPECT_EQ(named, bidirectional(x, x, x, blocks, mixing, Operator{Exp{}, Relu{}, KeySum{1}}));
}

}  // namespace
}  // namespace mhla

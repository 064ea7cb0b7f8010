#include "mhla/core/error.hpp"

#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <type_traits>
#include <vector>

#include "mhla/core/scalar.hpp"
#include "support/message_of.hpp"
#include "support/random.hpp"

namespace mhla {
namespace {

using detail::checked_product;
using detail::shape_text;

constexpr Index kMax = std::numeric_limits<Index>::max();

TEST(Error, BothKindsAreErrorsOfTheLibraryAndInvalidArguments) {
  static_assert(std::is_base_of_v<std::invalid_argument, error>);
  static_assert(std::is_base_of_v<error, shape_error>);
  static_assert(std::is_base_of_v<error, option_error>);
  static_assert(!std::is_base_of_v<shape_error, option_error>);
  EXPECT_THROW(detail::fail_shape("f", "x", "is 1", "2"), std::invalid_argument);
  EXPECT_THROW(detail::fail_option("f", "x", "is 1", "2"), error);
}

TEST(Error, TextNamesFunctionArgumentGotAndExpected) {
  const auto shape = [] { detail::fail_shape("causal", "v", "has shape [12, 8]", "[16, any]"); };
  EXPECT_EQ(test::message_of<shape_error>(shape),
            "mhla::causal: v has shape [12, 8], expected [16, any]");
  const auto option = [] { detail::fail_option("f", "n", "is 0", "at least 1"); };
  EXPECT_EQ(test::message_of<option_error>(option), "mhla::f: n is 0, expected at least 1");
}

TEST(ShapeText, ListsSizesAndSaysAnyForNegativeOnes) {
  EXPECT_EQ(shape_text({}), "[]");
  EXPECT_EQ(shape_text({0}), "[0]");
  EXPECT_EQ(shape_text({3, 4}), "[3, 4]");
  EXPECT_EQ(shape_text({-1, 7, -1}), "[any, 7, any]");
  EXPECT_EQ(shape_text({kMax}), "[" + std::to_string(kMax) + "]");
}

TEST(CheckedProduct, IsTheProduct) {
  EXPECT_EQ(checked_product("f", "x", {}), 1);
  EXPECT_EQ(checked_product("f", "x", {7}), 7);
  EXPECT_EQ(checked_product("f", "x", {2, 3, 5}), 30);
  EXPECT_EQ(checked_product("f", "x", {0, 3}), 0);
  EXPECT_EQ(checked_product("f", "x", {0, kMax, kMax}), 0);
  EXPECT_EQ(checked_product("f", "x", {kMax, 1}), kMax);
  EXPECT_EQ(checked_product("f", "x", {kMax, 0}), 0);
}

TEST(CheckedProduct, ThrowsExactlyWhereTheProductDoesNotFit) {
  test::Random rng(1);
  for (int round = 0; round < 20000; ++round) {
    const Index a = static_cast<Index>(rng.bits() >> rng.integer(1, 63));
    const Index b = static_cast<Index>(rng.bits() >> rng.integer(1, 63));
    Index product = 0;
    if (__builtin_mul_overflow(a, b, &product)) {
      EXPECT_THROW(checked_product("f", "x", {a, b}), shape_error) << a << " * " << b;
    } else {
      EXPECT_EQ(checked_product("f", "x", {a, b}), product) << a << " * " << b;
    }
  }
}

TEST(CheckedProduct, IsExactOnBothSidesOfEveryPowerOfTwo) {
  std::vector<Index> sizes = {0, 1, 2, 3, kMax - 1, kMax};
  for (const int power : {15, 16, 30, 31, 32, 33, 61, 62}) {
    for (const Index beside : {-1, 0, 1}) sizes.push_back((Index{1} << power) + beside);
  }
  for (const Index a : sizes) {
    for (const Index b : sizes) {
      for (const Index c : sizes) {
        Index product = 0;  // from left to right: a zero does not excuse what came before it
        if (__builtin_mul_overflow(a, b, &product) ||
            __builtin_mul_overflow(product, c, &product)) {
          EXPECT_THROW(checked_product("f", "x", {a, b, c}), shape_error)
              << a << " * " << b << " * " << c;
        } else {
          EXPECT_EQ(checked_product("f", "x", {a, b, c}), product) << a << " * " << b << " * " << c;
        }
      }
      EXPECT_THROW(checked_product("f", "x", {-1 - a, b}), shape_error) << a << ", " << b;
    }
    EXPECT_THROW(checked_product("f", "x", {0, -1 - a}), shape_error) << a;
  }
}

TEST(CheckedProduct, OverflowIsToldWithTheSizes) {
  const Index half = Index{1} << (std::numeric_limits<Index>::digits - 1);
  const auto overflow = [&] { checked_product("summary", "workspace", {half, 2}); };
  EXPECT_EQ(test::message_of<shape_error>(overflow),
            "mhla::summary: workspace has shape " + shape_text({half, 2}) +
                ", expected a product that fits std::ptrdiff_t");
  EXPECT_EQ(checked_product("f", "x", {half - 1, 2}), 2 * (half - 1));
}

TEST(CheckedProduct, RejectsNegativeSizes) {
  const auto negative = [] { checked_product("f", "x", {4, -1}); };
  EXPECT_THROW(negative(), shape_error);
  const std::string text = test::message_of<shape_error>(negative);
  EXPECT_TRUE(text.starts_with("mhla::f: x has shape [4, ")) << text;
  EXPECT_TRUE(text.ends_with("expected sizes >= 0")) << text;
}

}  // namespace
}  // namespace mhla

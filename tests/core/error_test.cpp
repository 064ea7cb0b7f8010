#include "mhla/core/error.hpp"

#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "mhla/core/scalar.hpp"
#include "support/message_of.hpp"

namespace mhla {
namespace {

using detail::checked_product;
using detail::shape_text;

constexpr Index kMax = std::numeric_limits<Index>::max();

TEST(Error, TextNamesFunctionArgumentGotAndExpected) {
  const auto shape = [] { detail::fail_shape("causal", "v", "has shape [12, 8]", "[16, any]"); };
  EXPECT_EQ(test::message_of<shape_error>(shape),
            "mhla::causal: v has shape [12, 8], expected [16, any]");
  const auto option = [] { detail::fail_option("f", "n", "is 0", "at least 1"); };
  EXPECT_EQ(test::message_of<option_error>(option), "mhla::f: n is 0, expected at least 1");
  EXPECT_THROW(shape(), error);
  EXPECT_THROW(option(), std::invalid_argument);
}

TEST(ShapeText, ListsSizesAndSaysAnyForNegativeOnes) {
  EXPECT_EQ(shape_text({}), "[]");
  EXPECT_EQ(shape_text({0}), "[0]");
  EXPECT_EQ(shape_text({3, 4}), "[3, 4]");
  EXPECT_EQ(shape_text({-1, 7, -1}), "[any, 7, any]");
  EXPECT_EQ(shape_text({kMax}), "[" + std::to_string(kMax) + "]");
}

TEST(CheckedProduct, IsTheProductOrThrowsOnBothSidesOfEveryPowerOfTwo) {
  EXPECT_EQ(checked_product("f", "x", {}), 1);
  EXPECT_EQ(checked_product("f", "x", {7}), 7);
  std::vector<Index> sizes = {0, 1, 2, 3, kMax - 1, kMax};
  for (const int power : {15, 16, 30, 31, 32, 33, 61, 62}) {
    for (const Index beside : {-1, 0, 1}) sizes.push_back((Index{1} << power) + beside);
  }
  for (const Index a : sizes) {
    for (const Index b : sizes) {
      for (const Index c : sizes) {
        Index product = 0;  // from left to right: a zero does not excuse an earlier overflow
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

TEST(CheckedProduct, OverflowAndNegativeSizesAreTold) {
  const Index half = Index{1} << (std::numeric_limits<Index>::digits - 1);
  EXPECT_EQ(test::message_of<shape_error>([&] {
              checked_product("summary", "workspace", {half, 2});
            }),
            "mhla::summary: workspace has shape " + shape_text({half, 2}) +
                ", expected a product that fits std::ptrdiff_t");
  EXPECT_EQ(test::message_of<shape_error>([] {
              checked_product("f", "x", {4, -1});
            }),
            "mhla::f: x has a negative size -1, expected sizes >= 0");
}

TEST(Printable, EscapesAndCuts) {
  EXPECT_EQ(detail::printable("to_q.weight"), "'to_q.weight'");
  EXPECT_EQ(detail::printable("a\n\x1B\xC3\xA9"), "'a\\x0a\\x1b\\xc3\\xa9'");
  EXPECT_EQ(detail::printable(std::string(64, 'x')), "'" + std::string(64, 'x') + "'");
  EXPECT_EQ(detail::printable(std::string(65, 'x')), "'" + std::string(64, 'x') + "...'");
}

}  // namespace
}  // namespace mhla

#include "mhla/core/overlap.hpp"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "support/message_of.hpp"
#include "support/random.hpp"

namespace mhla::test {
namespace {

using OverlapView = TensorView<const float>;

std::set<const float*> addresses(const OverlapView& x) {
  std::set<const float*> all;
  for (Index b = 0; b < x.batch(); ++b) {
    for (Index n = 0; n < x.tokens(); ++n) {
      for (Index h = 0; h < x.heads(); ++h) {
        for (Index d = 0; d < x.width(); ++d) all.insert(&x(b, n, h, d));
      }
    }
  }
  return all;
}

TEST(Overlap, IsThatOfTheElements) {
  const std::vector<float> memory(4000);
  int overlaps = 0;
  for (std::uint64_t seed = 0; seed < 20000; ++seed) {
    Random rng(seed);
    const bool same_strides = rng.integer(0, 1) == 0;
    const auto strides = [&rng] {
      return Shape{rng.integer(-60, 60), rng.integer(-25, 25), rng.integer(-9, 9),
                   rng.integer(-2, 2)};
    };
    const auto sizes = [&rng] {
      return Shape{rng.integer(1, 3), rng.integer(0, 5), rng.integer(1, 3), rng.integer(1, 4)};
    };
    const auto data = [&] { return memory.data() + 2000 + rng.integer(-200, 200); };
    const OverlapView a(data(), sizes(), strides());
    const OverlapView b(data(), sizes(), same_strides ? a.strides : strides());
    const std::set<const float*> of_a = addresses(a);
    bool expected = false;
    for (const float* p : addresses(b)) expected = expected || of_a.count(p) > 0;
    ASSERT_EQ(detail::overlap(a, b), expected) << "seed " << seed;
    ASSERT_EQ(detail::overlap(b, a), expected) << "seed " << seed;
    overlaps += expected ? 1 : 0;
  }
  EXPECT_GT(overlaps, 2000);
  EXPECT_LT(overlaps, 18000);
}

TEST(Overlap, WithinATensorIsThatOfItsElements) {
  const std::vector<float> memory(1000);
  int apart = 0;
  for (std::uint64_t seed = 0; seed < 20000; ++seed) {
    Random rng(seed);
    const Shape strides{rng.integer(-60, 60), rng.integer(-25, 25), rng.integer(-9, 9),
                        rng.integer(-2, 2)};
    const Shape shape{rng.integer(1, 3), rng.integer(0, 5), rng.integer(1, 3), rng.integer(1, 4)};
    const OverlapView x(memory.data() + 500, shape, strides);
    const bool expected = std::ssize(addresses(x)) == shape[0] * shape[1] * shape[2] * shape[3];
    ASSERT_EQ(detail::distinct(shape, strides), expected) << "seed " << seed;
    apart += expected ? 1 : 0;
  }
  EXPECT_GT(apart, 2000);
  EXPECT_LT(apart, 18000);
}

TEST(Overlap, WithinALargeTensorIsFound) {
  constexpr Index kMany = 1'000'000;
  EXPECT_TRUE(detail::distinct({8, kMany, 16, 64}, {kMany * 1024, 1024, 64, 1}));
  EXPECT_TRUE(detail::distinct({8, kMany, 16, 64}, {kMany * 1024, 64, kMany * 64, 1}));
  EXPECT_TRUE(detail::distinct({8, kMany, 16, 64}, {64, 512, kMany * 512, 1}));
  EXPECT_TRUE(detail::distinct({1, kMany, 1, 64}, {0, 1, 0, kMany}));  // column-major
  EXPECT_FALSE(detail::distinct({1, kMany, 1, 64}, {0, 1, 0, kMany - 1}));
  EXPECT_FALSE(detail::distinct({1, kMany, 1, 64}, {0, 63, 0, 1}));
  EXPECT_FALSE(detail::distinct({8, kMany, 16, 64}, {kMany * 1024 - 1, 1024, 64, 1}));
  EXPECT_FALSE(detail::distinct({8, kMany, 16, 64}, {kMany * 1024, 0, 64, 1}));
}

TEST(Overlap, ErrorsNameTheStrides) {
  const std::string expected = ", and elements that overlap, expected strides of distinct elements";
  EXPECT_EQ(message_of<option_error>([] {
              detail::expect_distinct("f", "x", {1, 5, 1, 8}, {3, -7, 0, 1});
            }),
            "mhla::f: x has strides [3, -7, 0, 1]" + expected);
  EXPECT_EQ(message_of<option_error>(
                [] { detail::expect_distinct("f", "x", MatrixView<float>(nullptr, 5, 8, 7)); }),
            "mhla::f: x has strides [7, 1]" + expected);
  EXPECT_NO_THROW(detail::expect_distinct("f", "x", MatrixView<float>(nullptr, 1, 8, 0)));
  EXPECT_NO_THROW(detail::expect_distinct("f", "x", MatrixView<float>(nullptr, 5, 1, 1, 0)));
  EXPECT_NO_THROW(detail::expect_distinct("f", "x", MatrixView<float>(nullptr, 0, 8, 0)));
}

}  // namespace
}  // namespace mhla::test

#include "mhla/kernel/inner_products.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "support/random.hpp"

namespace mhla {
namespace {

template <class A>
constexpr A kNaN = std::numeric_limits<A>::quiet_NaN();

/// Rows at some distance in exactly the memory they need, with NaN between them.
template <class A>
struct Rows {
  Index rows, stride;
  std::vector<A> all;

  Rows(test::Random& rng, Index rows_, Index depth)
      : rows(rows_),
        stride(depth + rng.integer(0, 5)),
        all(static_cast<std::size_t>(rows == 0 ? 0 : (rows - 1) * stride + depth), kNaN<A>) {
    for (Index r = 0; r < rows; ++r) {
      for (Index k = 0; k < depth; ++k) row(r)[k] = static_cast<A>(rng.uniform(-1, 1));
    }
  }
  A* row(Index r) { return all.data() + r * stride; }
};

/// All products, every one of which is told once.   // [a.rows, b.rows]
template <class A>
std::vector<A> products(Rows<A>& a, Rows<A>& b, Index depth) {
  std::vector<A> got(static_cast<std::size_t>(a.rows * b.rows), kNaN<A>);
  std::vector<int> told(got.size(), 0);
  detail::inner_products(a.all.data(), a.stride, a.rows, b.all.data(), b.stride, b.rows, depth,
                         [&](Index r, Index c, A product) {
                           ASSERT_TRUE(r >= 0 && r < a.rows && c >= 0 && c < b.rows);
                           const auto at = static_cast<std::size_t>(r * b.rows + c);
                           got[at] = product;
                           ++told[at];
                         });
  for (const int times : told) EXPECT_EQ(times, 1);
  return got;
}

template <class A>
void expect_bits_of_dot(test::Random& rng, Index rows, Index cols, Index depth) {
  Rows<A> a(rng, rows, depth), b(rng, cols, depth);
  const std::vector<A> got = products(a, b, depth);
  for (Index r = 0; r < rows; ++r) {
    for (Index c = 0; c < cols; ++c) {
      const A expected = detail::dot(a.row(r), b.row(c), depth);
      ASSERT_EQ(std::memcmp(&got[static_cast<std::size_t>(r * cols + c)], &expected, sizeof(A)), 0)
          << rows << " x " << cols << " of depth " << depth << ": " << r << ", " << c;
    }
  }
}

template <class A>
class InnerProducts : public testing::Test {};
using Accumulators = testing::Types<float, double>;
TYPED_TEST_SUITE(InnerProducts, Accumulators);

TYPED_TEST(InnerProducts, EveryElementHasTheBitsOfItsDotProduct) {
  test::Random rng(1);
  for (Index rows = 0; rows <= 2 * detail::kInnerRows + 1; ++rows) {
    for (Index cols = 0; cols <= 2 * detail::kInnerCols + 1; ++cols) {
      expect_bits_of_dot<TypeParam>(rng, rows, cols, rng.integer(0, 300));
    }
  }
  for (Index depth = 0; depth <= 70; ++depth) {
    expect_bits_of_dot<TypeParam>(rng, rng.integer(1, 20), rng.integer(1, 7), depth);
  }
}

TYPED_TEST(InnerProducts, AreSumsOverTheDepthWithinTheirBound) {
  constexpr long double u = std::numeric_limits<TypeParam>::epsilon() / 2;
  test::Random rng(2);
  for (const Index depth : {1, 3, 16, 31, 100}) {
    Rows<TypeParam> a(rng, 11, depth), b(rng, 5, depth);
    const std::vector<TypeParam> got = products(a, b, depth);
    const long double mu = static_cast<long double>(depth + 1) * u;
    for (Index r = 0; r < a.rows; ++r) {
      for (Index c = 0; c < b.rows; ++c) {
        long double sum = 0, size = 0;
        for (Index k = 0; k < depth; ++k) {
          const long double term = static_cast<long double>(a.row(r)[k]) * b.row(c)[k];
          sum += term;
          size += std::abs(term);
        }
        ASSERT_LE(std::abs(got[static_cast<std::size_t>(r * b.rows + c)] - sum),
                  mu / (1 - mu) * size);
      }
    }
  }
}

TYPED_TEST(InnerProducts, ANaNReachesItsRowOrItsColumnAlone) {
  test::Random rng(3);
  for (const Index depth : {1, 7, 16, 33}) {
    Rows<TypeParam> a(rng, 13, depth), b(rng, 5, depth);
    a.row(9)[depth - 1] = b.row(2)[rng.integer(0, depth - 1)] = kNaN<TypeParam>;
    const std::vector<TypeParam> got = products(a, b, depth);
    for (Index r = 0; r < a.rows; ++r) {
      for (Index c = 0; c < b.rows; ++c) {
        EXPECT_EQ(std::isnan(got[static_cast<std::size_t>(r * b.rows + c)]), r == 9 || c == 2);
      }
    }
  }
}

}  // namespace
}  // namespace mhla

#include "mhla/kernel/packet.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cfenv>
#include <cmath>
#include <limits>
#include <vector>

#include "support/placed.hpp"

namespace mhla {
namespace {

using test::kNaN;
using test::numbers;
using test::Placed;
using test::roundings;

constexpr Index kOffsets[] = {0, 1, 3, 4, 6, 11, 15};

template <class A>
class PacketOf : public testing::Test {};
using Accumulators = testing::Types<float, double>;
TYPED_TEST_SUITE(PacketOf, Accumulators);

TYPED_TEST(PacketOf, FunctionsOfNonzeroNumbersSeeNoZero) {
  using A = TypeParam;
  test::Random rng(5);
  for (Index count = 1; count <= 20; ++count) {
    const std::vector<A> x = numbers<A>(rng, count, 1, 2);
    std::vector<A> y(x.size());
    std::feclearexcept(FE_ALL_EXCEPT);
    detail::transform(x.data(), y.data(), count, [](auto p) {
      return Eigen::internal::pdiv(Eigen::internal::pset1<decltype(p)>(A(1)), p);
    });
    EXPECT_EQ(std::fetestexcept(FE_DIVBYZERO), 0) << count;
    for (std::size_t i = 0; i < x.size(); ++i) EXPECT_EQ(y[i], A(1) / x[i]);
  }
}

TYPED_TEST(PacketOf, SumsStayBelowTheirBoundsAndDoNotDependOnAlignment) {
  using A = TypeParam;
  EXPECT_EQ(detail::maximum<A>(nullptr, 0), -std::numeric_limits<A>::infinity());
  test::Random rng(2);
  for (Index count = 1; count <= 100; ++count) {
    const std::vector<A> x = numbers<A>(rng, count, -3, -1), y = numbers<A>(rng, count);
    const A dot = detail::dot(x.data(), y.data(), count), sum = detail::sum(x.data(), count);
    long double product = 0, product_size = 0, total = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
      const long double term = static_cast<long double>(x[i]) * y[i];
      product += term;
      product_size += std::abs(term);
      total += x[i];
    }
    EXPECT_LE(std::abs(dot - product), roundings<A>(count) * product_size);
    EXPECT_LE(std::abs(sum - total), roundings<A>(count - 1) * -total);
    const A largest = *std::max_element(x.begin(), x.end());  // below the zeros of padding
    for (const Index offset : kOffsets) {
      const Placed<A> px(x, offset), py(y, 15 - offset);
      EXPECT_EQ(detail::dot(px.data(), py.data(), count), dot);
      EXPECT_EQ(detail::sum(px.data(), count), sum);
      EXPECT_EQ(detail::maximum(px.data(), count), largest);
    }
  }
  EXPECT_EQ(detail::dot<A>(nullptr, nullptr, 0), 0);
  EXPECT_EQ(detail::sum<A>(nullptr, 0), 0);
}

/// Expects y = expected after f(x, z, y), for rows of every length at many addresses, and no other
/// write.
template <class A, class F, class Expected>
void expect_rows(F&& f, Expected&& expected) {
  test::Random rng(3);
  for (Index count = 0; count <= 70; ++count) {
    const std::vector<A> x = numbers<A>(rng, count), z = numbers<A>(rng, count);
    const std::vector<A> before = numbers<A>(rng, count);
    std::vector<A> after = before;
    for (std::size_t i = 0; i < x.size(); ++i) after[i] = expected(x[i], z[i], before[i]);
    for (const Index offset : kOffsets) {
      const Placed<A> px(x, (7 * offset + 1) % 16), pz(z, (3 * offset + 2) % 16);
      Placed<A> y(before, offset);
      f(px.data(), pz.data(), y.data(), count);
      ASSERT_TRUE(y.holds(after)) << count << " at " << offset;
    }
  }
}

TYPED_TEST(PacketOf, ElementwiseFunctionsAreExactAtAnyAlignmentAndWriteNothingElse) {
  using A = TypeParam;
  using Eigen::internal::pmax, Eigen::internal::pnegate;
  constexpr A f = A(1) / 3;
  const auto larger = [](auto p, auto q) { return pmax(p, pnegate(q)); };
  const auto largest = [=](auto s, auto p, auto q) { return pmax(s, larger(p, q)); };
  expect_rows<A>([=](const A*, const A*, A* y, Index n) { detail::scale(f, y, n); },
                 [=](A, A, A y) { return y * f; });
  expect_rows<A>([=](const A* x, const A*, A* y, Index n) { detail::add_scaled(f, x, y, n); },
                 [=](A x, A, A y) { return detail::multiply_add(f, x, y); });
  expect_rows<A>([](const A* x, const A*, A* y, Index n) { detail::add_to(x, y, n); },
                 [](A x, A, A y) { return y + x; });
  expect_rows<A>([=](const A* x, const A*, A* y,
                     Index n) { detail::transform(x, y, n, pnegate<detail::Packet<A>>); },
                 [](A x, A, A) { return -x; });
  expect_rows<A>([=](const A*, const A*, A* y,
                     Index n) { detail::transform(y, y, n, pnegate<detail::Packet<A>>); },
                 [](A, A, A y) { return -y; });
  expect_rows<A>(
      [=](const A* x, const A* z, A* y, Index n) { detail::combine(y, n, larger, x, z); },
      [](A x, A z, A) { return std::max(x, -z); });
  expect_rows<A>(
      [=](const A* x, const A* z, A* y, Index n) { detail::update(y, n, largest, x, z); },
      [](A x, A z, A y) { return std::max(y, std::max(x, -z)); });
}

TYPED_TEST(PacketOf, AddRowsAddsRowAfterRowAtAnyAlignment) {
  using A = TypeParam;
  test::Random rng(4);
  for (const Index count : {0, 1, 7, 16, 33, 64, 77, 130}) {
    for (const Index rows : {0, 1, 5, 64}) {
      Matrix<A> x = Matrix<A>::Constant(rows, count + 3, kNaN<A>);
      x.leftCols(count) = rng.matrix<A>(rows, count);
      const std::vector<A> before = numbers<A>(rng, count);
      std::vector<A> added = before;
      for (Index r = 0; r < rows; ++r) {
        for (Index j = 0; j < count; ++j) added[static_cast<std::size_t>(j)] += x(r, j);
      }
      for (const Index offset : kOffsets) {
        const Placed<A> px({x.data(), x.data() + x.size()}, 15 - offset);
        Placed<A> y(before, offset);
        detail::add_rows_to(px.data(), x.cols(), rows, y.data(), count);
        EXPECT_TRUE(y.holds(added)) << count << " x " << rows;
      }
    }
  }
}

TYPED_TEST(PacketOf, PartsOfPacketsFillTheOtherLanesAndAreStoredAlone) {
  using A = TypeParam;
  using P = detail::Packet<A>;
  constexpr Index lanes = sizeof(P) / sizeof(A);
  test::Random rng(5);
  const std::vector<A> x = numbers<A>(rng, lanes + 3);
  for (Index count = 0; count <= lanes; ++count) {
    const A* const end = x.data() + x.size();
    const P first = detail::load_partial<P>(x.data(), count, A(7));
    std::vector<A> head(static_cast<std::size_t>(lanes)), tail = head, part = head;
    detail::store(head.data(), first);
    detail::store(tail.data(), detail::load_tail<P>(end, count, A(7)));
    detail::store_partial(part.data(), first, count);
    for (Index i = 0; i < lanes; ++i) {
      const auto at = static_cast<std::size_t>(i);
      EXPECT_EQ(head[at], i < count ? x[at] : 7);
      EXPECT_EQ(part[at], i < count ? x[at] : 0);
      EXPECT_EQ(tail[at], i < lanes - count ? 7 : end[i - lanes]);
    }
  }
}

TYPED_TEST(PacketOf, RowsOfZerosAreZeroWithAnyStride) {
  using A = TypeParam;
  const A x[] = {0, 1, -A(0), std::numeric_limits<A>::quiet_NaN(), 0};
  EXPECT_TRUE(detail::is_zero(x, 0));
  EXPECT_TRUE(detail::is_zero(x, 1));
  EXPECT_FALSE(detail::is_zero(x, 2));
  EXPECT_TRUE(detail::is_zero(x, 3, 2));
  EXPECT_FALSE(detail::is_zero(x + 2, 2));
}

}  // namespace
}  // namespace mhla

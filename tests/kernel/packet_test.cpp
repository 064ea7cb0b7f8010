#include "mhla/kernel/packet.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "support/random.hpp"

namespace mhla {
namespace {

template <class A>
constexpr long double kRoundoff = std::numeric_limits<A>::epsilon() / 2;

/// Bound of m roundings in a row, relative to the sum of magnitudes.
template <class A>
long double roundings(Index m) {
  const long double mu = static_cast<long double>(m) * kRoundoff<A>;
  return mu / (1 - mu);
}

template <class A>
std::vector<A> numbers(std::uint64_t seed, Index count) {
  test::Random rng(seed);
  std::vector<A> x(static_cast<std::size_t>(count));
  for (A& value : x) value = static_cast<A>(rng.uniform(-1, 1));
  return x;
}

/// Values at an offset from any alignment; what lies around them is NaN.
template <class A>
struct Placed {
  std::vector<A> all;
  Index offset, count;

  Placed(const std::vector<A>& values, Index offset_)
      : all(values.size() + 32, std::numeric_limits<A>::quiet_NaN()),
        offset(offset_),
        count(std::ssize(values)) {
    std::copy(values.begin(), values.end(), data());
  }
  A* data() { return all.data() + offset; }
  bool holds(const std::vector<A>& values) {
    return values.empty() || std::memcmp(data(), values.data(), values.size() * sizeof(A)) == 0;
  }
  bool wrote_only_inside() const {
    for (Index i = 0; i < std::ssize(all); ++i) {
      const bool inside = i >= offset && i < offset + count;
      if (!inside && !std::isnan(all[static_cast<std::size_t>(i)])) return false;
    }
    return true;
  }
};

template <class A>
std::vector<A> exponentials(const std::vector<A>& x) {
  std::vector<A> y(x.size());
  detail::transform(x.data(), y.data(), std::ssize(x),
                    [](auto p) { return detail::exponential(p); });
  return y;
}

/// Calls f with `chunk` numbers at a time, which go up evenly through [low, high].
template <class A, class F>
void for_dense_sample(A low, A high, Index count, F&& f) {
  constexpr Index kChunk = 4096;
  for (Index begin = 0; begin < count; begin += kChunk) {
    std::vector<A> x;
    for (Index i = begin; i < std::min(begin + kChunk, count); ++i) {
      const A share = static_cast<A>(i) / static_cast<A>(count - 1);
      x.push_back(low * (1 - share) + high * share);
    }
    f(x);
  }
}

/// Relative errors, flush to zero and overflow of e^x at each x.
template <class A>
void expect_exponentials(const std::vector<A>& x) {
  using Limits = std::numeric_limits<A>;
  const std::vector<A> y = exponentials(x);
  const long double bound = detail::kExponentialRoundoffs * kRoundoff<A>;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const long double exact = std::exp(static_cast<long double>(x[i]));
    if (exact < Limits::min()) {
      ASSERT_EQ(y[i], 0) << "x = " << x[i];
    } else if (exact > Limits::max()) {
      ASSERT_EQ(y[i], Limits::infinity()) << "x = " << x[i];
    } else {
      ASSERT_LE(std::abs(y[i] - exact), bound * exact) << "x = " << x[i];
    }
  }
}

template <class A>
class PacketOf : public testing::Test {};
using Accumulators = testing::Types<float, double>;
TYPED_TEST_SUITE(PacketOf, Accumulators);

TYPED_TEST(PacketOf, ExponentialIsWithinItsRoundoffsOverTheWholeRange) {
  const auto high = static_cast<TypeParam>(std::log(std::numeric_limits<TypeParam>::max()) * 1.1);
  for_dense_sample<TypeParam>(-high, high, 400000, expect_exponentials<TypeParam>);
  for_dense_sample<TypeParam>(-2, 2, 400000, expect_exponentials<TypeParam>);
}

TYPED_TEST(PacketOf, ExponentialIsRightNextToTheEndsOfItsRange) {
  for (const long double end : {std::log((long double)std::numeric_limits<TypeParam>::max()),
                                std::log((long double)std::numeric_limits<TypeParam>::min())}) {
    std::vector<TypeParam> x{static_cast<TypeParam>(end)};
    for (int i = 0; i < 500; ++i) {
      x.push_back(std::nextafter(x.back(), TypeParam(0)));
      x.insert(x.begin(), std::nextafter(x.front(), static_cast<TypeParam>(2 * end)));
    }
    expect_exponentials(x);
  }
}

TYPED_TEST(PacketOf, ExponentialIsRightWhereItsReductionTurns) {
  std::vector<TypeParam> x;  // around multiples of ln(2) / 2
  for (int n = -120; n <= 120; ++n) {
    x.push_back(static_cast<TypeParam>(n * 0.34657359027997264L));
    x.push_back(std::nextafter(x.back(), TypeParam(1e3)));
    x.push_back(std::nextafter(x.back(), TypeParam(-1e3)));
  }
  expect_exponentials(x);
}

TYPED_TEST(PacketOf, ExponentialKnowsTheSpecialValues) {
  using Limits = std::numeric_limits<TypeParam>;
  const std::vector<TypeParam> y =
      exponentials<TypeParam>({0, -TypeParam(0), Limits::denorm_min(), -Limits::denorm_min(),
                               Limits::infinity(), -Limits::infinity(), Limits::max(),
                               Limits::lowest(), Limits::quiet_NaN(), -Limits::quiet_NaN()});
  for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(y[i], 1) << i;
  EXPECT_EQ(y[4], Limits::infinity());
  EXPECT_EQ(y[5], 0);
  EXPECT_EQ(y[6], Limits::infinity());
  EXPECT_EQ(y[7], 0);
  EXPECT_TRUE(std::isnan(y[8]));
  EXPECT_TRUE(std::isnan(y[9]));
}

TYPED_TEST(PacketOf, ExponentialOfALaneDoesNotDependOnTheOthers) {
  std::vector<TypeParam> x = numbers<TypeParam>(1, 200);
  for (TypeParam& value : x) value *= 50;
  const std::vector<TypeParam> together = exponentials(x);
  for (std::size_t i = 0; i < x.size(); ++i) {
    EXPECT_EQ(exponentials<TypeParam>({x[i]})[0], together[i]) << "x = " << x[i];
    EXPECT_EQ(detail::exponential(x[i]), together[i]) << "x = " << x[i];
  }
}

TYPED_TEST(PacketOf, DotAndSumStayBelowTheirBounds) {
  for (Index count = 0; count <= 200; ++count) {
    const std::vector<TypeParam> x = numbers<TypeParam>(1, count), y = numbers<TypeParam>(2, count);
    long double product = 0, product_size = 0, sum = 0, size = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
      const long double term = static_cast<long double>(x[i]) * y[i];
      product += term;
      product_size += std::abs(term);
      sum += x[i];
      size += std::abs(x[i]);
    }
    EXPECT_LE(std::abs(detail::dot(x.data(), y.data(), count) - product),
              roundings<TypeParam>(count) * product_size);
    EXPECT_LE(std::abs(detail::sum(x.data(), count) - sum),
              roundings<TypeParam>(std::max<Index>(count - 1, 0)) * size);
  }
}

TYPED_TEST(PacketOf, MaximumIsTheLargestElement) {
  EXPECT_EQ(detail::maximum<TypeParam>(nullptr, 0), -std::numeric_limits<TypeParam>::infinity());
  for (Index count = 1; count <= 100; ++count) {
    std::vector<TypeParam> x = numbers<TypeParam>(3, count);
    for (TypeParam& value : x) value -= 2;  // no zero may win
    EXPECT_EQ(detail::maximum(x.data(), count), *std::max_element(x.begin(), x.end()));
  }
}

TYPED_TEST(PacketOf, SumsDoNotDependOnAlignment) {
  for (const Index count : {0, 1, 3, 7, 8, 15, 16, 17, 33, 64, 77}) {
    const auto x = numbers<TypeParam>(4, count), y = numbers<TypeParam>(5, count);
    const TypeParam dot = detail::dot(x.data(), y.data(), count);
    const TypeParam sum = detail::sum(x.data(), count);
    for (Index offset = 0; offset < 16; ++offset) {
      Placed<TypeParam> px(x, offset), py(y, (5 * offset + 3) % 16);
      EXPECT_EQ(detail::dot(px.data(), py.data(), count), dot);
      EXPECT_EQ(detail::sum(px.data(), count), sum);
    }
  }
}

TYPED_TEST(PacketOf, ElementwiseFunctionsAreExactAtAnyAlignmentAndWriteNothingElse) {
  const TypeParam factor = TypeParam(1) / 3;
  for (const Index count : {0, 1, 3, 7, 8, 15, 16, 17, 33, 64, 77}) {
    const auto x = numbers<TypeParam>(6, count), y = numbers<TypeParam>(7, count);
    std::vector<TypeParam> scaled = x, doubled = x;
    for (std::size_t i = 0; i < x.size(); ++i) {
      scaled[i] *= factor;
      doubled[i] = x[i] + x[i];
    }
    for (Index offset = 0; offset < 16; ++offset) {
      Placed<TypeParam> px(x, (7 * offset + 1) % 16);
      Placed<TypeParam> s(x, offset), t(y, offset);
      detail::scale(factor, s.data(), count);
      detail::transform(px.data(), t.data(), count,
                        [](auto p) { return Eigen::internal::padd(p, p); });
      EXPECT_TRUE(s.holds(scaled) && s.wrote_only_inside()) << count << " at " << offset;
      EXPECT_TRUE(t.holds(doubled) && t.wrote_only_inside()) << count << " at " << offset;
    }
  }
}

TYPED_TEST(PacketOf, AddRowsAddsRowAfterRowAtAnyAlignment) {
  for (const Index count : {0, 1, 7, 16, 33, 64, 77, 130}) {
    for (const Index rows : {0, 1, 5, 64}) {
      const Index stride = count + 3;
      const auto x = numbers<TypeParam>(9, rows * stride), y = numbers<TypeParam>(10, count);
      std::vector<TypeParam> added = y;
      for (Index r = 0; r < rows; ++r) {
        for (Index j = 0; j < count; ++j) {
          added[static_cast<std::size_t>(j)] += x[static_cast<std::size_t>(r * stride + j)];
        }
      }
      for (Index offset = 0; offset < 16; offset += 5) {
        Placed<TypeParam> px(x, (7 * offset + 1) % 16), a(y, offset);
        detail::add_rows_to(px.data(), stride, rows, a.data(), count);
        EXPECT_TRUE(a.holds(added) && a.wrote_only_inside()) << count << " x " << rows;
      }
    }
  }
}

TYPED_TEST(PacketOf, CombinationsAndUpdatesAreExactAtAnyAlignmentAndWriteNothingElse) {
  for (Index count = 0; count <= 70; ++count) {
    const auto x = numbers<TypeParam>(12, count), z = numbers<TypeParam>(13, count);
    const auto y = numbers<TypeParam>(14, count);
    std::vector<TypeParam> combined = y, updated = y, added = y;
    for (std::size_t i = 0; i < y.size(); ++i) {
      combined[i] = std::max(x[i], -z[i]);
      updated[i] = std::max(y[i], combined[i]);
      added[i] = detail::multiply_add(TypeParam(0.3), x[i], y[i]);
    }
    for (Index offset = 0; offset < 16; ++offset) {
      Placed<TypeParam> px(x, (7 * offset + 1) % 16), pz(z, (3 * offset + 2) % 16);
      Placed<TypeParam> a(y, offset), b(y, offset), c(y, offset);
      const auto larger = [](auto q, auto r) {
        using namespace Eigen::internal;
        return pmax(q, pnegate(r));
      };
      const auto largest = [&](auto p, auto q, auto r) {
        return Eigen::internal::pmax(p, larger(q, r));
      };
      const TypeParam *from_x = px.data(), *from_z = pz.data();
      detail::combine(c.data(), count, larger, from_x, from_z);
      EXPECT_TRUE(c.holds(combined) && c.wrote_only_inside()) << count << " at " << offset;
      detail::update(a.data(), count, largest, from_x, from_z);
      EXPECT_TRUE(a.holds(updated) && a.wrote_only_inside()) << count << " at " << offset;
      detail::add_scaled(TypeParam(0.3), from_x, b.data(), count);
      EXPECT_TRUE(b.holds(added) && b.wrote_only_inside()) << count << " at " << offset;
    }
  }
}

TYPED_TEST(PacketOf, TransformMayWorkInPlace) {
  for (Index count = 0; count <= 40; ++count) {
    std::vector<TypeParam> x = numbers<TypeParam>(8, count);
    const std::vector<TypeParam> expected = exponentials(x);
    detail::transform(x.data(), x.data(), count, [](auto p) { return detail::exponential(p); });
    EXPECT_EQ(x, expected);
  }
}

TYPED_TEST(PacketOf, TailLoadsFillTheLanesBeforeTheTail) {
  using P = detail::Packet<TypeParam>;
  constexpr Index lanes = sizeof(P) / sizeof(TypeParam);
  const std::vector<TypeParam> x = numbers<TypeParam>(11, lanes + 3);
  for (Index count = 0; count <= lanes; ++count) {
    const TypeParam* const end = x.data() + lanes + 3;
    std::vector<TypeParam> got(static_cast<std::size_t>(lanes));
    detail::store(got.data(), detail::load_tail<P>(end, count, TypeParam(7)));
    for (Index i = 0; i < lanes; ++i) {
      EXPECT_EQ(got[static_cast<std::size_t>(i)], i < lanes - count ? 7 : end[i - lanes]);
    }
  }
}

TYPED_TEST(PacketOf, PartialLoadsFillAndPartialStoresLeaveTheRest) {
  using P = detail::Packet<TypeParam>;
  constexpr Index lanes = sizeof(P) / sizeof(TypeParam);
  const std::vector<TypeParam> x = numbers<TypeParam>(9, lanes);
  for (Index count = 0; count <= lanes; ++count) {
    const P p = detail::load_partial<P>(x.data(), count, TypeParam(7));
    std::vector<TypeParam> whole(static_cast<std::size_t>(lanes)), part = whole;
    detail::store(whole.data(), p);
    detail::store_partial(part.data(), p, count);
    for (std::size_t i = 0; i < x.size(); ++i) {
      const bool loaded = static_cast<Index>(i) < count;
      EXPECT_EQ(whole[i], loaded ? x[i] : 7);
      EXPECT_EQ(part[i], loaded ? x[i] : 0);
    }
  }
}

}  // namespace
}  // namespace mhla

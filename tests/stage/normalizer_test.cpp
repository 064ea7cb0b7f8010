#include "mhla/stage/normalizer.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "mhla/policy/grid_partition.hpp"
#include "support/exact.hpp"
#include "support/message_of.hpp"
#include "support/outputs.hpp"
#include "support/random.hpp"

namespace mhla {
namespace {

using test::Memory;

using detail::Rows;

static_assert(Normalizer<NoNormalizer> && Normalizer<KeySum> && Normalizer<CrossQuery>);
static_assert(!Normalizer<double> && !Normalizer<const KeySum>);
static_assert(CausalNormalizer<NoNormalizer> && CausalNormalizer<KeySum>);
static_assert(!CausalNormalizer<CrossQuery>);
static_assert(!detail::kUsesKeySums<NoNormalizer>);
static_assert(detail::kUsesKeySums<KeySum> && detail::kUsesKeySums<CrossQuery>);

template <class A>
using Limits = std::numeric_limits<A>;
template <class A>
constexpr long double kRoundoff = Limits<A>::epsilon() / 2;

template <class A>
bool same(A x, A y) {
  return x == y || (std::isnan(x) && std::isnan(y));
}

/// x / denominator as divide_rows makes it, checked to be what reciprocals and divide_others make
/// of rows in another order, and to write nothing else.
template <class A>
std::vector<A> quotients(const std::vector<A>& x, A denominator) {
  Memory memory(100000);
  const Index e = std::ssize(x);
  const Rows<A> rows("f", memory.arena, 3, e), others("f", memory.arena, 3, e);
  const A denominators[] = {1, denominator, 1};
  std::copy(x.begin(), x.end(), rows.row(1));
  detail::divide_rows(rows, 2, e, denominators);

  const Index order[] = {1, 2};
  A factors[] = {7, 7, 7};
  detail::reciprocals(denominators, 2, factors);
  EXPECT_EQ(factors[2], 7) << "written outside";
  for (Index j = 0; j < e; ++j) others.row(2)[j] = x[static_cast<std::size_t>(j)] * factors[1];
  detail::divide_others(others.data, others.stride, order, 2, e, denominators, factors);

  for (Index j = 0; j < rows.stride; ++j) {
    EXPECT_TRUE(j < e || std::isnan(rows.row(1)[j]));
    EXPECT_TRUE(std::isnan(rows.row(2)[j]));
    EXPECT_TRUE(same(others.row(2)[j], rows.row(1)[j])) << "two ways to divide disagree";
    EXPECT_TRUE(std::isnan(others.row(0)[j]) && std::isnan(others.row(1)[j]));
  }
  return {rows.row(1), rows.row(1) + x.size()};
}

template <class A>
class NormalizerOf : public testing::Test {};
using Accumulators = testing::Types<float, double>;
TYPED_TEST_SUITE(NormalizerOf, Accumulators);

TYPED_TEST(NormalizerOf, KeySumDenominatorsAreDotProductsPlusEps) {
  test::Random rng(1);
  for (Index d = 0; d <= 70; ++d) {
    Memory memory(100000);
    const Rows<TypeParam> queries("f", memory.arena, 5, d);
    const Matrix<TypeParam> q = rng.matrix<TypeParam>(5, d), z = rng.matrix<TypeParam>(1, d);
    for (Index s = 0; s < 5; ++s) std::copy_n(q.data() + s * d, d, queries.row(s));
    std::vector<TypeParam> denominators(6, Limits<TypeParam>::quiet_NaN());
    const auto eps = static_cast<TypeParam>(rng.uniform(0, 0.1));
    detail::key_sum_denominators(queries, 5, d, z.data(), eps, denominators.data());
    for (Index s = 0; s < 5; ++s) {
      long double sum = eps, size = eps;
      for (Index j = 0; j < d; ++j) {
        const long double term = static_cast<long double>(q(s, j)) * z(0, j);
        sum += term;
        size += std::abs(term);
      }
      const long double mu = static_cast<long double>(d + 1) * kRoundoff<TypeParam>;
      EXPECT_LE(std::abs(denominators[static_cast<std::size_t>(s)] - sum), mu / (1 - mu) * size);
    }
    EXPECT_TRUE(std::isnan(denominators[5]));
  }
}

TYPED_TEST(NormalizerOf, KeySumAdjointGivesRowsAndTheKeySumTheirShare) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    test::Random rng(seed);
    const Index count = rng.integer(0, detail::kStripTokens), d = rng.integer(0, 70);
    const auto start = rng.chance(0.5) ? detail::Start::kZero : detail::Start::kTarget;
    const auto factors = test::integers<TypeParam>(rng, 1, count);
    const auto x = test::integers<TypeParam>(rng, count, d);
    const auto z = test::integers<TypeParam>(rng, 1, d);
    const auto before = test::integers<TypeParam>(rng, count, d, 99);
    Matrix<TypeParam> dz = test::integers<TypeParam>(rng, 1, d + 1, 99);
    Matrix<TypeParam> expected_dz = dz;
    expected_dz.leftCols(d) += factors * x;
    Matrix<TypeParam> expected = factors.transpose() * z;
    if (start == detail::Start::kTarget) expected += before;

    Memory memory(200000);
    const Rows<TypeParam> rows = test::rows_of(memory, x);
    const Rows<TypeParam> drows("f", memory.arena, count + 1, d);
    for (Index s = 0; s < count && start == detail::Start::kTarget; ++s) {
      std::copy_n(before.data() + s * d, d, drows.row(s));
    }
    detail::key_sum_adjoint(start, factors.data(), rows, count, d, z.data(), drows, dz.data());
    EXPECT_EQ(test::matrix_of(drows, count, d), expected);
    test::expect_nothing_beside(drows, count + 1, count, d);
    EXPECT_EQ(dz, expected_dz);
  }
}

TYPED_TEST(NormalizerOf, SlotDenominatorsAreTheSumsOfTheirSlotsPlusEps) {
  const TypeParam sums[] = {10, 20, 30, 40};
  const Index slots[] = {3, 0, 1};
  std::vector<TypeParam> denominators(4, 7);
  detail::slot_denominators(sums, slots, 3, TypeParam(0.5), denominators.data());
  EXPECT_EQ(denominators, (std::vector<TypeParam>{40.5, 10.5, 20.5, 7}));
}

TYPED_TEST(NormalizerOf, QuotientsErrByTheReciprocalAndTheProduct) {
  test::Random rng(2);
  for (const double size : {1e-30, 1.0, 1e30}) {
    for (Index e = 0; e <= 40; ++e) {
      std::vector<TypeParam> x(static_cast<std::size_t>(e));
      for (TypeParam& value : x) value = static_cast<TypeParam>(rng.uniform(-1, 1) * size);
      const auto denominator = static_cast<TypeParam>(rng.uniform(-2, 2) * size);
      const std::vector<TypeParam> got = quotients(x, denominator);
      for (std::size_t j = 0; j < x.size(); ++j) {
        const long double exact = static_cast<long double>(x[j]) / denominator;
        EXPECT_LE(std::abs(got[j] - exact), 2.001L * kRoundoff<TypeParam> * std::abs(exact));
      }
    }
  }
}

TYPED_TEST(NormalizerOf, SubnormalDenominatorsDivideAsWell) {
  test::Random rng(3);
  const TypeParam least = Limits<TypeParam>::denorm_min();
  for (TypeParam denominator = least; denominator < Limits<TypeParam>::min(); denominator *= 2) {
    for (const TypeParam sign : {TypeParam(1), TypeParam(-1)}) {
      std::vector<TypeParam> x{0, denominator, -denominator, least};
      for (int i = 0; i < 20; ++i) {
        x.push_back(denominator * static_cast<TypeParam>(rng.uniform(-4, 4)));
      }
      const std::vector<TypeParam> got = quotients(x, sign * denominator);
      for (std::size_t j = 0; j < x.size(); ++j) {
        const long double exact = static_cast<long double>(x[j]) / (sign * denominator);
        EXPECT_LE(std::abs(got[j] - exact), 2.001L * kRoundoff<TypeParam> * std::abs(exact))
            << x[j] << " / " << denominator;
      }
    }
  }
}

TYPED_TEST(NormalizerOf, DenominatorsWithoutANormalReciprocalDivideExactly) {
  const TypeParam least = Limits<TypeParam>::denorm_min(), max = Limits<TypeParam>::max();
  for (const TypeParam denominator : {least, 9 * least, max / 3, max / 2, max, -max}) {
    ASSERT_FALSE(std::isnormal(1 / denominator));
    const std::vector<TypeParam> x{denominator, max, max / 7, 1, 3 * least, 0};
    const std::vector<TypeParam> got = quotients(x, denominator);
    for (std::size_t j = 0; j < x.size(); ++j) EXPECT_EQ(got[j], x[j] / denominator);
  }
}

/// Denominators of all kinds.
template <class A>
std::vector<A> kinds() {
  const A min = Limits<A>::min(), max = Limits<A>::max(), least = Limits<A>::denorm_min();
  return {0,
          -A(0),
          least,
          -least,
          min / 2,
          min,
          -min,
          1 / max,
          1,
          -1,
          A(3.7),
          1 / min,
          max,
          2 / min,
          A(1e30),
          -max,
          max / 2,
          A(1e-30),
          Limits<A>::infinity(),
          -Limits<A>::infinity(),
          Limits<A>::quiet_NaN()};
}

TYPED_TEST(NormalizerOf, FactorsAreReciprocalsWhereTheseAreNormalNumbers) {
  for (const TypeParam denominator : kinds<TypeParam>()) {
    const TypeParam reciprocal = 1 / denominator;
    const TypeParam expected = std::isnormal(reciprocal) ? reciprocal : TypeParam(1);
    for (std::size_t count = 0; count <= 70; ++count) {
      for (std::size_t place = 0; place < count; ++place) {
        std::vector<TypeParam> denominators(count, 4), factors(count + 1, 7);
        denominators[place] = denominator;
        detail::reciprocals(denominators.data(), std::ssize(denominators), factors.data());
        for (std::size_t s = 0; s <= count; ++s) {
          const TypeParam other = s < count ? TypeParam(0.25) : TypeParam(7);
          ASSERT_EQ(factors[s], s == place ? expected : other) << "1 / " << denominator;
        }
      }
    }
  }
}

TYPED_TEST(NormalizerOf, OnlyTheOtherRowsAreDivided) {
  const std::vector<TypeParam> denominators = kinds<TypeParam>();
  const Index count = std::ssize(denominators), e = 5, stride = 7;
  std::vector<TypeParam> factors(denominators.size());
  detail::reciprocals(denominators.data(), count, factors.data());
  Matrix<TypeParam> x = Matrix<TypeParam>::Constant(count, stride, 3), expected = x;
  std::vector<Index> order;  // backwards
  for (Index s = 0; s < count; ++s) {
    const TypeParam denominator = denominators[static_cast<std::size_t>(s)];
    order.push_back(count - 1 - s);
    if (!std::isnormal(1 / denominator)) expected.row(order.back()).head(e).array() /= denominator;
  }
  detail::divide_others(x.data(), stride, order.data(), count, e, denominators.data(),
                        factors.data());
  for (Index i = 0; i < x.size(); ++i) EXPECT_TRUE(same(x.data()[i], expected.data()[i])) << i;
}

TYPED_TEST(NormalizerOf, ZeroInfiniteAndUndefinedDenominatorsDivideAsTheFormulaSays) {
  const TypeParam infinity = Limits<TypeParam>::infinity(), nan = Limits<TypeParam>::quiet_NaN();
  for (std::size_t e = 1; e < 20; ++e) {
    const auto all = [&](TypeParam x, TypeParam denominator, auto&& holds) {
      for (const TypeParam y : quotients(std::vector<TypeParam>(e, x), denominator)) {
        EXPECT_TRUE(holds(y)) << x << " / " << denominator << " = " << y;
      }
    };
    all(2, 0, [&](TypeParam y) { return y == infinity; });
    all(-2, 0, [&](TypeParam y) { return y == -infinity; });
    all(0, 0, [](TypeParam y) { return std::isnan(y); });
    all(2, nan, [](TypeParam y) { return std::isnan(y); });
    all(2, infinity, [](TypeParam y) { return y == 0; });
    all(infinity, infinity, [](TypeParam y) { return std::isnan(y); });
  }
}

TEST(SlotSums, RowsFollowEachOther) {
  Memory memory(10000);
  const detail::SlotSums<float> sums("f", memory.arena, 4, 6);
  EXPECT_EQ(sums.slots, 6);
  for (Index b = 0; b < 4; ++b) EXPECT_EQ(sums.block(b), sums.sums + b * 6);
}

TEST(ExpectCrossQuery, AcceptsAsManyQueryBlocksOfOneSize) {
  EXPECT_NO_THROW(detail::expect_cross_query("f", Contiguous(12, 4), 3));
  EXPECT_NO_THROW(detail::expect_cross_query("f", Contiguous(0, 4), 0));
  EXPECT_NO_THROW(detail::expect_cross_query("f", Contiguous(3, 4), 1));
  EXPECT_NO_THROW(detail::expect_cross_query("f", Grid({4, 6}, {2, 3}), 4));
}

TEST(ExpectCrossQuery, RejectsOtherNumbersAndSizesOfBlocks) {
  EXPECT_EQ(
      test::message_of<option_error>([] { detail::expect_cross_query("f", Contiguous(12, 4), 4); }),
      "mhla::f: normalizer is CrossQuery with 3 query blocks and 4 key blocks, "
      "expected as many query blocks as key blocks");
  EXPECT_EQ(
      test::message_of<option_error>([] { detail::expect_cross_query("f", Contiguous(11, 4), 3); }),
      "mhla::f: normalizer is CrossQuery with blocks of 4 and 3 tokens, "
      "expected query blocks of one size");
}

}  // namespace
}  // namespace mhla

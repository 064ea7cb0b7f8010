#include "mhla/stage/denominator.hpp"

#include <gtest/gtest.h>

#include <cfenv>

#include "mhla/policy/grid_partition.hpp"
#include "mhla/tokens/strip.hpp"
#include "support/environment.hpp"
#include "support/message_of.hpp"
#include "support/stage_case.hpp"

namespace mhla::test {
namespace {

using detail::kStripTokens;

template <class A>
class Denominator : public testing::Test {};
TYPED_TEST_SUITE(Denominator, Accumulators);

TYPED_TEST(Denominator, AdjointGivesRowsAndTheKeySumTheirShare) {
  using A = TypeParam;
  for_cases(100, [](Random& rng) {
    const Index count = rng.integer(0, kStripTokens), d = rng.integer(0, 70);
    const auto factors = rng.matrix<A>(1, count), x = rng.matrix<A>(count, d),
               z = rng.matrix<A>(1, d), before = rng.matrix<A>(1, d);
    const Target<A> drows(rng, count, d);
    const Guarded<A> dz(before);
    detail::sum_weights_adjoint<A>(drows.start, factors.data(), Guarded<A>(x), count, d, z.data(),
                                   drows.rows, dz.data());
    drows.expect(Exact(factors).transpose() * Exact(z), {2}, "drows");
    dz.expect(Exact(factors) * Exact(x) + before, {count + 1}, "dz");
  });
}

/// Rows are multiplied by a reciprocal if that is a normal number, and divided otherwise. x has all
/// magnitudes, so that quotients also underflow and overflow.
TYPED_TEST(Denominator, RowsAreDividedByEveryKindOfNumber) {
  using A = TypeParam;
  using Limits = std::numeric_limits<A>;
  const A least = Limits::denorm_min(), min = Limits::min(), max = Limits::max(),
          infinity = Limits::infinity();
  std::vector<A> denominators{0,       least, 9 * least, min / 2,  min,     2 * min,
                              1 / max, 1,     A(3.7),    A(1e30),  1 / min, max / 3,
                              max / 2, max,   A(7),      infinity, A(1e-30)};
  for (std::size_t i = denominators.size(); i > 0; --i)
    denominators.push_back(-denominators[i - 1]);
  denominators.push_back(Limits::quiet_NaN());
  const std::vector<A> x{0,       least,   5 * least, min,      A(1e-30),           1, -2, A(3.3),
                         A(1e30), max / 7, max,       infinity, Limits::quiet_NaN()};
  const Index count = std::ssize(denominators), e = std::ssize(x);
  Matrix<A> rows(count, e);
  for (Index s = 0; s < count; ++s) rows.row(s) = Matrix<A>::Map(x.data(), 1, e);
  const Guarded<A> quotients(rows), factors(1, count);
  detail::divide_rows<A>(quotients, count, e, denominators.data(), factors.data());
  for (Index s = 0; s < count; ++s) {
    const A den = denominators[static_cast<std::size_t>(s)];
    ASSERT_EQ(factors.data()[s], std::isnormal(1 / den) ? 1 / den : A(1)) << den;
    for (Index j = 0; j < e; ++j) {
      const bool nothing = rows(s, j) == 0 && den == 0;
      const A got = quotients.rows().row(s)[j], right = nothing ? A(0) : rows(s, j) / den;
      const long double exact = nothing ? 0 : static_cast<long double>(rows(s, j)) / den;
      if (!std::isfinite(right)) {
        EXPECT_TRUE(got == right || (std::isnan(got) && std::isnan(right)))
            << rows(s, j) << " / " << den << " = " << got;
      } else {
        EXPECT_LE(std::abs(got - exact), 2.001L * Limits::epsilon() / 2 * std::abs(exact) + least)
            << rows(s, j) << " / " << den;
      }
    }
  }
  quotients.expect_nothing_beside("quotients");
  factors.expect_nothing_beside("factors");
}

/// A reciprocal that overflows is the largest number in some rounding modes.
TYPED_TEST(Denominator, RowsAreDividedByTinyNumbersInEveryRoundingMode) {
  using A = TypeParam;
  for (const int mode : kRoundingModes) {
    const Environment environment(mode, false);
    for (const A den : {std::numeric_limits<A>::denorm_min(), std::numeric_limits<A>::min() / 8}) {
      A row = 3 * den, factor = 0;
      detail::divide_rows<A>({&row, 1}, 1, 1, &den, &factor);
      EXPECT_EQ(row, 3) << den;
    }
  }
}

TEST(Denominators, CrossQueryNeedsAsManyQueryBlocksOfOneSize) {
  EXPECT_NO_THROW(detail::expect_cross_query("f", Contiguous(12, 4), 3));
  EXPECT_NO_THROW(detail::expect_cross_query("f", Contiguous(0, 4), 0));
  EXPECT_NO_THROW(detail::expect_cross_query("f", Contiguous(3, 4), 1));
  EXPECT_NO_THROW(detail::expect_cross_query("f", Grid({4, 6}, {2, 3}), 4));
  EXPECT_EQ(message_of<option_error>([] { detail::expect_cross_query("f", Contiguous(12, 4), 4); }),
            "mhla::f: normalizer is CrossQuery with 3 query blocks and 4 key blocks, "
            "expected as many query blocks as key blocks");
  EXPECT_EQ(message_of<option_error>([] { detail::expect_cross_query("f", Contiguous(11, 4), 3); }),
            "mhla::f: normalizer is CrossQuery with blocks of 4 and 3 tokens, "
            "expected query blocks of one size");
}

}  // namespace
}  // namespace mhla::test

#include "mhla/gradient/gradients.hpp"

#include <gtest/gtest.h>

#include "support/gradient_oracle.hpp"
#include "support/gradient_reference.hpp"

namespace mhla::test {
namespace {

// ---- dual numbers ------------------------------------------------------------------------------

using D = Dual<long double>;

/// f of one number by dual numbers, against a derivative known in closed form.
template <class F, class G>
void expect_derivative(F&& f, G&& derivative) {
  for (const long double x : {-1.5L, -0.25L, 0.5L, 2.0L}) {
    const D y = f(D(x, 3.0L));
    EXPECT_EQ(y.value, f(D(x)).value);
    EXPECT_EQ(f(D(x)).tangent, 0);
    EXPECT_NEAR(static_cast<double>(y.tangent), static_cast<double>(3 * derivative(x)), 1e-16)
        << static_cast<double>(x);
  }
}

TEST(Dual, RulesOfDifferentiation) {
  using L = long double;
  expect_derivative([](D x) { return x + 2; }, [](L) { return 1.0L; });
  expect_derivative([](D x) { return 5 - x; }, [](L) { return -1.0L; });
  expect_derivative([](D x) { return -x; }, [](L) { return -1.0L; });
  expect_derivative([](D x) { return x * x * x; }, [](L x) { return 3 * x * x; });
  expect_derivative([](D x) { return 2.0L / x; }, [](L x) { return -2 / (x * x); });
  expect_derivative([](D x) { return x / (x * x + 1); },
                    [](L x) { return (1 - x * x) / ((x * x + 1) * (x * x + 1)); });
  expect_derivative([](D x) { return exp(2 * x); }, [](L x) { return 2 * std::exp(2 * x); });
  expect_derivative(
      [](D x) {
        D y = x;
        y *= x;  // x^2
        y += x;  // x^2 + x
        y -= 1;  // x^2 + x - 1
        y /= x;  // x + 1 - 1/x
        return y;
      },
      [](L x) { return 1 + 1 / (x * x); });
}

TEST(Dual, ComparesByValueAndTakesTheBranchOfTheValue) {
  EXPECT_TRUE(D(1, 5) < D(2, 1));
  EXPECT_TRUE(D(2, 1) > D(1, 5));
  EXPECT_TRUE(D(2, 1) <= D(2, 9) && D(2, 1) >= D(2, 9) && D(2, 1) == D(2, 9));
  const auto relu = [](D x) { return x > 0 ? x : D(0); };
  EXPECT_EQ(relu(D(1, 7)).tangent, 7);
  EXPECT_EQ(relu(D(-1, 7)).tangent, 0);
  EXPECT_EQ(relu(D(0, 7)).tangent, 0);  // from below
}

TEST(Dual, IsAScalarOfMatrices) {
  Matrix<D> a(2, 3), b(3, 1);
  for (Index i = 0; i < 6; ++i) a.data()[i] = D(static_cast<long double>(i), 1);
  for (Index i = 0; i < 3; ++i) b.data()[i] = D(static_cast<long double>(i + 1), 2);
  const Matrix<D> c = a * b;
  EXPECT_EQ(c(1, 0).value, 3 * 1 + 4 * 2 + 5 * 3);
  EXPECT_EQ(c(1, 0).tangent, (1 + 2 + 3) + 2 * (3 + 4 + 5));
}

// ---- sizes -------------------------------------------------------------------------------------

TEST(Terms, SizeIsTheSumOfMagnitudes) {
  using S = Terms<double, double>;
  const S a = S(3) - S(2), b = S(-1) + S(5);
  EXPECT_EQ(a.value, 1);
  EXPECT_EQ(a.size, 5);
  EXPECT_EQ((a * b).value, 4);
  EXPECT_EQ((a * b).size, 5 * 6);
  // A quotient's relative error is that of its numerator and that of its denominator.
  EXPECT_EQ((a / b).value, 0.25);
  EXPECT_EQ((a / b).size, 5 / 4.0 + 0.25 * 6 / 4.0);
  EXPECT_EQ(exp(S(0.0)).value, 1);
  EXPECT_NEAR(exp(S(1) - S(1)).size, 1.25, 1e-15);
}

// ---- the references against each other ---------------------------------------------------------

/// Random problems: the dense gradient, which is written by hand, against dual numbers.
void expect_dense_is_the_transpose(bool causal, std::uint64_t first_seed) {
  Index used = 0, masked = 0;
  for (std::uint64_t seed = first_seed; seed < first_seed + 400; ++seed) {
    auto p = random_problem<double>(seed, causal);
    if (!make_comparable(p, masked)) continue;
    ++used;
    Random rng(seed);
    const auto direction = random_direction(p, rng);
    const Matrix<double> dout = rng.matrix<double>(p.q.rows(), p.v.cols());
    using L = long double;
    const auto widen = [](double a) { return static_cast<L>(a); };
    const auto g =
        dense_gradient(p, map_variables<L>(values_of(p), widen), map_elements<L>(dout, widen));
    L sum = 0;
    for_each_tensor(
        [&sum](const char*, const auto& a, const auto& b) {
          for (Index i = 0; i < static_cast<Index>(a.size()); ++i) {
            sum += static_cast<L>(a.data()[i]) * b.data()[i];
          }
        },
        direction, g);
    const auto expected = directional_derivative(p, direction, dout);
    // Both in numbers of 64 bits, with chains of at most gradient_chain roundings.
    const L bound = 2 * gamma(gradient_chain(p), 0x1p-64L) * expected.size;
    ASSERT_LE(std::abs(sum - expected.value), bound) << p.text();
  }
  EXPECT_GT(used, 380);
}

TEST(GradientReference, DenseGradientIsTheTransposeOfTheDualNumbers) {
  expect_dense_is_the_transpose(false, 100);
  expect_dense_is_the_transpose(true, 1000);
}

TEST(GradientReference, SizesBoundTheGradients) {
  Index masked = 0;
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    auto p = random_problem<double>(seed, false);
    if (!make_comparable(p, masked)) continue;
    using S = TermsOf<double>;
    const auto terms = [](double a) { return S(a); };
    Random rng(seed);
    const Matrix<double> dout = rng.matrix<double>(p.q.rows(), p.v.cols());
    const auto g =
        dense_gradient(p, map_variables<S>(values_of(p), terms), map_elements<S>(dout, terms));
    for_each_tensor(
        [&](const char* name, const auto& a) {
          for (Index i = 0; i < static_cast<Index>(a.size()); ++i) {
            ASSERT_LE(std::abs(a.data()[i].value), a.data()[i].size * (1 + 1e-15L))
                << name << " " << p.text();
          }
        },
        g);
  }
}

}  // namespace
}  // namespace mhla::test

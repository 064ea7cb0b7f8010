#include "mhla/fit/change_bound.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "support/message_of.hpp"
#include "support/problem.hpp"
#include "support/seeds.hpp"

namespace mhla::test {
namespace {

/// Bounds of a problem whose mixing matrix is replaced by that of another problem.
template <class T>
Matrix<double> bound_of(const Problem<T>& p, const Problem<T>& other) {
  const auto m = p.mixing(), replacement = other.mixing();
  if (p.causal) {
    return mixing_change_bound(p.inputs(), p.query_blocks, m, replacement, p.op(), p.order());
  }
  return mixing_change_bound(p.inputs(), p.blocks(), m, replacement, p.op(), p.order());
}

/// |o' - o| by the definition.
template <class T>
Matrix<long double> change_of(const Problem<T>& p, const Problem<T>& other) {
  const auto exact = [&](const auto& m) {
    return naive_attention<long double>(p.inputs(), p.blocks(), m, p.op(), p.order());
  };
  return (exact(other.mixing()) - exact(p.mixing())).cwiseAbs();
}

/// Checks random changes of random problems. The bound is at most 3 times the change in half of
/// them. In others the change cancels, as where a whole row is scaled, which the bound does not
/// see.
template <class T>
void expect_bound(bool causal, int problems) {
  std::vector<double> factors;  // largest bound over largest change
  for (const std::uint64_t seed : seeds(static_cast<std::uint64_t>(problems))) {
    const Problem<T> p = random_problem<T>(seed, causal);
    Problem<T> other = p;
    Random rng(seed);
    const double size = rng.chance(0.5) ? 1 : 0.01;
    other.coefficients +=
        rng.matrix<accumulator_t<T>>(p.coefficients.rows(), p.coefficients.cols(), -size, size);
    const Matrix<double> bound = bound_of(p, other);
    const Matrix<long double> change = change_of(p, other);
    double largest_bound = 0, largest_change = 0;
    for (Index t = 0; t < bound.rows(); ++t) {
      for (Index j = 0; j < bound.cols(); ++j) {
        if (!p.inputs().query_mask[t]) {
          ASSERT_EQ(bound(t, j), 0) << p.text();
        }
        if (!std::isfinite(bound(t, j))) continue;
        ASSERT_LE(change(t, j), bound(t, j)) << t << "," << j << " of " << p.text();
        largest_bound = std::max(largest_bound, bound(t, j));
        largest_change = std::max(largest_change, static_cast<double>(change(t, j)));
      }
    }
    if (largest_change > 0) factors.push_back(largest_bound / largest_change);
  }
  ASSERT_GT(factors.size(), static_cast<std::size_t>(problems) / 2);
  std::sort(factors.begin(), factors.end());
  EXPECT_LT(factors[factors.size() / 2], 3);
}

TEST(MixingChangeBound, IsNeverViolatedAndInHalfNearTheChange) {
  expect_bound<float>(false, 10000);
  expect_bound<float>(true, 10000);
  expect_bound<double>(false, 1000);
}

TEST(MixingChangeBound, RefusesAMatrixOfAnotherShape) {
  const Problem<double> p = large_problem<double>(0, true);
  const Index rows = p.coefficients.rows(), cols = p.coefficients.cols();
  for (const auto& [i, b] : {std::pair{rows - 1, cols}, {rows, cols - 1}}) {
    const Matrix<double> small = Matrix<double>::Ones(i, b);
    EXPECT_EQ(message_of<shape_error>([&] {
                mixing_change_bound(p.inputs(), p.query_blocks, p.mixing(),
                                    MixingMatrix<double>(small), p.op(), p.order());
              }),
              "mhla::mixing_change_bound: replacement has shape " + detail::shape_text({i, b}) +
                  ", expected " + detail::shape_text({rows, cols}) +
                  ", that of the matrix it replaces");
  }
}

}  // namespace
}  // namespace mhla::test

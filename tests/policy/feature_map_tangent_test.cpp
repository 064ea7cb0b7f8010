// The tangents of all feature maps, also learned ones, against their adjoints.

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "contract/feature_map.hpp"
#include "mhla/policy/by_name.hpp"
#include "mhla/policy/feature_map.hpp"
#include "mhla/policy/learned_feature_map.hpp"
#include "support/any_map.hpp"

namespace mhla {
namespace {

using test::numbers;

template <class A>
class FeatureMapTangent : public testing::Test {};
using Accumulators = testing::Types<float, double>;
TYPED_TEST_SUITE(FeatureMapTangent, Accumulators);

template <class A>
A inner(const std::vector<A>& x, const std::vector<A>& y) {
  long double sum = 0;
  for (std::size_t i = 0; i < x.size(); ++i) sum += static_cast<long double>(x[i]) * y[i];
  return static_cast<A>(sum);
}

/// Expects <dy, J x'> = <J^T dy, x'> along directions of the tokens and the weights. With numbers
/// in
/// [-1, 1] and D <= 11 there are at most 11 * 12 terms of at most 144, with fewer than 50
/// roundings.
template <class A>
void expect_transpose(test::Random& rng, const auto& map, const std::vector<A>& x) {
  const Index d = std::ssize(x);
  const std::vector<A> y = test::features_of(map, x), none;
  const std::vector<A> up = numbers<A>(rng, std::ssize(y));
  std::vector<A> dx(x.size()), dweights(static_cast<std::size_t>(map.weights()));
  map.adjoint(x.data(), y.data(), up.data(), dx.data(), d, dweights.data());
  const std::vector<A> along = numbers<A>(rng, d), of_weights = numbers<A>(rng, map.weights());
  for (const bool tokens : {true, false}) {
    for (const bool weights : {true, false}) {
      if (!tokens && !weights) continue;
      if (!tokens && map.weights() == 0) continue;
      std::vector<A> dy(y.size(), test::kNaN<A>);
      detail::write_tangent<A>(map, x.data(), y.data(), tokens ? along.data() : nullptr, dy.data(),
                               d, weights && map.weights() > 0 ? of_weights.data() : nullptr);
      const A right = (tokens ? inner(dx, along) : A(0)) +
                      (weights && map.weights() > 0 ? inner(dweights, of_weights) : A(0));
      EXPECT_LE(std::abs(inner(up, dy) - right), 132 * 144 * 50 * test::kRoundoff<A>);
    }
  }
}

TYPED_TEST(FeatureMapTangent, IsTheTransposeOfTheAdjoint) {
  using A = TypeParam;
  test::Random rng(1);
  for (const Index d : {1, 2, 3, 4, 5, 8, 9, 11}) {
    for (Index kind = 0; kind < 8; ++kind) {
      const auto map = test::random_map<A>(rng, kind, d);
      SCOPED_TRACE(map.name());
      expect_transpose(rng, map, numbers<A>(rng, d));
    }
    const Elementwise square(test::Square{}, [](auto x) { return 2 * x; });
    expect_transpose(rng, square, numbers<A>(rng, d));
    expect_transpose(rng, feature_map("elu_plus_one"), numbers<A>(rng, d));
  }
}

}  // namespace
}  // namespace mhla

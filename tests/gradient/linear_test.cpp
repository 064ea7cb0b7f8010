#include "mhla/gradient/linear.hpp"

#include <array>

#include "contract/gradient.hpp"
#include "support/gradient_forms.hpp"
#include "support/random.hpp"

namespace mhla::test {

TEST_GRADIENT(Linear, Linear, float);
TEST_GRADIENT(LinearCausal, LinearCausal, float);

TEST(LinearBidirectional, CrossQueryIsKeySumForwardsAndBackwardsAlsoWithoutKeysOrQueries) {
  constexpr Index kWidth = 5;
  Random rng(1);
  for (const auto& [queries, keys] : {std::array<Index, 2>{70, 70}, {70, 0}, {0, 70}, {3, 70}}) {
    const auto draw = [&](Index rows) { return rng.matrix<double>(rows, kWidth, 0.1, 1); };
    const Matrix<double> q = draw(queries), k = draw(keys), v = draw(keys), dout = draw(queries);
    const auto run = [&, queries = queries, keys = keys](auto normalizer) {
      const Operator op{EluPlusOne{}, EluPlusOne{}, normalizer};
      Matrix<double> dq = Matrix<double>::Zero(queries, kWidth);
      Matrix<double> dk = Matrix<double>::Zero(keys, kWidth), dv = dk;
      linear_bidirectional_gradient(inputs(q, k, v), op, dout, {.q = dq, .k = dk, .v = dv});
      return std::array{linear_bidirectional(inputs(q, k, v), op), dq, dk, dv};
    };
    const auto expected = run(KeySum{0.1}), cross = run(CrossQuery{0.1});
    for (std::size_t i = 0; i < expected.size(); ++i) {
      EXPECT_TRUE(same_bits(cross[i], expected[i])) << queries << " " << keys << " " << i;
    }
    EXPECT_EQ(expected[0].rows(), queries);
    EXPECT_TRUE(keys > 0 || (expected[0].isZero(0) && expected[1].isZero(0)));
  }
}

}  // namespace mhla::test

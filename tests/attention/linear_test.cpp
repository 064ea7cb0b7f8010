#include "mhla/attention/linear.hpp"

#include <gtest/gtest.h>

#include "support/message_of.hpp"
#include "support/reference.hpp"

namespace mhla::test {
namespace {

/// A random problem with a single block, for which MHLA is linear attention.
template <class T>
Problem<T> linear_problem(std::uint64_t seed, bool causal) {
  auto p = random_problem<T>(seed, causal);
  const auto one_block = [](Index n) {
    return AnyPartition::of(Contiguous(n, std::max<Index>(1, n)));
  };
  p.query_blocks = one_block(p.q.rows());
  p.key_blocks = one_block(p.k.rows());
  p.coefficients = Matrix<accumulator_t<T>>::Ones(1, 1);
  p.lower = p.upper = 0;
  if (p.normalizer == NaiveNormalizer::kCrossQuery) p.normalizer = NaiveNormalizer::kKeySum;
  return p;
}

template <class T>
Matrix<T> run(const Problem<T>& p) {
  Matrix<T> out = unwritten<T>(p.q.rows(), p.v.cols());
  p.with_operator([&]<CausalOperator Op>(const Op& op) {
    const auto in = p.inputs();
    GuardedWorkspace workspace(p.causal ? linear_causal_workspace_bytes(in, op)
                                        : linear_bidirectional_workspace_bytes(in, op));
    if (p.causal) {
      linear_causal(in, op, out, workspace.get());
    } else {
      linear_bidirectional(in, op, out, workspace.get());
    }
    EXPECT_TRUE(workspace.intact()) << p.text();
  });
  return out;
}

/// Longest chain of roundings: all keys, the features, a chunk of queries' own keys, sums and eps.
template <class T>
Index chain(const Problem<T>& p) {
  return p.k.rows() + p.query_map.features(p.q.cols()) + (p.causal ? 64 : 0) + 5;
}

template <class T>
void expect_linear_equal_to_naive(bool causal, std::uint64_t first_seed, Index problems) {
  Tally tally;
  for (Index i = 0; i < problems && !testing::Test::HasFatalFailure(); ++i) {
    const auto p = linear_problem<T>(first_seed + static_cast<std::uint64_t>(i), causal);
    compare(p, expected(p, chain(p)), run(p), "linear", tally);
  }
  std::cout << "linear: worst error " << tally.worst << " of the bound in " << tally.outputs
            << " outputs, " << tally.ill << " more without a bound\n";
  EXPECT_LT(tally.ill, tally.outputs / 20);
}

TEST(Linear, FloatBidirectionalEqualsNaive) {
  expect_linear_equal_to_naive<float>(false, 1'000'000, 20'000);
}
TEST(Linear, FloatCausalEqualsNaive) {
  expect_linear_equal_to_naive<float>(true, 2'000'000, 20'000);
}
TEST(Linear, DoubleBidirectionalEqualsNaive) {
  expect_linear_equal_to_naive<double>(false, 3'000'000, 20'000);
}
TEST(Linear, DoubleCausalEqualsNaive) {
  expect_linear_equal_to_naive<double>(true, 4'000'000, 20'000);
}
TEST(Linear, HalfEqualsNaive) { expect_linear_equal_to_naive<Eigen::half>(true, 5'000'000, 2'000); }

TEST(Linear, LaterTokensLeaveEarlierOutputsBitwiseUnchanged) {
  Random rng(1);
  const Index n = 150;
  const Matrix<float> x = rng.matrix<float>(n, 5);
  Matrix<float> whole(n, 5), part(n, 5);
  linear_causal(Inputs<float>{.q = x, .k = x, .v = x}, Operator{}, whole);
  for (Index t = 1; t < n; t += 7) {
    Matrix<float> late = x;
    late.bottomRows(n - t).setConstant(NAN);
    linear_causal(Inputs<float>{.q = late, .k = late, .v = late}, Operator{}, part);
    EXPECT_TRUE(same_bits(Matrix<float>(whole.topRows(t)), Matrix<float>(part.topRows(t)))) << t;
  }
}

TEST(Linear, RejectsWhatDoesNotFit) {
  const Matrix<float> q = Matrix<float>::Ones(4, 3), k = Matrix<float>::Ones(5, 3);
  Matrix<float> out(4, 3);
  EXPECT_EQ(message_of<shape_error>(
                [&] { linear_causal(Inputs<float>{.q = q, .k = k, .v = k}, Operator{}, out); }),
            "mhla::linear_causal: k has shape [5, 3], expected [4, any]");
  EXPECT_EQ(message_of<shape_error>([&] {
              linear_bidirectional(Inputs<float>{.q = q, .k = k, .v = q}, Operator{}, out);
            }),
            "mhla::linear_bidirectional: v has shape [4, 3], expected [5, any]");
}

}  // namespace
}  // namespace mhla::test

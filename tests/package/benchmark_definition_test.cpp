// The definitions that benchmarks are checked by are the library's own, and notice a wrong number.

#include <gtest/gtest.h>

#include "mhla/attention/naive.hpp"
#include "support/form.hpp"
#include "support/mixed.hpp"

namespace mhla::bench {
namespace {

const Shape kShape = {"small", 1, 2, 5, 7, GridShape(6, 4), GridShape(3, 2), "a test"};

/// Row t of the definition in plain loops, from features [N,D] and scale.
Matrix<double> naive_row(NaiveProblem<double> p, const Inputs<float>& head, Index t,
                         const std::vector<Index>& block_of, double (*feature)(double),
                         double scale) {
  const auto features = [&](MatrixView<const float> x) {
    Matrix<double> f(x.rows, x.cols);
    for (Index r = 0; r < x.rows; ++r) {
      for (Index c = 0; c < x.cols; ++c) f(r, c) = feature(static_cast<double>(x(r, c)));
    }
    return f;
  };
  p.q = scale * features(head.q);
  p.k = features(head.k);
  p.v.resize(head.v.rows, head.v.cols);
  for (Index r = 0; r < head.v.rows; ++r) {
    for (Index c = 0; c < head.v.cols; ++c) p.v(r, c) = static_cast<double>(head.v(r, c));
  }
  p.query_block = p.key_block = block_of;
  return naive_attention(p).row(t);
}

void expect_same(const ExactRow& row, const Matrix<double>& naive) {
  for (std::size_t e = 0; e < row.value.size(); ++e) {
    EXPECT_NEAR(row.value[e], naive(0, static_cast<Index>(e)), 1e-12);
    EXPECT_GT(row.bound[e], 0);
    EXPECT_LT(row.bound[e], 1e-4);
  }
}

TEST(BenchmarkDefinition, BidirectionalIsNaiveAttention) {
  const Workload<float> work(kShape);
  const Grid blocks(kShape.grid, kShape.block);
  const auto mixing = initial_mixing<float>(kShape);
  const Inputs<float> head = detail::head_inputs(work.inputs(), 0, 1);
  NaiveProblem<double> p;
  p.mixing = mixing.dense().cast<double>();
  for (const Index t : {0, 9, 23}) {
    const auto weights = bidirectional_weights<float>(blocks, mixing);
    expect_same(weigh<float>(weights(head, t), head.v),
                naive_row(p, head, t, blocks_of_tokens(blocks), relu_feature<float>, 1));
  }
}

TEST(BenchmarkDefinition, CausalIsNaiveAttention) {
  const Workload<float> work(kShape);
  const Contiguous blocks(kShape.tokens(), 6);
  const auto mixing = uniform_causal<float>(blocks.blocks());
  const Inputs<float> head = detail::head_inputs(work.inputs(), 0, 1);
  NaiveProblem<double> p;
  p.mixing = mixing.dense().cast<double>();
  p.normalizer = NaiveNormalizer::kNone;
  p.causal = true;
  const auto scale = static_cast<double>(static_cast<float>(1 / std::sqrt(5.0)));
  for (const Index t : {0, 9, 23}) {
    const auto weights = causal_weights<float>(blocks, mixing);
    expect_same(weigh<float>(weights(head, t), head.v),
                naive_row(
                    p, head, t, blocks_of_tokens(blocks), [](double x) { return x; }, scale));
  }
}

TEST(BenchmarkDefinition, SoftmaxOfEqualKeysIsTheMeanOfTheValues) {
  const Workload<float> work(kShape);
  const Matrix<float> same = Matrix<float>::Constant(kShape.tokens(), kShape.width, 0.5f);
  Inputs<float> head = detail::head_inputs(work.inputs(), 0, 0);
  head.k = same;
  const ExactRow row = weigh<float>(softmax_weights(head, 3), head.v);
  for (std::size_t e = 0; e < row.value.size(); ++e) {
    double mean = 0;
    for (Index j = 0; j < kShape.tokens(); ++j) {
      mean += static_cast<double>(head.v(j, static_cast<Index>(e)));
    }
    EXPECT_NEAR(row.value[e], mean / static_cast<double>(kShape.tokens()), 1e-12);
  }
}

TEST(BenchmarkDefinition, NoticesAWrongNumber) {
  const ExactRow row{{1, -2, 0}, {1e-6, 1e-6, 1e-6}};
  const auto ratio = [&row](std::vector<float> computed) {
    return error_over_bound(row, computed.data());
  };
  EXPECT_LE(ratio({1, -2, 0}), 1);
  EXPECT_LE(ratio({1, -2.0000005f, 0}), 1);
  EXPECT_GT(ratio({1, -2.00001f, 0}), 1);
  EXPECT_GT(ratio({1, -2, 2e-6f}), 1);
  EXPECT_GT(ratio({std::numeric_limits<float>::quiet_NaN(), -2, 0}), 1);
  EXPECT_GT(ratio({1, -2, std::numeric_limits<float>::infinity()}), 1);
}

TEST(BenchmarkDefinition, DataAreAFunctionOfTensorAndPosition) {
  // splitmix64 from state 0 (the generator's reference program) and what is made of it
  EXPECT_EQ(splitmix64(1), 0xE220A8397B1DCDAFu);
  EXPECT_EQ(splitmix64(2), 0x6E789E6AA1B965F4u);
  for (std::uint64_t i = 0; i < 1000; ++i) {
    const float x = element(2, i);
    EXPECT_TRUE(x >= -1 && x < 1);
    EXPECT_NE(x, element(3, i));
  }
}

}  // namespace
}  // namespace mhla::bench

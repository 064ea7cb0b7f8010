// The rows that benchmarks are checked by are those of the definition, and notice a wrong number.

#include <gtest/gtest.h>

#include "mhla/attention/softmax.hpp"
#include "support/form.hpp"
#include "support/mixed.hpp"

namespace mhla::bench {
namespace {

const Shape kShape = {"small", 1, 2, 5, 7, GridShape(6, 4), GridShape(3, 2), "a test"};

template <class WeightsOf>
void expect_rows(const Inputs<float>& head, const WeightsOf& weights,
                 const Matrix<double>& expected, double tolerance) {
  for (const Index t : {0, 9, 23}) {
    const ExactRow row = weigh<float>(weights(head, t), head.v);
    for (std::size_t e = 0; e < row.value.size(); ++e) {
      EXPECT_NEAR(row.value[e], expected(t, static_cast<Index>(e)), tolerance);
      EXPECT_GT(row.bound[e], 0);
      EXPECT_LT(row.bound[e], 1e-3);
    }
  }
}

TEST(BenchmarkDefinition, RowsAreThoseOfTheWholeDefinition) {
  const Workload<float> work(kShape);
  const Inputs<float> head = detail::head_inputs(work.inputs(), 0, 1);
  const Grid grid(kShape.grid, kShape.block);
  const Contiguous blocks(kShape.tokens(), 6), single(kShape.tokens(), kShape.tokens());
  const auto local = initial_mixing<float>(kShape), uniform = uniform_causal<float>(4);
  const auto one = uniform_causal<float>(1);
  expect_rows(head, bidirectional_weights<float>(grid, local), naive_attention(head, grid, local),
              1e-12);
  expect_rows(head, causal_weights<float>(blocks, uniform),
              naive_attention(head, blocks, uniform, language_operator(5), Order::kCausal), 1e-12);
  expect_rows(head, linear_weights(false, 7), naive_attention(head, single, one), 1e-12);
  expect_rows(head, linear_weights(true, 7),
              naive_attention(head, single, one, Operator{}, Order::kCausal), 1e-12);
  expect_rows(head, softmax_weights<float>, softmax_bidirectional(head).cast<double>(), 1e-5);
}

TEST(BenchmarkDefinition, NoticesAWrongNumber) {
  const ExactRow row{{1, -2, 0}, {1e-6, 1e-6, 1e-6}};
  const auto ratio = [&row](std::vector<float> computed) {
    return error_over_bound(row, computed.data());
  };
  EXPECT_LE(ratio({1, -2.0000005f, 0}), 1);
  EXPECT_GT(ratio({1, -2.00001f, 0}), 1);
  EXPECT_GT(ratio({1, -2, 2e-6f}), 1);
  EXPECT_GT(ratio({std::numeric_limits<float>::quiet_NaN(), -2, 0}), 1);
  EXPECT_GT(ratio({1, -2, std::numeric_limits<float>::infinity()}), 1);
}

TEST(BenchmarkDefinition, DataAreThoseOfTheGeneratorsReferenceProgram) {
  EXPECT_EQ(splitmix64(1), 0xE220A8397B1DCDAFu);
  EXPECT_EQ(splitmix64(2), 0x6E789E6AA1B965F4u);
}

}  // namespace
}  // namespace mhla::bench

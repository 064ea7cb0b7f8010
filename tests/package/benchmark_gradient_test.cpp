// The gradients that benchmarks are checked by are derivatives of the definitions, by central
// differences, and notice a wrong number.

#include <gtest/gtest.h>

#include "mhla/attention/softmax.hpp"
#include "mhla/gradient/bidirectional.hpp"
#include "support/gradient_form.hpp"
#include "support/gradient_rules.hpp"

namespace mhla::bench {
namespace {

const Shape kShape = {"small", 1, 1, 5, 7, GridShape(6, 4), GridShape(3, 2), "a test"};

/// What is differentiated by, or a direction in it.
struct Point {
  Matrix<double> q, k, v;
  MixingMatrix<double> mixing;

  Point(std::uint64_t tensor, const MixingMatrix<double>& m)
      : q(rows(5, tensor)), k(rows(5, tensor + 1)), v(rows(7, tensor + 2)), mixing(m) {}
  static Matrix<double> rows(Index width, std::uint64_t tensor) {
    return Matrix<double>::Map(draw<double>(kShape, width, tensor).data(), kShape.tokens(), width);
  }
};

/// The derivative of sum_t dout_t . output_t along a direction.
/// \param output  point -> [N,E]
/// \param mixed   whether the mixing matrix is a parameter
template <class Output>
void expect_derivative(const GradientRule& rule, const MixingMatrix<double>& mixing, bool mixed,
                       const Output& output) {
  const Point at(1, mixing), along(11, mixing);
  const Matrix<double> dout = Point::rows(7, 4);
  const Inputs<double> in = inputs(at.q, at.k, at.v);
  ExactGradient<double> exact(rule, in, dout);
  double sum = 0;
  const auto add = [&sum](const ExactRow& row, const Matrix<double>& direction, Index t) {
    for (std::size_t d = 0; d < row.value.size(); ++d) {
      sum += row.value[d] * direction(t, static_cast<Index>(d));
      EXPECT_TRUE(row.bound[d] > 0 && row.bound[d] < 1e-10) << row.bound[d];
    }
  };
  for (Index t = 0; t < kShape.tokens(); ++t) {
    const auto [dk, dv] = exact.dk_and_dv(t);
    add(exact.dq(t), along.q, t), add(dk, along.k, t), add(dv, along.v, t);
  }
  for (Index i = 0; mixed && i < mixing.rows(); ++i) {
    for (Index b = 0; b < (rule.causal ? i + 1 : mixing.cols()); ++b) {
      sum += exact.dmixing(i, b).value * along.mixing(i, b);
    }
  }
  const auto loss = [&](double step) {
    Point moved = at;
    moved.q += step * along.q, moved.k += step * along.k, moved.v += step * along.v;
    for (std::size_t c = 0; mixed && c < moved.mixing.storage().size(); ++c) {
      moved.mixing.storage()[c] += step * along.mixing.storage()[c];
    }
    return output(moved).cwiseProduct(dout).sum();
  };
  constexpr double kStep = 0x1p-17;
  EXPECT_NEAR(sum, (loss(kStep) - loss(-kStep)) / (2 * kStep), 1e-8 * std::abs(sum));
}

TEST(BenchmarkGradient, IsTheDerivativeOfTheDefinition) {
  const auto naive = [](const auto& blocks, const auto& op, Order order) {
    return [=](const Point& p) -> Matrix<double> {
      return naive_attention(inputs(p.q, p.k, p.v), blocks, p.mixing, op, order);
    };
  };
  const Grid grid(kShape.grid, kShape.block);
  const Contiguous blocks(kShape.tokens(), 6), single(kShape.tokens(), kShape.tokens());
  const auto local = initial_mixing<double>(kShape), uniform = uniform_causal<double>(4);
  const auto one = uniform_causal<double>(1);
  expect_derivative(bidirectional_rule(grid, local), local, true,
                    naive(grid, Operator{}, Order::kBidirectional));
  expect_derivative(causal_rule(blocks, uniform, kShape.width), uniform, true,
                    naive(blocks, language_operator(kShape.width), Order::kCausal));
  for (const bool causal : {false, true}) {
    GradientRule rule = linear_rule<double>(kShape.tokens(), causal);
    rule.blocks = tokens_of_blocks(blocks);
    expect_derivative(rule, one, false,
                      naive(single, Operator{}, causal ? Order::kCausal : Order::kBidirectional));
  }
  GradientRule rule = softmax_rule<double>(kShape.tokens(), kShape.width);
  rule.blocks = tokens_of_blocks(blocks);
  expect_derivative(rule, one, false,
                    [](const Point& p) { return softmax_bidirectional(inputs(p.q, p.k, p.v)); });
}

/// What is wrong with a gradient of the bidirectional form, as a fraction of what is allowed, after
/// spoil(gradients of the tensors, gradient of the mixing matrix).
template <class Spoil>
double worst_after(const Spoil& spoil) {
  const Shape shape = growth_shape(kShortestGrowth);
  const Contiguous blocks(shape.tokens(), shape.block_length());
  const MixingMatrix<float> mixing(Matrix<float>::Constant(4, 4, 0.25f));
  MixingMatrix<float> dmixing(mixing.band());
  const Workload<float> work(shape);
  GradientWorkload<float> gradient(shape);
  bidirectional_gradient(work.inputs(), blocks, mixing, Operator{}, gradient.dout(),
                         gradient.gradients(), {.mixing = dmixing});
  spoil(gradient.gradients(), dmixing);
  const GradientRule rule = bidirectional_rule(blocks, mixing);
  return std::max(worst_of_rows<float>(rule, work.inputs(), gradient.dout(), gradient.gradients()),
                  worst_of_mixing<float>(rule, work.inputs(), gradient.dout(), dmixing));
}

TEST(BenchmarkGradient, NoticesAWrongNumber) {
  const auto times = [](TensorView<float> x, float factor) {
    for (Index i = 0; i < x.tokens() * x.width(); ++i) x.data[i] *= factor;
  };
  const double right = worst_after([](const auto&, auto&) {});
  EXPECT_TRUE(right > 0 && right <= 1) << right;
  EXPECT_GT(worst_after([&](const auto& g, auto&) { times(g.q, 1.01f); }), 1);
  EXPECT_GT(worst_after([&](const auto& g, auto&) { times(g.k, 1.01f); }), 1);
  EXPECT_GT(worst_after([&](const auto& g, auto&) { times(g.v, 1.01f); }), 1);
  EXPECT_GT(worst_after([&](const auto& g, auto&) { times(g.q, NAN); }), 1);
  EXPECT_GT(worst_after([](const auto&, auto& m) {
              for (float& c : m.storage()) c *= 1.1f;
            }),
            1);
}

}  // namespace
}  // namespace mhla::bench

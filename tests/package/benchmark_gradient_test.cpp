// The gradients that benchmarks are checked by are derivatives of the definitions, by central
// differences, and notice a wrong number.

#include <gtest/gtest.h>

#include "mhla/attention/naive.hpp"
#include "mhla/gradient/batched.hpp"
#include "support/gradient_form.hpp"
#include "support/gradient_rules.hpp"

namespace mhla::bench {
namespace {

using Wide = Matrix<long double>;

const Shape kShape = {"small", 1, 2, 5, 7, GridShape(6, 4), GridShape(3, 2), "a test"};

/// One head in long double, what is differentiated by, and dout.
struct Head {
  explicit Head(const Shape& shape) : work(shape), gradient(shape) {
    q = wide(inputs().q), k = wide(inputs().k), v = wide(inputs().v), dout = wide(output());
  }
  static Wide wide(MatrixView<const float> x) {
    Wide w(x.rows, x.cols);
    for (Index r = 0; r < x.rows; ++r) {
      for (Index c = 0; c < x.cols; ++c) w(r, c) = static_cast<long double>(x(r, c));
    }
    return w;
  }
  Inputs<float> inputs() const { return detail::head_inputs(work.inputs(), 0, 1); }
  MatrixView<const float> output() const { return gradient.dout().head(0, 1); }

  Workload<float> work;
  GradientWorkload<float> gradient;
  Wide q, k, v, mixing, dout;
};

/// The derivative of loss(head) by one of its numbers. With a step h the error is h^2 = 2^-40, a
/// loss is rounded to 2^-60 or so, divided by h.
template <class Loss>
double derivative(const Loss& loss, Head& head, long double& x) {
  constexpr long double kStep = 0x1p-20L;
  const long double at = x;
  x = at + kStep;
  const long double above = loss(head);
  x = at - kStep;
  const long double below = loss(head);
  x = at;
  return static_cast<double>((above - below) / (2 * kStep));
}

template <class Loss>
void expect_row(const char* name, const ExactRow& row, const Loss& loss, Head& head, Wide& x,
                Index t) {
  for (std::size_t d = 0; d < row.value.size(); ++d) {
    const double expected = derivative(loss, head, x(t, static_cast<Index>(d)));
    EXPECT_NEAR(row.value[d], expected, 1e-9) << name << " " << t << ", " << d;
    EXPECT_GT(row.bound[d], 0);
    EXPECT_LT(row.bound[d], 1e-2);
  }
}

template <class Loss>
void expect_derivatives(const GradientRule& rule, const Loss& loss, Head& head) {
  ExactGradient<float> exact(rule, head.inputs(), head.output());
  for (const Index t : {0, 9, 23}) {
    const auto [dk, dv] = exact.dk_and_dv(t);
    expect_row("dq", exact.dq(t), loss, head, head.q, t);
    expect_row("dk", dk, loss, head, head.k, t);
    expect_row("dv", dv, loss, head, head.v, t);
  }
  for (Index i = 0; i < head.mixing.rows(); ++i) {
    for (Index b = 0; b < (rule.causal ? i + 1 : head.mixing.cols()); ++b) {
      const ExactNumber dm = exact.dmixing(i, b);
      EXPECT_NEAR(dm.value, derivative(loss, head, head.mixing(i, b)), 1e-9) << i << ", " << b;
      EXPECT_GT(dm.bound, 0);
      EXPECT_LT(dm.bound, 1e-2);
    }
  }
}

/// sum_t dout_t . o_t of the naive form.
auto naive_loss(const GradientRule& rule, const std::vector<Index>& block_of) {
  return [&rule, block_of](const Head& head) {
    const auto features = [&rule](const Wide& x, long double scale) {
      const bool relu = rule.slope(-1) == 0;
      return Wide(x.unaryExpr([=](long double a) {
        return scale * (relu ? std::max(a, 0.0L) + static_cast<long double>(1e-6f) : a);
      }));
    };
    NaiveProblem<long double> p;
    p.q = features(head.q, static_cast<long double>(rule.scale));
    p.k = features(head.k, 1);
    p.v = head.v;
    p.mixing = head.mixing;
    p.query_block = p.key_block = block_of;
    p.causal = rule.causal;
    if (!rule.normalized) p.normalizer = NaiveNormalizer::kNone;
    return naive_attention(p).cwiseProduct(head.dout).sum();
  };
}

TEST(BenchmarkGradient, BidirectionalIsTheDerivative) {
  Head head(kShape);
  const Grid blocks(kShape.grid, kShape.block);
  const auto mixing = initial_mixing<float>(kShape);
  head.mixing = mixing.dense().cast<long double>();
  const GradientRule rule = bidirectional_rule(blocks, mixing);
  expect_derivatives(rule, naive_loss(rule, blocks_of_tokens(blocks)), head);
}

TEST(BenchmarkGradient, CausalIsTheDerivative) {
  Head head(kShape);
  const Contiguous blocks(kShape.tokens(), 6);
  const auto mixing = uniform_causal<float>(blocks.blocks());
  head.mixing = mixing.dense().cast<long double>();
  const GradientRule rule = causal_rule(blocks, mixing, kShape.width);
  expect_derivatives(rule, naive_loss(rule, blocks_of_tokens(blocks)), head);
}

TEST(BenchmarkGradient, LinearIsTheDerivative) {
  for (const bool causal : {false, true}) {
    Head head(kShape);
    GradientRule rule = linear_rule(kShape.tokens(), causal);
    rule.blocks = tokens_of_blocks(Contiguous(kShape.tokens(), 6));
    const auto with_mixing = naive_loss(rule, std::vector<Index>(24));
    const auto loss = [&](Head& h) {  // mixing is no parameter
      h.mixing = Wide::Ones(1, 1);
      const long double sum = with_mixing(h);
      h.mixing.resize(0, 0);
      return sum;
    };
    expect_derivatives(rule, loss, head);
  }
}

TEST(BenchmarkGradient, SoftmaxIsTheDerivative) {
  Head head(kShape);
  GradientRule rule = softmax_rule(kShape.tokens(), kShape.width);
  rule.blocks = tokens_of_blocks(Contiguous(kShape.tokens(), 6));
  const auto loss = [&rule](const Head& h) {
    const Wide weights =
        (static_cast<long double>(rule.scale) * h.q * h.k.transpose()).unaryExpr([](long double s) {
          return std::exp(s);
        });
    const Wide out = weights.rowwise().sum().cwiseInverse().asDiagonal() * (weights * h.v);
    return out.cwiseProduct(h.dout).sum();
  };
  expect_derivatives(rule, loss, head);
}

/// What is wrong with a gradient of the bidirectional form, as a fraction of what is allowed, after
/// spoil(gradients of the tensors, gradient of the mixing matrix).
template <class Spoil>
double worst_after(const Spoil& spoil) {
  const Shape shape = growth_shape(kShortestGrowth);
  const Contiguous blocks(shape.tokens(), shape.block_length());
  const MixingMatrix<float> mixing(Matrix<float>::Constant(4, 4, 0.25f));
  MixingMatrix<float> dmixing(Matrix<float>::Zero(4, 4));
  const Workload<float> work(shape);
  GradientWorkload<float> gradient(shape);
  bidirectional_gradient(work.inputs(), blocks, blocks, mixing, Operator{}, gradient.dout(),
                         gradient.gradients(), {.mixing = &dmixing});
  spoil(gradient.gradients(), dmixing);
  const GradientRule rule = bidirectional_rule(blocks, mixing);
  return std::max(worst_of_rows<float>(rule, work.inputs(), gradient.dout(), gradient.gradients()),
                  worst_of_mixing<float>(rule, work.inputs(), gradient.dout(), dmixing));
}

TEST(BenchmarkGradient, NoticesAWrongNumber) {
  const auto scale = [](TensorView<float> x) {
    for (Index i = 0; i < x.tokens() * x.width(); ++i) x.data[i] *= 1.01f;
  };
  const double right = worst_after([](const auto&, auto&) {});
  EXPECT_LE(right, 1);
  EXPECT_GT(right, 0);
  EXPECT_GT(worst_after([&](const auto& g, auto&) { scale(g.q); }), 1);
  EXPECT_GT(worst_after([&](const auto& g, auto&) { scale(g.k); }), 1);
  EXPECT_GT(worst_after([&](const auto& g, auto&) { scale(g.v); }), 1);
  EXPECT_GT(worst_after([&](const auto&, auto& m) { m.for_each([](float& c) { c *= 1.1f; }); }), 1);
  EXPECT_GT(worst_after([](const auto& g, auto&) {
              std::fill_n(g.q.data, g.q.tokens() * g.q.width(),
                          std::numeric_limits<float>::quiet_NaN());
            }),
            1);
}

}  // namespace
}  // namespace mhla::bench

#include "mhla/layer/dense.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "support/message_of.hpp"
#include "support/random.hpp"

namespace mhla {
namespace {

using Wide = long double;

/// Bound of m roundings in a row, relative to the sum of magnitudes.
template <class A>
Wide roundings(Index m) {
  const Wide mu = static_cast<Wide>(m) * std::numeric_limits<A>::epsilon() / 2;
  return mu / (1 - mu);
}

/// A sum of products, and the sum of their magnitudes.
struct Sum {
  Wide value = 0, size = 0;
  void add(Wide term) {
    value += term;
    size += std::abs(term);
  }
};

template <class A>
struct Problem {
  Matrix<A> x, weight, bias, dy;

  Problem(test::Random& rng, Index n, Index in, Index out, bool with_bias)
      : x(rng.matrix<A>(n, in)),
        weight(rng.matrix<A>(out, in)),
        bias(rng.matrix<A>(1, with_bias ? out : 0)),
        dy(rng.matrix<A>(n, out)) {}
  DenseView<const A> dense() const { return {weight, row(bias)}; }

  static std::span<const A> row(const Matrix<A>& m) {
    return {m.data(), static_cast<std::size_t>(m.size())};
  }
};

/// Gradients that already hold numbers.
template <class A>
struct Gradients {
  Matrix<A> x, weight, bias;

  Gradients(test::Random& rng, const Problem<A>& p)
      : x(rng.matrix<A>(p.x.rows(), p.x.cols())),
        weight(rng.matrix<A>(p.weight.rows(), p.weight.cols())),
        bias(rng.matrix<A>(1, p.bias.size())) {}
  DenseView<A> dense() { return {weight, {bias.data(), static_cast<std::size_t>(bias.size())}}; }
  bool operator==(const Gradients& b) const {
    return x == b.x && weight == b.weight && bias == b.bias;
  }
};

template <class A>
class LinearLayer : public testing::Test {};
using Accumulators = testing::Types<float, double>;
TYPED_TEST_SUITE(LinearLayer, Accumulators);

struct Shape {
  Index n, in, out;
};
constexpr Shape kShapes[] = {{0, 3, 2},  {1, 1, 1},   {3, 0, 2},    {3, 2, 0},    {5, 7, 3},
                             {64, 8, 9}, {65, 19, 5}, {200, 5, 17}, {700, 9, 33}, {1100, 3, 300}};

TYPED_TEST(LinearLayer, IsTheProductWithinTheBoundOfItsRoundings) {
  using A = TypeParam;
  test::Random rng(1);
  for (const auto& [n, in, out] : kShapes) {
    for (const bool with_bias : {false, true}) {
      const Problem<A> p(rng, n, in, out, with_bias);
      Matrix<A> y = Matrix<A>::Constant(n, out, std::numeric_limits<A>::quiet_NaN());
      linear<A>(p.x, p.dense(), y);
      for (Index r = 0; r < n; ++r) {
        for (Index o = 0; o < out; ++o) {
          Sum sum;
          if (with_bias) sum.add(p.bias(0, o));
          for (Index i = 0; i < in; ++i) sum.add(static_cast<Wide>(p.x(r, i)) * p.weight(o, i));
          ASSERT_LE(std::abs(y(r, o) - sum.value), roundings<A>(2 * in + 1) * sum.size)
              << n << " x " << in << " -> " << out;
        }
      }
    }
  }
}

TYPED_TEST(LinearLayer, AdjointAddsTheGradientsWithinTheBoundOfTheirRoundings) {
  using A = TypeParam;
  test::Random rng(2);
  for (const auto& [n, in, out] : kShapes) {
    const Problem<A> p(rng, n, in, out, true);
    const Gradients<A> before(rng, p);
    Gradients<A> g = before;
    linear_adjoint<A>(p.x, p.dense(), p.dy, g.x, g.dense());
    for (Index r = 0; r < n; ++r) {
      for (Index i = 0; i < in; ++i) {
        Sum sum;
        sum.add(before.x(r, i));
        for (Index o = 0; o < out; ++o) sum.add(static_cast<Wide>(p.dy(r, o)) * p.weight(o, i));
        ASSERT_LE(std::abs(g.x(r, i) - sum.value), roundings<A>(2 * out + 1) * sum.size);
      }
    }
    for (Index o = 0; o < out; ++o) {
      Sum bias;
      bias.add(before.bias(0, o));
      for (Index r = 0; r < n; ++r) bias.add(p.dy(r, o));
      ASSERT_LE(std::abs(g.bias(0, o) - bias.value), roundings<A>(n + 1) * bias.size);
      for (Index i = 0; i < in; ++i) {
        Sum sum;
        sum.add(before.weight(o, i));
        for (Index r = 0; r < n; ++r) sum.add(static_cast<Wide>(p.dy(r, o)) * p.x(r, i));
        ASSERT_LE(std::abs(g.weight(o, i) - sum.value), roundings<A>(2 * n + 1) * sum.size)
            << n << " x " << in << " -> " << out;
      }
    }
  }
}

TYPED_TEST(LinearLayer, WhatIsNotWantedChangesNothingElse) {
  using A = TypeParam;
  test::Random rng(3);
  for (const Index n : {Index{70}, Index{700}}) {
    const Problem<A> p(rng, n, 6, 11, true);
    const Gradients<A> before(rng, p);
    Gradients<A> all = before;
    linear_adjoint<A>(p.x, p.dense(), p.dy, all.x, all.dense());
    Gradients<A> g = before;
    linear_adjoint<A>(p.x, p.dense(), p.dy, g.x, {});
    EXPECT_EQ(g.x, all.x);
    linear_adjoint<A>(p.x, p.dense(), p.dy, {}, {g.weight, {}});
    EXPECT_EQ(g.weight, all.weight);
    EXPECT_EQ(g.bias, before.bias);
    linear_adjoint<A>(p.x, p.dense(), p.dy, {}, {{}, g.dense().bias});
    EXPECT_TRUE(g == all);
  }
}

TYPED_TEST(LinearLayer, EveryNumberOfThreadsGivesTheSameBits) {
  using A = TypeParam;
  test::Random rng(4);
  for (const auto& [n, in, out] : kShapes) {
    const Problem<A> p(rng, n, in, out, true);
    const Gradients<A> before(rng, p);
    Matrix<A> y(n, out);
    linear<A>(p.x, p.dense(), y);
    Gradients<A> g = before;
    linear_adjoint<A>(p.x, p.dense(), p.dy, g.x, g.dense());
    for (Index threads = 1; threads <= 5; ++threads) {
      ThreadPool pool(threads);
      Matrix<A> y2(n, out);
      linear<A>(p.x, p.dense(), y2, {}, pool);
      Gradients<A> g2 = before;
      linear_adjoint<A>(p.x, p.dense(), p.dy, g2.x, g2.dense(), {}, pool);
      EXPECT_EQ(y2, y);
      EXPECT_TRUE(g2 == g) << threads;
    }
  }
}

TYPED_TEST(LinearLayer, RowsMayLieAtAnyStrideAndNothingBesideThemIsTouched) {
  using A = TypeParam;
  test::Random rng(5);
  const Index n = 70, in = 9, out = 21;
  const Problem<A> p(rng, n, in, out, true);
  Matrix<A> y(n, out), wide_y = Matrix<A>::Constant(n, out + 4, 7);
  Matrix<A> wide_x = Matrix<A>::Constant(n, in + 3, std::numeric_limits<A>::quiet_NaN());
  Matrix<A> wide_weight = Matrix<A>::Constant(out, in + 2, std::numeric_limits<A>::quiet_NaN());
  wide_x.middleCols(1, in) = p.x;
  wide_weight.middleCols(1, in) = p.weight;
  linear<A>(p.x, p.dense(), y);
  linear<A>(wide_x.middleCols(1, in), {wide_weight.middleCols(1, in), p.dense().bias},
            wide_y.middleCols(2, out));
  EXPECT_EQ(wide_y.middleCols(2, out), y);
  EXPECT_TRUE((wide_y.leftCols(2).array() == 7).all() && (wide_y.rightCols(2).array() == 7).all());

  Gradients<A> g(rng, p);
  Matrix<A> dx = Matrix<A>::Constant(n, in + 3, 7), dweight = Matrix<A>::Constant(out, in + 2, 7);
  dx.middleCols(1, in) = g.x;
  dweight.middleCols(1, in) = g.weight;
  linear_adjoint<A>(wide_x.middleCols(1, in), {wide_weight.middleCols(1, in), {}}, p.dy,
                    dx.middleCols(1, in), {dweight.middleCols(1, in), {}});
  linear_adjoint<A>(p.x, p.dense(), p.dy, g.x, g.dense());
  EXPECT_EQ(dx.middleCols(1, in), g.x);
  EXPECT_EQ(dweight.middleCols(1, in), g.weight);
  EXPECT_TRUE((dx.col(0).array() == 7).all() && (dx.rightCols(2).array() == 7).all());
  EXPECT_TRUE((dweight.col(0).array() == 7).all() && (dweight.col(in + 1).array() == 7).all());
}

TYPED_TEST(LinearLayer, ALentWorkspaceGivesTheSameBitsAndOneByteLessIsRefused) {
  using A = TypeParam;
  test::Random rng(6);
  const Problem<A> p(rng, 700, 5, 9, true);
  Gradients<A> g(rng, p), lent = g;
  Matrix<A> y(700, 9), y2(700, 9);
  std::vector<std::byte> memory(linear_workspace_bytes<A>(5, 9), std::byte{0xFF});
  std::vector<std::byte> adjoint_memory(linear_adjoint_workspace_bytes<A>(700, 5, 9),
                                        std::byte{0xFF});
  linear<A>(p.x, p.dense(), y);
  linear<A>(p.x, p.dense(), y2, memory);
  linear_adjoint<A>(p.x, p.dense(), p.dy, g.x, g.dense());
  linear_adjoint<A>(p.x, p.dense(), p.dy, lent.x, lent.dense(), adjoint_memory);
  EXPECT_EQ(y2, y);
  EXPECT_TRUE(lent == g);
  memory.pop_back();
  adjoint_memory.pop_back();
  const Gradients<A> before = g;
  EXPECT_THROW(linear<A>(p.x, p.dense(), y2, memory), option_error);
  EXPECT_THROW(linear_adjoint<A>(p.x, p.dense(), p.dy, g.x, g.dense(), adjoint_memory),
               option_error);
  EXPECT_EQ(y2, y);
  EXPECT_TRUE(g == before);
}

TEST(LinearLayerErrors, NameTheFunctionTheArgumentAndWhatWasExpected) {
  const Matrix<float> x = Matrix<float>::Ones(4, 3), weight = Matrix<float>::Ones(2, 3);
  const Matrix<float> other = Matrix<float>::Ones(5, 5);
  const std::vector<float> bias(3);
  Matrix<float> y = Matrix<float>::Constant(4, 2, 7), dx = Matrix<float>::Constant(4, 3, 7);
  const auto forward = [&](MatrixView<const float> from, DenseView<const float> dense,
                           MatrixView<float> to) {
    return test::message_of<error>([&] { linear<float>(from, dense, to); });
  };
  EXPECT_EQ(forward(x, {other, {}}, y), "mhla::linear: weight has shape [5, 5], expected [any, 3]");
  EXPECT_EQ(forward(x, {weight, bias}, y), "mhla::linear: bias has 3 elements, expected 2 or none");
  EXPECT_EQ(forward(x, {weight, {}}, dx), "mhla::linear: y has shape [4, 3], expected [4, 2]");
  EXPECT_EQ(forward({x.data(), 4, 3, 1, 4}, {weight, {}}, y),
            "mhla::linear: x has column stride 4, expected 1");
  const auto adjoint = [&](MatrixView<const float> dy, MatrixView<float> to, DenseView<float> g) {
    return test::message_of<error>([&] { linear_adjoint<float>(x, {weight, {}}, dy, to, g); });
  };
  std::vector<float> dbias(3, 7.f);
  Matrix<float> dweight = Matrix<float>::Constant(2, 2, 7);
  EXPECT_EQ(adjoint(x, dx, {}), "mhla::linear_adjoint: dy has shape [4, 3], expected [4, 2]");
  EXPECT_EQ(adjoint(y, y, {}), "mhla::linear_adjoint: dx has shape [4, 2], expected [4, 3]");
  EXPECT_EQ(adjoint(y, dx, {dweight, {}}),
            "mhla::linear_adjoint: gradient of weight has shape [2, 2], expected [2, 3]");
  EXPECT_EQ(adjoint(y, dx, {{}, dbias}),
            "mhla::linear_adjoint: gradient of bias has 3 elements, expected 2 or none");
  EXPECT_TRUE((y.array() == 7).all() && (dx.array() == 7).all() && dbias[0] == 7);
}

}  // namespace
}  // namespace mhla

#include "mhla/layer/mlp.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "support/differences.hpp"
#include "support/message_of.hpp"
#include "support/random.hpp"

namespace mhla {
namespace {

using Wide = long double;
using test::WideMatrix;

Wide gelu_definition(Wide x) {
  const Wide u = std::sqrt(2 / 3.14159265358979323846L) * (x + 0.044715L * x * x * x);
  return x / 2 * (1 + std::tanh(u));
}
Wide gelu_slope(Wide x) {
  const Wide scale = std::sqrt(2 / 3.14159265358979323846L);
  const Wide t = std::tanh(scale * (x + 0.044715L * x * x * x));
  return (1 + t) / 2 + x / 2 * (1 - t * t) * scale * (1 + 3 * 0.044715L * x * x);
}

template <class A>
std::span<A> row(Matrix<A>& m) {
  return {m.data(), static_cast<std::size_t>(m.size())};
}
template <class A>
std::span<const A> row(const Matrix<A>& m) {
  return {m.data(), static_cast<std::size_t>(m.size())};
}

/// The parameters of a perceptron, or their gradients, with x or its gradient.
template <class A>
struct Numbers {
  Matrix<A> x, weight1, bias1, weight2, bias2;

  Numbers(test::Random& rng, Index n, Index in, Index hidden, Index out, double size)
      : x(rng.matrix<A>(n, in)),
        weight1(rng.matrix<A>(hidden, in, -size, size)),
        bias1(rng.matrix<A>(1, hidden)),
        weight2(rng.matrix<A>(out, hidden, -size, size)),
        bias2(rng.matrix<A>(1, out)) {}
  MlpView<const A> parameters() const { return {{weight1, row(bias1)}, {weight2, row(bias2)}}; }
  MlpView<A> gradients() { return {{weight1, row(bias1)}, {weight2, row(bias2)}}; }
  bool operator==(const Numbers& b) const {
    return x == b.x && weight1 == b.weight1 && bias1 == b.bias1 && weight2 == b.weight2 &&
           bias2 == b.bias2;
  }
};

template <class A>
struct Activations {
  Matrix<A> pre, hidden, y;
  Activations(Index n, Index width, Index out) : pre(n, width), hidden(n, width), y(n, out) {}
};

template <class A>
class Mlp : public testing::Test {
 public:
  static constexpr Wide kRoundoff = std::numeric_limits<A>::epsilon() / 2;
};
using Accumulators = testing::Types<float, double>;
TYPED_TEST_SUITE(Mlp, Accumulators);

template <class A>
Matrix<A> sample() {
  std::vector<A> x{0, -A(0)};
  for (const double size : {1e-30, 1e-6, 1.0, 5.0, 12.0, 40.0, 1e6, 1e18, 1e30}) {
    for (int i = -50; i <= 50; ++i) x.push_back(static_cast<A>(size * i / 50));
  }
  return Matrix<A>::Map(x.data(), 1, std::ssize(x));
}

TYPED_TEST(Mlp, GeluIsTheFormWithTanh) {
  using A = TypeParam;
  const Matrix<A> x = sample<A>();
  Matrix<A> y(1, x.cols());
  gelu<A>(x, y);
  for (Index i = 0; i < x.cols(); ++i) {
    const Wide z = x(0, i), exact = gelu_definition(z);
    // With 5 roundings of -2u, e^(-2u) has a relative error of 5 |2u| + 4 of them. It moves x / (1
    // + e^(-2u)) by that times |x| e^(-|2u|), and |x| |2u| e^(-|2u|) < 1; 3 more are of the
    // quotient.
    const Wide bound = (5 + detail::kExponentialRoundoffs + 3) * this->kRoundoff;
    EXPECT_LE(std::abs(y(0, i) - exact), bound * std::min(std::abs(z), std::abs(exact) + 1)) << z;
  }
}

TYPED_TEST(Mlp, GeluAdjointAddsTheSlopeEverywhere) {
  using A = TypeParam;
  test::Random rng(1);
  const Matrix<A> x = sample<A>(), dy = rng.matrix<A>(1, x.cols());
  const Matrix<A> before = rng.matrix<A>(1, x.cols());
  Matrix<A> dx = before;
  gelu_adjoint<A>(x, dy, dx);
  for (Index i = 0; i < x.cols(); ++i) {
    const Wide exact = before(0, i) + static_cast<Wide>(dy(0, i)) * gelu_slope(x(0, i));
    // As above: s has an error of 5 roundings and s (1 - s) x 2u', which is below 0.4 and largest
    // where |2u| is 2.5, one of 0.4 * (2 * (5 * 2.5 + 4) + 8); dy and dx are below 1.
    EXPECT_LE(std::abs(dx(0, i) - exact), 30 * this->kRoundoff) << x(0, i);
  }
}

TYPED_TEST(Mlp, IsTwoLayersWithGeluBetween) {
  using A = TypeParam;
  test::Random rng(2);
  for (const Index n : {0, 1, 70}) {
    const Numbers<A> p(rng, n, 5, 19, 3, 0.5);
    Activations<A> a(n, 19, 3);
    mlp<A>(p.x, p.parameters(), a.pre, a.hidden, a.y);
    Matrix<A> pre(n, 19), hidden(n, 19), y(n, 3);
    linear<A>(p.x, p.parameters().first, pre);
    gelu<A>(pre, hidden);
    linear<A>(hidden, p.parameters().second, y);
    EXPECT_EQ(a.pre, pre);
    EXPECT_EQ(a.hidden, hidden);
    EXPECT_EQ(a.y, y);
  }
}

WideMatrix definition(const WideMatrix& x, const WideMatrix& w1, const WideMatrix& b1,
                      const WideMatrix& w2, const WideMatrix& b2) {
  WideMatrix pre = x * w1.transpose();
  pre.rowwise() += b1.row(0);
  WideMatrix y = pre.unaryExpr(&gelu_definition) * w2.transpose();
  y.rowwise() += b2.row(0);
  return y;
}

TEST(MlpAdjoint, AddsTheDerivativesOfTheDefinition) {
  test::Random rng(3);
  for (const Index n : {1, 3, 66}) {
    const Numbers<double> p(rng, n, 3, 9, 4, 0.5), before(rng, n, 3, 9, 4, 1);
    Numbers<double> g = before;
    const Matrix<double> dy = rng.matrix<double>(n, 4);
    Activations<double> a(n, 9, 4);
    mlp<double>(p.x, p.parameters(), a.pre, a.hidden, a.y);
    mlp_adjoint<double>(p.x, p.parameters(), a.pre, a.hidden, dy, g.x, g.gradients());
    WideMatrix x = p.x.cast<Wide>(), w1 = p.weight1.cast<Wide>(), b1 = p.bias1.cast<Wide>(),
               w2 = p.weight2.cast<Wide>(), b2 = p.bias2.cast<Wide>();
    const WideMatrix weights = dy.cast<Wide>();
    const auto total = [&] {
      return (definition(x, w1, b1, w2, b2).array() * weights.array()).sum();
    };
    EXPECT_LE(test::distance(g.x, before.x.cast<Wide>() + test::differences(x, total)), 1e-9);
    EXPECT_LE(test::distance(g.weight1, before.weight1.cast<Wide>() + test::differences(w1, total)),
              1e-9);
    EXPECT_LE(test::distance(g.bias1, before.bias1.cast<Wide>() + test::differences(b1, total)),
              1e-9);
    EXPECT_LE(test::distance(g.weight2, before.weight2.cast<Wide>() + test::differences(w2, total)),
              1e-9);
    EXPECT_LE(test::distance(g.bias2, before.bias2.cast<Wide>() + test::differences(b2, total)),
              1e-9);
  }
}

TYPED_TEST(Mlp, WhatIsNotWantedChangesNothingElse) {
  using A = TypeParam;
  test::Random rng(4);
  const Numbers<A> p(rng, 600, 5, 9, 3, 0.5), before(rng, 600, 5, 9, 3, 1);
  const Matrix<A> dy = rng.matrix<A>(600, 3);
  Activations<A> a(600, 9, 3);
  mlp<A>(p.x, p.parameters(), a.pre, a.hidden, a.y);
  Numbers<A> all = before, g = before;
  const auto adjoint = [&](MatrixView<A> dx, const MlpView<A>& gradients) {
    mlp_adjoint<A>(p.x, p.parameters(), a.pre, a.hidden, dy, dx, gradients);
  };
  adjoint(all.x, all.gradients());
  adjoint(g.x, {});
  EXPECT_EQ(g.x, all.x);
  adjoint({}, {{g.weight1, {}}, {}});
  EXPECT_EQ(g.bias1, before.bias1);
  adjoint({}, {{{}, row(g.bias1)}, {g.weight2, row(g.bias2)}});
  EXPECT_TRUE(g == all);
}

TYPED_TEST(Mlp, EveryNumberOfThreadsGivesTheSameBitsWithALentWorkspaceToo) {
  using A = TypeParam;
  test::Random rng(5);
  for (const Index n : {1, 64, 65, 700}) {
    const Numbers<A> p(rng, n, 5, 19, 3, 0.5), before(rng, n, 5, 19, 3, 1);
    const Matrix<A> dy = rng.matrix<A>(n, 3);
    Activations<A> a(n, 19, 3);
    mlp<A>(p.x, p.parameters(), a.pre, a.hidden, a.y);
    Numbers<A> g = before;
    mlp_adjoint<A>(p.x, p.parameters(), a.pre, a.hidden, dy, g.x, g.gradients());
    for (Index threads = 1; threads <= 5; ++threads) {
      ThreadPool pool(threads);
      std::vector<std::byte> memory(mlp_workspace_bytes<A>(5, 19, 3));
      std::vector<std::byte> adjoint_memory(mlp_adjoint_workspace_bytes<A>(n, 5, 19, 3),
                                            std::byte{0xFF});
      Activations<A> b(n, 19, 3);
      mlp<A>(p.x, p.parameters(), b.pre, b.hidden, b.y, memory, pool);
      EXPECT_TRUE(b.pre == a.pre && b.hidden == a.hidden && b.y == a.y);
      Numbers<A> g2 = before;
      mlp_adjoint<A>(p.x, p.parameters(), b.pre, b.hidden, dy, g2.x, g2.gradients(), adjoint_memory,
                     pool);
      EXPECT_TRUE(g2 == g) << threads;
      memory.pop_back();
      adjoint_memory.pop_back();
      EXPECT_THROW(mlp<A>(p.x, p.parameters(), b.pre, b.hidden, b.y, memory, pool), option_error);
      EXPECT_THROW(mlp_adjoint<A>(p.x, p.parameters(), b.pre, b.hidden, dy, g2.x, g2.gradients(),
                                  adjoint_memory, pool),
                   option_error);
      EXPECT_TRUE(g2 == g && b.y == a.y);
    }
  }
}

TEST(MlpErrors, NameTheFunctionTheArgumentAndWhatWasExpected) {
  test::Random rng(6);
  const Numbers<float> p(rng, 4, 5, 7, 3, 1), other(rng, 4, 6, 8, 2, 1);
  Activations<float> a(4, 7, 3), b(4, 8, 2);
  Numbers<float> g = p, h = other;
  const MlpView<const float> ok = p.parameters(), bad = other.parameters();
  const auto forward = [&](const MlpView<const float>& parameters, MatrixView<float> pre,
                           MatrixView<float> hidden, MatrixView<float> y) {
    return test::message_of<error>([&] { mlp<float>(p.x, parameters, pre, hidden, y); });
  };
  EXPECT_EQ(forward(bad, a.pre, a.hidden, a.y),
            "mhla::mlp: first weight has shape [8, 6], expected [any, 5]");
  EXPECT_EQ(forward({{p.weight1, row(other.bias1)}, ok.second}, a.pre, a.hidden, a.y),
            "mhla::mlp: first bias has 8 elements, expected 7 or none");
  EXPECT_EQ(forward({ok.first, bad.second}, a.pre, a.hidden, a.y),
            "mhla::mlp: second weight has shape [2, 8], expected [any, 7]");
  EXPECT_EQ(forward(ok, b.pre, a.hidden, a.y), "mhla::mlp: pre has shape [4, 8], expected [4, 7]");
  EXPECT_EQ(forward(ok, a.pre, b.hidden, a.y),
            "mhla::mlp: hidden has shape [4, 8], expected [4, 7]");
  EXPECT_EQ(forward(ok, a.pre, a.hidden, b.y), "mhla::mlp: y has shape [4, 2], expected [4, 3]");
  const auto adjoint = [&](MatrixView<float> dx, const MlpView<float>& gradients) {
    return test::message_of<error>(
        [&] { mlp_adjoint<float>(p.x, ok, a.pre, a.hidden, a.y, dx, gradients); });
  };
  EXPECT_EQ(adjoint(h.x, g.gradients()), "mhla::mlp_adjoint: dx has shape [4, 6], expected [4, 5]");
  EXPECT_EQ(adjoint(g.x, {h.gradients().first, {}}),
            "mhla::mlp_adjoint: gradient of first weight has shape [8, 6], expected [7, 5]");
  EXPECT_EQ(adjoint(g.x, {{}, {{}, row(h.bias2)}}),
            "mhla::mlp_adjoint: gradient of second bias has 2 elements, expected 3 or none");
  EXPECT_TRUE(g == p);
  EXPECT_EQ(test::message_of<error>([&] { gelu<float>(p.x, a.pre); }),
            "mhla::gelu: y has shape [4, 7], expected [4, 5]");
  EXPECT_EQ(test::message_of<error>([&] { gelu_adjoint<float>(p.x, p.x, a.pre); }),
            "mhla::gelu_adjoint: dx has shape [4, 7], expected [4, 5]");
}

}  // namespace
}  // namespace mhla

#include "mhla/layer/layer_norm.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "support/differences.hpp"
#include "support/message_of.hpp"
#include "support/random.hpp"

namespace mhla {
namespace {

using test::WideMatrix;

template <class A>
std::span<A> row(Matrix<A>& m) {
  return {m.data(), static_cast<std::size_t>(m.size())};
}
template <class A>
std::span<const A> row(const Matrix<A>& m) {
  return {m.data(), static_cast<std::size_t>(m.size())};
}

WideMatrix definition(const WideMatrix& x, const WideMatrix& gain, const WideMatrix& shift,
                      long double eps) {
  WideMatrix y = x;
  for (Index r = 0; r < x.rows() && x.cols() > 0; ++r) {
    const long double mean = x.row(r).mean();
    const long double variance = (x.row(r).array() - mean).square().mean();
    for (Index c = 0; c < x.cols(); ++c) {
      y(r, c) = (x(r, c) - mean) / std::sqrt(variance + eps) * gain(0, c) + shift(0, c);
    }
  }
  return y;
}

template <class A>
struct Problem {
  Matrix<A> x, gain, shift, dy;
  Problem(test::Random& rng, Index n, Index c)
      : x(rng.matrix<A>(n, c)),
        gain(rng.matrix<A>(1, c)),
        shift(rng.matrix<A>(1, c)),
        dy(rng.matrix<A>(n, c)) {}
};

template <class A>
struct Gradients {
  Matrix<A> x, gain, shift;
  Gradients(test::Random& rng, Index n, Index c)
      : x(rng.matrix<A>(n, c)), gain(rng.matrix<A>(1, c)), shift(rng.matrix<A>(1, c)) {}
  bool operator==(const Gradients& b) const {
    return x == b.x && gain == b.gain && shift == b.shift;
  }
};

constexpr double kEps = 1e-2;  // keeps the slopes of short rows small

template <class A>
void add_gradients(const Problem<A>& p, Gradients<A>& g, Workspace workspace = {}) {
  layer_norm_adjoint<A>(p.x, row(p.gain), kEps, p.dy, g.x, row(g.gain), row(g.shift), workspace);
}

template <class A>
class LayerNorm : public testing::Test {
 public:
  // n has at most C + 10 roundings relative to sizes below 1 / sqrt(eps) = 10.
  static constexpr long double bound(Index roundings) {
    return static_cast<long double>(roundings) * 10 * std::numeric_limits<A>::epsilon();
  }
};
using Accumulators = testing::Types<float, double>;
TYPED_TEST_SUITE(LayerNorm, Accumulators);

TYPED_TEST(LayerNorm, IsItsDefinition) {
  using A = TypeParam;
  test::Random rng(1);
  for (const Index n : {0, 1, 3, 130}) {
    for (const Index c : {0, 1, 2, 7, 16, 19, 48, 100}) {
      const Problem<A> p(rng, n, c);
      Matrix<A> y = Matrix<A>::Constant(n, c, std::numeric_limits<A>::quiet_NaN());
      layer_norm<A>(p.x, row(p.gain), row(p.shift), kEps, y);
      const WideMatrix exact =
          definition(p.x.template cast<long double>(), p.gain.template cast<long double>(),
                     p.shift.template cast<long double>(), kEps);
      EXPECT_LE(test::distance(y, exact), this->bound(c + 10)) << n << " x " << c;
    }
  }
}

TYPED_TEST(LayerNorm, ALargeMeanDoesNotCancelTheVariance) {
  using A = TypeParam;
  constexpr A kLarge = A(1) / std::numeric_limits<A>::epsilon() / 1024;  // integers are exact
  Matrix<A> x(1, 8), y(1, 8);
  x << -3, -1, 1, 3, -3, -1, 1, 3;
  x.array() += kLarge;
  const Matrix<A> gain = Matrix<A>::Ones(1, 8), shift = Matrix<A>::Zero(1, 8);
  layer_norm<A>(x, row(gain), row(shift), 0, y);
  for (Index c = 0; c < 8; ++c) {
    const long double exact = (x(0, c) - kLarge) / std::sqrt(5.0L);
    EXPECT_LE(std::abs(y(0, c) - exact), 8 * std::numeric_limits<A>::epsilon());
  }
}

TYPED_TEST(LayerNorm, AdjointAddsTheDerivativesOfTheDefinition) {
  using A = TypeParam;
  test::Random rng(2);
  for (const Index n : {1, 3, 70, 130}) {
    for (const Index c : {1, 2, 7, 19}) {
      const Problem<A> p(rng, n, c);
      const Gradients<A> before(rng, n, c);
      Gradients<A> g = before;
      add_gradients(p, g);
      WideMatrix x = p.x.template cast<long double>(), gain = p.gain.template cast<long double>(),
                 shift = p.shift.template cast<long double>();
      const WideMatrix dy = p.dy.template cast<long double>();
      const auto rows = [&](Index first, Index count) {
        return (definition(x.middleRows(first, count), gain, shift, kEps).array() *
                dy.middleRows(first, count).array())
            .sum();
      };
      WideMatrix dx(n, c);
      for (Index r = 0; r < n; ++r) {  // a row depends on itself alone
        for (Index j = 0; j < c; ++j) {
          constexpr long double kStep = 1e-6L;
          const long double at = x(r, j);
          x(r, j) = at + kStep;
          const long double above = rows(r, 1);
          x(r, j) = at - kStep;
          dx(r, j) = (above - rows(r, 1)) / (2 * kStep);
          x(r, j) = at;
        }
      }
      const auto total = [&] { return rows(0, n); };
      const WideMatrix dgain = test::differences(gain, total);
      const WideMatrix dshift = test::differences(shift, total);
      // Slopes are at most 1 / sqrt(eps) = 10 larger than values; differences are off by 1e-9.
      const long double bound = 10 * this->bound(2 * c + n + 20) + 1e-9L;
      EXPECT_LE(test::distance(g.x, before.x.template cast<long double>() + dx), bound);
      EXPECT_LE(test::distance(g.gain, before.gain.template cast<long double>() + dgain), bound);
      EXPECT_LE(test::distance(g.shift, before.shift.template cast<long double>() + dshift), bound);
    }
  }
}

TYPED_TEST(LayerNorm, WhatIsNotWantedChangesNothingElse) {
  using A = TypeParam;
  test::Random rng(3);
  const Problem<A> p(rng, 150, 9);
  const Gradients<A> before(rng, 150, 9);
  Gradients<A> all = before, g = before;
  add_gradients(p, all);
  layer_norm_adjoint<A>(p.x, row(p.gain), kEps, p.dy, g.x, {}, {});
  EXPECT_EQ(g.x, all.x);
  layer_norm_adjoint<A>(p.x, row(p.gain), kEps, p.dy, {}, row(g.gain), {});
  EXPECT_EQ(g.gain, all.gain);
  EXPECT_EQ(g.shift, before.shift);
  layer_norm_adjoint<A>(p.x, row(p.gain), kEps, p.dy, {}, {}, row(g.shift));
  EXPECT_TRUE(g == all);
}

TYPED_TEST(LayerNorm, EveryNumberOfThreadsGivesTheSameBits) {
  using A = TypeParam;
  test::Random rng(4);
  for (const Index n : {1, 64, 500, 5000}) {
    const Problem<A> p(rng, n, 21);
    const Gradients<A> before(rng, n, 21);
    Gradients<A> g = before;
    add_gradients(p, g);
    Matrix<A> y(n, 21);
    layer_norm<A>(p.x, row(p.gain), row(p.shift), kEps, y);
    for (Index threads = 1; threads <= 5; ++threads) {
      ThreadPool pool(threads);
      Matrix<A> y2(n, 21);
      layer_norm<A>(p.x, row(p.gain), row(p.shift), kEps, y2, pool);
      EXPECT_EQ(y2, y);
      Gradients<A> g2 = before;
      layer_norm_adjoint<A>(p.x, row(p.gain), kEps, p.dy, g2.x, row(g2.gain), row(g2.shift), {},
                            pool);
      EXPECT_TRUE(g2 == g) << threads;
    }
  }
}

TYPED_TEST(LayerNorm, RowsMayLieAtAnyStrideAndNothingBesideThemIsTouched) {
  using A = TypeParam;
  test::Random rng(5);
  const Problem<A> p(rng, 5, 19);
  Gradients<A> g(rng, 5, 19);
  Matrix<A> y(5, 19), wide = Matrix<A>::Constant(5, 22, 7), wide_dx = wide;
  Matrix<A> wide_x = Matrix<A>::Constant(5, 22, std::numeric_limits<A>::quiet_NaN());
  wide_x.middleCols(1, 19) = p.x;
  wide_dx.middleCols(1, 19) = g.x;
  layer_norm<A>(p.x, row(p.gain), row(p.shift), kEps, y);
  layer_norm<A>(wide_x.middleCols(1, 19), row(p.gain), row(p.shift), kEps, wide.middleCols(1, 19));
  layer_norm_adjoint<A>(wide_x.middleCols(1, 19), row(p.gain), kEps, p.dy,
                        wide_dx.middleCols(1, 19), {}, {});
  add_gradients(p, g);
  EXPECT_EQ(wide.middleCols(1, 19), y);
  EXPECT_EQ(wide_dx.middleCols(1, 19), g.x);
  for (const Matrix<A>& m : {wide, wide_dx}) {
    EXPECT_TRUE((m.col(0).array() == 7).all() && (m.rightCols(2).array() == 7).all());
  }
}

TYPED_TEST(LayerNorm, ALentWorkspaceGivesTheSameBitsAndOneByteLessIsRefused) {
  using A = TypeParam;
  test::Random rng(6);
  const Problem<A> p(rng, 300, 9);
  Gradients<A> g(rng, 300, 9), lent = g;
  std::vector<std::byte> memory(layer_norm_adjoint_workspace_bytes<A>(300, 9), std::byte{0xFF});
  add_gradients(p, g);
  add_gradients(p, lent, memory);
  EXPECT_TRUE(lent == g);
  memory.pop_back();
  EXPECT_THROW(add_gradients(p, lent, memory), option_error);
  EXPECT_TRUE(lent == g);
}

TEST(LayerNormErrors, NameTheFunctionTheArgumentAndWhatWasExpected) {
  const Matrix<float> x = Matrix<float>::Ones(4, 3), short_rows = Matrix<float>::Ones(4, 2);
  const std::vector<float> three(3), two(2);
  Matrix<float> y = Matrix<float>::Constant(4, 3, 7), small = Matrix<float>::Constant(4, 2, 7);
  const auto text = [](auto&& call) { return test::message_of<error>(call); };
  EXPECT_EQ(text([&] { layer_norm<float>(x, two, three, 0, y); }),
            "mhla::layer_norm: gain has 2 elements, expected 3");
  EXPECT_EQ(text([&] { layer_norm<float>(x, three, two, 0, y); }),
            "mhla::layer_norm: shift has 2 elements, expected 3");
  EXPECT_EQ(text([&] { layer_norm<float>(x, three, three, -1, y); }),
            "mhla::layer_norm: eps is -1.000000, expected 0 or more");
  EXPECT_EQ(text([&] { layer_norm<float>(x, three, three, 0, small); }),
            "mhla::layer_norm: y has shape [4, 2], expected [4, 3]");
  const auto adjoint = [&](MatrixView<const float> dy, MatrixView<float> dx, std::span<float> dgain,
                           std::span<float> dshift) {
    return text([&] { layer_norm_adjoint<float>(x, three, 0, dy, dx, dgain, dshift); });
  };
  std::vector<float> d2(2, 7.f), d3(3, 7.f);
  EXPECT_EQ(adjoint(short_rows, y, d3, d3),
            "mhla::layer_norm_adjoint: dy has shape [4, 2], expected [4, 3]");
  EXPECT_EQ(adjoint(x, small, d3, d3),
            "mhla::layer_norm_adjoint: dx has shape [4, 2], expected [4, 3]");
  EXPECT_EQ(adjoint(x, y, d2, d3),
            "mhla::layer_norm_adjoint: dgain has 2 elements, expected 3 or none");
  EXPECT_EQ(adjoint(x, y, d3, d2),
            "mhla::layer_norm_adjoint: dshift has 2 elements, expected 3 or none");
  EXPECT_TRUE((y.array() == 7).all());
  EXPECT_EQ(d3, std::vector<float>(3, 7.f));
}

}  // namespace
}  // namespace mhla

#include "mhla/gradient/softmax.hpp"

#include <gtest/gtest.h>

#include <utility>

#include "support/message_of.hpp"
#include "support/reference.hpp"

namespace mhla::test {
namespace {

/// Matrices shaped as q [Nq,D], k [Nk,D] and v [Nk,E]: a gradient, its bound, a direction.
template <class T>
struct Three {
  Matrix<T> q, k, v;

  Matrix<T>& operator[](int i) { return i == 0 ? q : i == 1 ? k : v; }
  const Matrix<T>& operator[](int i) const { return i == 0 ? q : i == 1 ? k : v; }
};

template <class T>
struct GradientProblem {
  std::uint64_t seed;
  bool causal;
  Three<T> x;
  Matrix<T> dout;
  Three<T> start;  // what the gradients are added to
  Matrix<bool> query_mask, key_mask;
  SoftmaxOptions options;

  static Mask mask(const Matrix<bool>& keep) {
    return keep.size() == 0 ? Mask{} : Mask{keep.data(), keep.cols()};
  }
  Inputs<T> inputs() const { return {x.q, x.k, x.v, {}, {}, mask(query_mask), mask(key_mask)}; }
  /// The keys that query t reads.
  std::vector<Index> keys(Index t) const {
    std::vector<Index> keys;
    for (Index j = 0; mask(query_mask)[t] && j < (causal ? t + 1 : x.k.rows()); ++j) {
      if (mask(key_mask)[j]) keys.push_back(j);
    }
    return keys;
  }
};

template <class T>
GradientProblem<T> random_gradient(std::uint64_t seed, bool causal, Index n, Index m, Index d,
                                   Index e, double size = 1) {
  Random rng(seed);
  const auto three = [&](double s) {
    return Three<T>{rng.matrix<T>(n, d, -s, s), rng.matrix<T>(m, d, -s, s), rng.matrix<T>(m, e)};
  };
  GradientProblem<T> p{seed, causal, three(size), rng.matrix<T>(n, e), three(1), {}, {}, {}};
  const auto mask = [&rng](Index count) {
    Matrix<bool> keep(1, rng.chance(0.3) ? count : 0);
    for (Index t = 0; t < keep.cols(); ++t) keep(0, t) = rng.chance(0.7);
    return keep;
  };
  p.key_mask = mask(m), p.query_mask = mask(n);
  if (rng.chance(0.3)) p.options.scale = rng.uniform(-1, 1);
  return p;
}

template <class T>
GradientProblem<T> random_gradient(std::uint64_t seed, bool causal) {
  Random rng(seed + 77);
  const auto tokens = [&] { return rng.chance(0.9) ? rng.integer(0, 24) : rng.integer(60, 200); };
  const Index n = tokens(), m = causal ? n : tokens(), d = rng.integer(1, 40);
  const double size = rng.chance(0.2) ? 10 : 1;  // scores of some hundreds, or of some units
  return random_gradient<T>(seed, causal, n, m, d, rng.integer(0, 40), size);
}

template <class T, class X = Sequential>
void run(const GradientProblem<T>& p, const Inputs<T>& in, MatrixView<const T> dout,
         const Gradients<T>& to, X&& executor = {}) {
  GuardedWorkspace workspace(softmax_gradient_workspace_bytes(in, executor));
  if (p.causal) {
    softmax_causal_gradient(in, dout, to, p.options, workspace.get(), executor);
  } else {
    softmax_bidirectional_gradient(in, dout, to, p.options, workspace.get(), executor);
  }
  EXPECT_TRUE(workspace.intact()) << "seed " << p.seed;
}
template <class T, class X = Sequential>
Three<T> run(const GradientProblem<T>& p, X&& executor = {}) {
  Three<T> g = p.start;
  run<T>(p, p.inputs(), p.dout, {.q = g.q, .k = g.k, .v = g.v}, executor);
  return g;
}

template <class T>
bool equal(const Three<T>& a, const Three<T>& b) {
  return same_bits(a.q, b.q) && same_bits(a.k, b.k) && same_bits(a.v, b.v);
}

template <class W, class T>
Matrix<W> wide(const Matrix<T>& m) {
  return m.template cast<accumulator_t<T>>().template cast<W>();
}
template <class W, class T>
Three<W> wide(const Three<T>& x) {
  return {wide<W>(x.q), wide<W>(x.k), wide<W>(x.v)};
}

template <class W, class T>
W scale_of(const GradientProblem<T>& p) {
  if (p.x.q.cols() == 0) return 0;
  const double plain = 1 / std::sqrt(static_cast<double>(p.x.q.cols()));
  return static_cast<W>(static_cast<accumulator_t<T>>(p.options.scale.value_or(plain)));
}

using Real = long double;

/// <dout, attention(x)> by the definition, and its derivative in the direction y.
template <class T>
std::pair<Real, Real> loss(const GradientProblem<T>& p, const Three<Real>& x,
                           const Three<Real>& y) {
  const Real scale = scale_of<Real>(p);
  const Matrix<Real> dout = wide<Real>(p.dout);
  Real value = 0, derivative = 0;
  for (Index t = 0; t < x.q.rows(); ++t) {
    Real den = 0, dden = 0, num = 0, dnum = 0;
    for (const Index j : p.keys(t)) {
      const Real w = std::exp(scale * x.q.row(t).dot(x.k.row(j)));
      const Real dw = w * scale * (y.q.row(t).dot(x.k.row(j)) + x.q.row(t).dot(y.k.row(j)));
      const Real u = dout.row(t).dot(x.v.row(j)), du = dout.row(t).dot(y.v.row(j));
      den += w, dden += dw;
      num += w * u, dnum += dw * u + w * du;
    }
    if (den == 0) continue;  // no key
    value += num / den, derivative += (dnum - num / den * dden) / den;
  }
  return {value, derivative};
}

/// <gradient, y> is the derivative in a random direction y, and for small problems the slope of
/// the definition over a step of h = 1e-7 to both sides: scores below 5, which change by less than
/// 10 h, put that off by h^2 f'''/6, some 1e-12 f, and by a rounding of 2^-64 5 f / h.
void expect_derivative(GradientProblem<double> p, bool small) {
  constexpr Real kStep = 1e-7L;
  for (int i = 0; i < 3; ++i) p.start[i].setZero();
  const auto g = wide<Real>(run(p)), x = wide<Real>(p.x);
  Random rng(p.seed);
  Three<Real> y = x, above = x, below = x;
  Real product = 0, size = 0;
  for (int i = 0; i < 3; ++i) {
    y[i] = wide<Real>(rng.matrix<double>(y[i].rows(), y[i].cols()));
    above[i] += kStep * y[i];
    below[i] -= kStep * y[i];
    product += y[i].cwiseProduct(g[i]).sum();
    size += y[i].cwiseProduct(g[i]).cwiseAbs().sum();
  }
  EXPECT_LE(std::abs(product - loss(p, x, y).second), 1e-12L * size) << "seed " << p.seed;
  if (!small) return;
  const Real slope = (loss(p, above, y).first - loss(p, below, y).first) / (2 * kStep);
  EXPECT_LE(std::abs(product - slope), 1e-9L * size) << "seed " << p.seed;
}

TEST(SoftmaxGradient, IsTheDerivativeOfTheDefinition) {
  for (std::uint64_t seed = 0; seed < 600; ++seed) {
    Random rng(seed);
    const bool causal = seed % 2 == 0, small = seed % 3 != 0;
    const auto tokens = [&] { return rng.integer(0, small ? 8 : 150); };
    const Index n = tokens(), m = causal ? n : tokens();
    const Index d = rng.integer(1, small ? 5 : 40), e = rng.integer(0, small ? 5 : 40);
    expect_derivative(random_gradient<double>(seed, causal, n, m, d, e), small);
  }
}

/// start + gradient, and how far a computed one may be from it. One query's roundings, to first
/// order with what they multiply enlarged by its own error:
///   score   gamma_{D+1} sum |scale q k|
///   weight  the error of its score and of the largest, u (largest - score), and N + 12 more for
///           exponential, sum and quotient; weights too small for a normal number count as 0
///   dp      gamma_E sum |dout v|
///   delta   those of weights and dp, and gamma_{N+4} of their products
///   ds      those of weight and dp - delta, and two of its own
/// Then come chains of Nk or Nq products, one rounding for the scale, and the sum with start.
template <class T>
std::pair<Three<Wide<T>>, Three<Wide<T>>> reference(const GradientProblem<T>& p) {
  using W = Wide<T>;
  using Row = Eigen::Array<W, 1, Eigen::Dynamic>;
  const W u = kUnitRoundoff<T>, tiny = std::numeric_limits<accumulator_t<T>>::min();
  const auto x = wide<W>(p.x);
  const Matrix<W> dout = wide<W>(p.dout);
  const W scale = scale_of<W>(p);
  const Index n = x.q.rows(), d = x.q.cols(), e = x.v.cols();
  auto sum = wide<W>(p.start);
  Three<W> bound{sum.q * 0, sum.k * 0, sum.v * 0};
  for (Index t = 0; t < n; ++t) {
    const auto keys = p.keys(t);
    const auto m = static_cast<Index>(keys.size());
    if (m == 0) continue;
    Row s(m), theta(m), dp(m), dp_error(m);
    for (Index i = 0; i < m; ++i) {
      const auto k = x.k.row(keys[static_cast<std::size_t>(i)]);
      const auto v = x.v.row(keys[static_cast<std::size_t>(i)]);
      s(i) = scale * x.q.row(t).dot(k);
      theta(i) = gamma(d + 1, u) * std::abs(scale) * x.q.row(t).cwiseAbs().dot(k.cwiseAbs());
      dp(i) = dout.row(t).dot(v);
      dp_error(i) = gamma(e, u) * dout.row(t).cwiseAbs().dot(v.cwiseAbs());
    }
    const W worst = theta.maxCoeff();
    const Row far = s.maxCoeff() - s + 2 * worst;
    Row weight = (s - s.maxCoeff()).exp();
    weight /= weight.sum();
    const Row relative = (theta + worst + u * (far + far.maxCoeff()) + gamma(m + 12, u)).exp() - 1;
    const Row weight_error = weight * relative + 2 * tiny;
    const Row weight_most = weight + weight_error, dp_most = dp.abs() + dp_error;
    const W delta = (weight * dp).sum();
    const W delta_error = (weight_error * dp_most + weight * dp_error).sum() +
                          gamma(m + 4, u) * (weight_most * dp_most).sum();
    const Row gap = (dp - delta).abs();
    const Row gap_error = (1 + u) * (dp_error + delta_error) + u * gap;
    const Row ds = weight * (dp - delta);
    const Row ds_error =
        (1 + u) * (weight_error * (gap + gap_error) + weight * gap_error) + u * weight * gap;
    for (Index i = 0; i < m; ++i) {
      const Index j = keys[static_cast<std::size_t>(i)];
      const W ds_most = std::abs(ds(i)) + ds_error(i);
      sum.q.row(t) += scale * ds(i) * x.k.row(j);
      sum.k.row(j) += scale * ds(i) * x.q.row(t);
      sum.v.row(j) += weight(i) * dout.row(t);
      const W slack = ds_error(i) + gamma(std::max(m, n) + 1, u) * ds_most;
      bound.q.row(t) += std::abs(scale) * slack * x.k.row(j).cwiseAbs();
      bound.k.row(j) += std::abs(scale) * slack * x.q.row(t).cwiseAbs();
      bound.v.row(j) += (weight_error(i) + gamma(n, u) * weight_most(i)) * dout.row(t).cwiseAbs();
    }
  }
  const W storage = static_cast<W>(kStorageRoundoff<T>);
  for (int i = 0; i < 3; ++i) {
    const auto magnitude = (sum[i].cwiseAbs() + bound[i]).eval();
    const W below = storage > 0 ? W(0x1p-25) : tiny * 0x1p20;  // what underflows on the way
    bound[i] = ((bound[i] + (u + storage) * (1 + u) * magnitude).array() + below).matrix().eval();
  }
  return {sum, bound};
}

template <class T>
void expect_within_bound(const GradientProblem<T>& p, double& worst) {
  const auto got = wide<Wide<T>>(run(p));
  const auto [expected, bound] = reference(p);
  for (int i = 0; i < 3; ++i) {
    for (Index c = 0; c < got[i].size(); ++c) {
      const auto error = std::abs(got[i].data()[c] - expected[i].data()[c]);
      worst = std::max(worst, static_cast<double>(error / bound[i].data()[c]));
      ASSERT_LE(error, bound[i].data()[c]) << "seed " << p.seed << " tensor " << i << " at " << c;
    }
  }
}

template <class T>
class SoftmaxGradientOf : public testing::Test {};
using Stored = testing::Types<float, double, Eigen::half, Eigen::bfloat16>;
TYPED_TEST_SUITE(SoftmaxGradientOf, Stored);

TYPED_TEST(SoftmaxGradientOf, IsWithinTheBound) {
  double worst = 0;
  for (std::uint64_t seed = 0; seed < 1500 && !this->HasFatalFailure(); ++seed) {
    expect_within_bound(random_gradient<TypeParam>(10'000 + seed, seed % 2 == 0), worst);
  }
  std::cout << "worst error " << worst << " of the bound\n";
}

TEST(SoftmaxGradient, SizesAroundWholeTiles) {
  double worst = 0;
  for (const Index n : {0, 1, 63, 64, 65, 127, 128, 129}) {
    for (const Index m : {0, 1, 63, 64, 65, 128, 130}) {
      for (const Index d : {0, 1, 16, 17}) {
        const auto seed = static_cast<std::uint64_t>((n * 200 + m) * 20 + d);
        expect_within_bound(random_gradient<float>(seed, n == m, n, m, d, 17 - d), worst);
      }
    }
  }
}

TEST(SoftmaxGradient, BitsDoNotDependOnTheNumberOfThreads) {
  for (Index threads = 1; threads <= 5; ++threads) {
    ThreadPool pool(threads);
    for (std::uint64_t seed = 0; seed < 40; ++seed) {
      const Index n = 40 + 15 * static_cast<Index>(seed);
      const auto p = random_gradient<float>(seed, seed % 2 == 0, n, n, 20, 12);
      EXPECT_TRUE(equal(run(p), run(p, pool))) << seed << ", " << threads << " threads";
    }
  }
}

// What a query or its row of dout holds reaches the keys that it reads and no others, and the other
// way round; rows of masked tokens keep what they held.
TEST(SoftmaxGradient, LaterAndMaskedTokensReachNothing) {
  for (std::uint64_t seed = 0; seed < 400; ++seed) {
    auto p = random_gradient<float>(seed, true);
    const Index n = p.x.q.rows(), first = n / 2, late = n - first;
    const auto before = run(p);
    for (Index t = 0; t < n; ++t) {
      if (!p.mask(p.key_mask)[t]) {
        p.x.k.row(t).setConstant(NAN);
        p.x.v.row(t).setConstant(NAN);
        EXPECT_TRUE(before.k.row(t) == p.start.k.row(t) && before.v.row(t) == p.start.v.row(t));
      }
      if (!p.mask(p.query_mask)[t]) {
        p.x.q.row(t).setConstant(NAN);
        p.dout.row(t).setConstant(NAN);
        EXPECT_EQ(before.q.row(t), p.start.q.row(t));
      }
    }
    EXPECT_TRUE(equal(before, run(p))) << seed;
    auto later = p, earlier = p;
    later.x.k.bottomRows(late).setConstant(NAN);
    later.x.v.bottomRows(late).setConstant(NAN);
    EXPECT_EQ(before.q.topRows(first), run(later).q.topRows(first)) << seed;
    earlier.x.q.topRows(first).setConstant(NAN);
    earlier.dout.topRows(first).setConstant(NAN);
    const auto after = run(earlier);
    EXPECT_EQ(before.k.bottomRows(late), after.k.bottomRows(late)) << seed;
    EXPECT_EQ(before.v.bottomRows(late), after.v.bottomRows(late)) << seed;
  }
}

TEST(SoftmaxGradient, QueriesWithoutKeysCountAsMasked) {
  for (const bool causal : {true, false}) {
    auto p = random_gradient<float>(5, causal, 100, 100, 8, 8);
    p.key_mask = Matrix<bool>::Constant(1, 100, causal);
    p.key_mask.leftCols(70).setConstant(false);
    p.query_mask.resize(0, 0);
    p.x.q.topRows(70).setConstant(NAN), p.dout.topRows(70).setConstant(NAN);
    p.start.q.setConstant(-0.0F);  // which adding a zero would change
    const auto bare = run(p);
    p.query_mask = p.key_mask;
    EXPECT_TRUE(equal(bare, run(p)));
  }
}

TEST(SoftmaxGradient, WhatIsNotWantedChangesNothingElse) {
  for (std::uint64_t seed = 0; seed < 80; ++seed) {
    const auto p = random_gradient<double>(seed, seed % 2 == 0);
    const auto all = run(p);
    for (int wanted = 0; wanted < 8; ++wanted) {
      Three<double> g = p.start;
      Gradients<double> some;
      if (wanted & 1) some.q = g.q;
      if (wanted & 2) some.k = g.k;
      if (wanted & 4) some.v = g.v;
      run<double>(p, p.inputs(), p.dout, some);
      for (int i = 0; i < 3; ++i) {
        EXPECT_TRUE(same_bits(g[i], wanted >> i & 1 ? all[i] : p.start[i])) << seed << i;
      }
    }
  }
}

TEST(SoftmaxGradient, ReadsAndWritesStridedViews) {
  using Columns = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::ColMajor>;
  for (std::uint64_t seed = 0; seed < 80; ++seed) {
    const auto p = random_gradient<float>(seed, seed % 2 == 0);
    const Columns q = p.x.q, k = p.x.k, v = p.x.v, dout = p.dout;
    Columns dq = p.start.q, dk = p.start.k, dv = p.start.v;
    const Inputs<float> in{q, k, v, {}, {}, p.mask(p.query_mask), p.mask(p.key_mask)};
    run<float>(p, in, dout, {.q = dq, .k = dk, .v = dv});
    EXPECT_TRUE(equal(run(p), Three<float>{dq, dk, dv})) << seed;
  }
}

TEST(SoftmaxGradient, MemoryGrowsWithTheTokensAndNotWithTheirSquare) {
  const MatrixView<const float> x(nullptr, 1 << 19, 64, 64), y(nullptr, 1 << 20, 64, 64);
  const auto bytes = softmax_gradient_workspace_bytes(Inputs<float>{.q = x, .k = x, .v = x});
  EXPECT_LT(softmax_gradient_workspace_bytes(Inputs<float>{.q = y, .k = y, .v = y}), 2 * bytes);
}

TEST(SoftmaxGradient, RejectsWhatDoesNotFit) {
  const auto p = random_gradient<float>(1, false, 4, 5, 3, 2);
  Three<float> g = p.start;
  const Gradients<float> all{.q = g.q, .k = g.k, .v = g.v};
  const Inputs<float> in{.q = p.x.q, .k = p.x.k, .v = p.x.v};
  const bool keep[3] = {};
  Inputs<float> short_v = in, short_mask = in;
  short_v.v = p.x.q, short_mask.key_mask = {keep, 3};
  const auto message = [&](const Inputs<float>& i, MatrixView<const float> dout,
                           const Gradients<float>& to, Workspace workspace = {}) {
    const std::string text =
        message_of<error>([&] { softmax_bidirectional_gradient(i, dout, to, {}, workspace); });
    return text.substr(0, 38) == "mhla::softmax_bidirectional_gradient: " ? text.substr(38) : text;
  };
  EXPECT_EQ(message_of<shape_error>([&] { softmax_causal_gradient(in, p.dout, all); }),
            "mhla::softmax_causal_gradient: k has shape [5, 3], expected [4, 3]");
  EXPECT_EQ(message(in, p.x.v, all), "dout has shape [5, 2], expected [4, 2]");
  EXPECT_EQ(message(in, p.dout, {.q = g.k}), "gradients.q has shape [5, 3], expected [4, 3]");
  EXPECT_EQ(message(in, p.dout, {.k = g.q}), "gradients.k has shape [4, 3], expected [5, 3]");
  EXPECT_EQ(message(in, p.dout, {.v = {nullptr, 5, 2, 2}}),
            "gradients.v is null with shape [5, 2], expected a pointer to data");
  EXPECT_EQ(message(short_v, p.dout, all), "v has shape [4, 3], expected [5, any]");
  EXPECT_EQ(message(short_mask, p.dout, all),
            "key_mask has 3 entries, expected 5 (one for each token)");
  std::byte little[8];
  EXPECT_EQ(message(in, p.dout, all, little).substr(0, 21), "workspace has 8 bytes");
  EXPECT_TRUE(equal(g, p.start));
}

}  // namespace
}  // namespace mhla::test

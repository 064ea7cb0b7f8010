#include "mhla/attention/softmax.hpp"

#include <gtest/gtest.h>

#include "support/message_of.hpp"
#include "support/reference.hpp"

namespace mhla::test {
namespace {

template <class T>
struct SoftmaxProblem {
  std::uint64_t seed;
  bool causal;
  Matrix<T> q, k, v;
  Matrix<bool> query_mask, key_mask;
  std::optional<double> scale;

  Inputs<T> inputs() const {
    Inputs<T> in{.q = q, .k = k, .v = v};
    if (query_mask.size() > 0) in.query_mask = {query_mask.data(), query_mask.cols(), 1};
    if (key_mask.size() > 0) in.key_mask = {key_mask.data(), key_mask.cols(), 1};
    return in;
  }
};

template <class T>
SoftmaxProblem<T> random_softmax(std::uint64_t seed, bool causal) {
  Random rng(seed);
  const auto tokens = [&rng] {
    return rng.chance(0.95) ? rng.integer(0, 24) : rng.integer(60, 200);
  };
  const Index n = tokens(), m = causal ? n : tokens(), d = rng.integer(1, 40);
  const Index e = rng.integer(0, 40);
  const double size = rng.chance(0.2) ? 10 : 1;  // scores of some hundreds, or of some units
  SoftmaxProblem<T> p{seed,
                      causal,
                      rng.matrix<T>(n, d, -size, size),
                      rng.matrix<T>(m, d, -size, size),
                      rng.matrix<T>(m, e),
                      {},
                      {},
                      {}};
  const auto random_mask = [&rng](Index count) {
    Matrix<bool> mask(1, count);
    for (Index t = 0; t < count; ++t) mask(0, t) = rng.chance(0.7);
    return mask;
  };
  if (rng.chance(0.2)) p.key_mask = random_mask(m);
  if (rng.chance(0.2)) p.query_mask = random_mask(n);
  if (rng.chance(0.3)) p.scale = rng.uniform(-1, 1);
  return p;
}

template <class T, class X = Sequential>
Matrix<T> run(const SoftmaxProblem<T>& p, X&& executor = {}) {
  Matrix<T> out = unwritten<T>(p.q.rows(), p.v.cols());
  GuardedWorkspace workspace(softmax_workspace_bytes(p.inputs(), executor));
  const SoftmaxOptions options{.scale = p.scale};
  if (p.causal) {
    softmax_causal(p.inputs(), out, options, workspace.get(), executor);
  } else {
    softmax_bidirectional(p.inputs(), out, options, workspace.get(), executor);
  }
  EXPECT_TRUE(workspace.intact()) << "seed " << p.seed;
  return out;
}

/// One output row [E] by the definition, and its bound. With s the scores, M their largest, the
/// computed weight of key j is exp(s_j - M) times e^theta_j, where theta_j collects
///   gamma_{D+1} sum |scale q k|   the error of the score (the largest cancels in the quotient)
///   u (M - s_j)                   subtracting the running maxima, which telescopes
///   (4 + 4 tiles + N + 2) u       exponentials, rescaling a tile, the chain of sums, the quotient
/// and weights too small for a normal number count as 0.
template <class T>
void reference_row(const SoftmaxProblem<T>& p, Index t, std::vector<Wide<T>>& out,
                   std::vector<Wide<T>>& bound) {
  using W = Wide<T>;
  using A = accumulator_t<T>;
  const W u = kUnitRoundoff<T>;
  const Index d = p.q.cols(), n = p.k.rows();
  const W scale =
      static_cast<W>(static_cast<A>(p.scale.value_or(1 / std::sqrt(static_cast<double>(d)))));
  const auto number = [](T x) { return static_cast<W>(static_cast<A>(x)); };
  std::vector<W> score, theta;
  std::vector<Index> keys;
  W largest = -std::numeric_limits<W>::infinity();
  for (Index j = 0; j < (p.causal ? t + 1 : n); ++j) {
    if (p.key_mask.size() > 0 && !p.key_mask(0, j)) continue;
    W s = 0, size = 0;
    for (Index i = 0; i < d; ++i) {
      const W term = scale * number(p.q(t, i)) * number(p.k(j, i));
      s += term;
      size += std::abs(term);
    }
    keys.push_back(j);
    score.push_back(s);
    theta.push_back(gamma(d + 1, u) * size);
    largest = std::max(largest, s);
  }
  const W roundings = static_cast<W>(4 + 4 * (n / 64 + 1) + n + 2) * u;
  const W tiny = static_cast<W>(std::numeric_limits<A>::min());
  W den = 0, den_error = 0;
  std::vector<W> num(static_cast<std::size_t>(p.v.cols())), num_error(num.size());
  for (std::size_t i = 0; i < keys.size(); ++i) {
    const W weight = std::exp(score[i] - largest);
    const W error = weight * std::expm1(theta[i] + u * (largest - score[i]) + roundings) + 2 * tiny;
    den += weight;
    den_error += error;
    for (std::size_t e = 0; e < num.size(); ++e) {
      const W v = number(p.v(keys[i], static_cast<Index>(e)));
      num[e] += weight * v;
      num_error[e] += error * std::abs(v);
    }
  }
  out.resize(num.size());
  bound.resize(num.size());
  for (std::size_t e = 0; e < num.size(); ++e) {
    out[e] = num[e] / den;
    bound[e] = (num_error[e] + std::abs(out[e]) * den_error) / (den - den_error);
    bound[e] += static_cast<W>(kStorageRoundoff<T>) * (std::abs(out[e]) + bound[e]);
    if (kStorageRoundoff < T >> 0) bound[e] += W(0x1p-25);
  }
}

template <class T>
void expect_equal_to_definition(bool causal, std::uint64_t first_seed, Index problems) {
  double worst = 0;
  for (Index i = 0; i < problems; ++i) {
    const auto p = random_softmax<T>(first_seed + static_cast<std::uint64_t>(i), causal);
    const Matrix<T> out = run(p);
    for (Index t = 0; t < out.rows(); ++t) {
      const bool masked = p.query_mask.size() > 0 && !p.query_mask(0, t);
      std::vector<Wide<T>> o, bound;
      reference_row(p, t, o, bound);
      for (Index e = 0; e < out.cols(); ++e) {
        const auto got = static_cast<Wide<T>>(static_cast<accumulator_t<T>>(out(t, e)));
        const auto column = static_cast<std::size_t>(e);
        if (masked) {
          ASSERT_EQ(got, 0) << "seed " << p.seed;
        } else if (std::isnan(o[column])) {
          ASSERT_TRUE(std::isnan(got)) << "seed " << p.seed;  // no key: 0 / 0
        } else {
          const double error = static_cast<double>(std::abs(got - o[column]));
          worst = std::max(worst, error / static_cast<double>(bound[column]));
          ASSERT_LE(error, bound[column]) << "seed " << p.seed << " (" << t << "," << e << ")";
        }
      }
    }
  }
  std::cout << "softmax: worst error " << worst << " of the bound\n";
}

TEST(Softmax, FloatBidirectionalEqualsTheDefinition) {
  expect_equal_to_definition<float>(false, 1'000'000, 20'000);
}
TEST(Softmax, FloatCausalEqualsTheDefinition) {
  expect_equal_to_definition<float>(true, 2'000'000, 20'000);
}
TEST(Softmax, DoubleBidirectionalEqualsTheDefinition) {
  expect_equal_to_definition<double>(false, 3'000'000, 20'000);
}
TEST(Softmax, DoubleCausalEqualsTheDefinition) {
  expect_equal_to_definition<double>(true, 4'000'000, 20'000);
}
TEST(Softmax, Bfloat16EqualsTheDefinition) {
  expect_equal_to_definition<Eigen::bfloat16>(false, 5'000'000, 2'000);
}

TEST(Softmax, BitsDoNotDependOnTheNumberOfThreads) {
  ThreadPool two(2), five(5);
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    const auto p = random_softmax<float>(seed, seed % 2 == 0);
    EXPECT_TRUE(same_bits(run(p), run(p, two))) << seed;
    EXPECT_TRUE(same_bits(run(p), run(p, five))) << seed;
  }
}

TEST(Softmax, LaterAndMaskedTokensReachNoOutput) {
  for (std::uint64_t seed = 0; seed < 1000; ++seed) {
    auto p = random_softmax<float>(seed, true);
    if (p.q.rows() < 2) continue;
    const Matrix<float> before = run(p);
    const Index first = p.q.rows() / 2 + 1, late = p.q.rows() - first;
    p.q.bottomRows(late).setConstant(NAN);
    p.k.bottomRows(late).setConstant(NAN);
    p.v.bottomRows(late).setConstant(NAN);
    for (Index t = 0; t < p.key_mask.cols(); ++t) {
      if (!p.key_mask(0, t)) p.k.row(t).setConstant(INFINITY);
      if (!p.key_mask(0, t)) p.v.row(t).setConstant(NAN);
    }
    for (Index t = 0; t < p.query_mask.cols(); ++t) {
      if (!p.query_mask(0, t)) p.q.row(t).setConstant(NAN);
    }
    EXPECT_TRUE(
        same_bits(Matrix<float>(before.topRows(first)), Matrix<float>(run(p).topRows(first))))
        << seed;
  }
}

TEST(Softmax, MemoryGrowsWithTheTokensAndNotWithTheirSquare) {
  const auto bytes = [](Index n) {
    const MatrixView<const float> x(nullptr, n, 64, 64);
    return static_cast<double>(softmax_workspace_bytes(Inputs<float>{.q = x, .k = x, .v = x}));
  };
  EXPECT_LT(bytes(1 << 20) / bytes(1 << 19), 2.01);
}

TEST(Softmax, RejectsWhatDoesNotFit) {
  const Matrix<float> q = Matrix<float>::Ones(4, 3), k = Matrix<float>::Ones(5, 2);
  Matrix<float> out(4, 2);
  EXPECT_EQ(message_of<shape_error>(
                [&] { softmax_bidirectional(Inputs<float>{.q = q, .k = k, .v = k}, out); }),
            "mhla::softmax_bidirectional: k has shape [5, 2], expected [any, 3]");
}

}  // namespace
}  // namespace mhla::test

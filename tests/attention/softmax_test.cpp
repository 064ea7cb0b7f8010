#include "mhla/attention/softmax.hpp"

#include <cfenv>

#include "contract/forward.hpp"
#include "support/forward_forms.hpp"

namespace mhla::test {
namespace {

SoftmaxOptions options_of(double scale) {
  return scale == 1 ? SoftmaxOptions{} : SoftmaxOptions{scale};
}

/// Error of an exponential in rounding modes other than to nearest, in which e^x = 2^n e^r may have
/// |r| = ln(2). It is twice the first term that a polynomial of degree 7, or 13 in double, lacks,
/// for a weight and for the factor of its tile.
template <class T>
Wide<T> exponential_error() {
  if (std::fegetround() == FE_TONEAREST) return 0;
  return std::is_same_v<T, double> ? Wide<T>(4 * 6.8e-14) : Wide<T>(4 * 1.4e-6);
}

/// Computes one output row [E] by the definition, and its bound. s are the scores and M is the
/// largest. The computed weight of key j is exp(s_j - M) times e^theta_j, where theta_j collects
///   gamma_{D+1} sum |scale q k|   the error of the score (the largest cancels in the quotient)
///   u (M - s_j)                   subtracting the running maxima, which telescopes
///   (4 + 4 tiles + N + 2) u       exponentials, rescaling a tile, the chain of sums, the quotient
/// Weights too small for a normal number count as 0. Products that underflow have an error of eta
/// each (support/reference.hpp). If a score or a numerator may overflow, there is no bound.
template <class T>
void expect_row(const Problem<T>& p, Index t, Expected<T>& expected) {
  using W = Wide<T>;
  using A = accumulator_t<T>;
  const W u = roundoff<T>(), eta = underflow<T>();
  const W most = static_cast<W>((std::numeric_limits<A>::max)());
  const Index d = p.q.cols(), n = p.k.rows();
  const W scale =
      static_cast<W>(static_cast<A>(options_of(p.scale).scale.value_or(1 / std::sqrt(double(d)))));
  const auto number = [](T x) { return static_cast<W>(static_cast<A>(x)); };
  std::vector<W> score, theta;
  std::vector<Index> keys;
  W largest = -std::numeric_limits<W>::infinity(), largest_size = 0;
  for (Index j = 0; j < (p.causal ? t + 1 : n); ++j) {
    if (!p.inputs().key_mask[j]) continue;
    W s = 0, size = 0;
    for (Index i = 0; i < d; ++i) {
      const W term = scale * number(p.q(t, i)) * number(p.k(j, i));
      s += term;
      size += std::abs(term);
    }
    keys.push_back(j);
    score.push_back(s);
    theta.push_back(gamma(d + 1, u) * size + static_cast<W>(d + 1) * eta);
    largest = std::max(largest, s);
    largest_size = std::max(largest_size, size * std::max(W(1), 1 / std::abs(scale)));
  }
  const W roundings = static_cast<W>(4 + 4 * (n / 64 + 1) + n + 2) * u + exponential_error<T>();
  const W tiny = static_cast<W>(std::numeric_limits<A>::min());
  W den = 0, den_error = 0;
  std::vector<W> num(static_cast<std::size_t>(p.v.cols())), num_error(num.size()), size(num);
  for (std::size_t i = 0; i < keys.size(); ++i) {
    const W weight = std::exp(score[i] - largest);
    const W error = weight * std::expm1(theta[i] + u * (largest - score[i]) + roundings) + 2 * tiny;
    den += weight;
    den_error += error;
    for (std::size_t e = 0; e < num.size(); ++e) {
      const W v = number(p.v(keys[i], static_cast<Index>(e)));
      num[e] += weight * v;
      num_error[e] += error * std::abs(v) + eta;
      size[e] += weight * std::abs(v);
    }
  }
  for (Index e = 0; e < p.v.cols(); ++e) {
    const auto i = static_cast<std::size_t>(e);
    W& out = expected.out(t, e);
    W& bound = expected.bound(t, e);
    out = num[i] / den;
    bound = (num_error[i] + std::abs(out) * den_error) / (den - den_error);
    bound += storage_error<T>(std::abs(out) + bound);
    if (!(den > den_error) || !(largest_size < most && 2 * size[i] < most)) bound = -1;
  }
}

/// Softmax for the contract of forms (support/forward_forms.hpp).
template <bool kIsCausal>
struct Softmax {
  static constexpr const char* kName = kIsCausal ? "softmax_causal" : "softmax_bidirectional";
  static constexpr bool kCausal = kIsCausal, kOperator = false, kMixes = false;
  static constexpr unsigned kKeeps = 0;

  /// Scores of a few units, or of a few hundred.
  template <class T>
  static void fit(Problem<T>& p) {
    Random rng(p.seed);
    const double size = rng.chance(0.2) ? 10 : 1;
    p.q = rng.matrix<T>(p.q.rows(), p.q.cols(), -size, size);
    p.k = rng.matrix<T>(p.k.rows(), p.k.cols(), -size, size);
    p.normalizer_q = p.normalizer_k = {};
    p.scale = rng.chance(0.3) ? rng.uniform(-1, 1) : 1;
  }
  template <class T>
  static Expected<T> expect(const Problem<T>& p) {
    Matrix<Wide<T>> zeros = Matrix<Wide<T>>::Zero(p.q.rows(), p.v.cols());
    Expected<T> expected{zeros, zeros};
    for (Index t = 0; t < p.q.rows(); ++t) {
      if (p.inputs().query_mask[t]) expect_row(p, t, expected);
    }
    return expected;
  }
  template <class In>
  static std::size_t bytes(const In& in, const forward::ArgumentsOf<In>&,
                           const ExecutorRef& executor) {
    return softmax_workspace_bytes(in, executor);
  }
  template <class In>
  static void run(const In& in, const forward::ArgumentsOf<In>& a, const forward::OutputOf<In>& out,
                  const Call& call) {
    if constexpr (kIsCausal) {
      softmax_causal(in, out, options_of(a.scale), call);
    } else {
      softmax_bidirectional(in, out, options_of(a.scale), call);
    }
  }
};

// Causality is an option of one head type, so half of the scalars are tested with it and half
// without.
TEST_FORM(SoftmaxBidirectional, Softmax<false>, float, Eigen::bfloat16);
TEST_FORM(SoftmaxCausal, Softmax<true>, double, Eigen::half);

TEST(Softmax, AQueryWithoutKeysGetsZero) {
  const Matrix<float> q = Matrix<float>::Ones(2, 3), none(0, 3);
  EXPECT_TRUE(softmax_bidirectional(inputs(q, none, none)).isZero(0));
}

TEST(Softmax, KeysOfScoreMinusInfinityHaveWeightZeroWhereverTheyStand) {
  constexpr Index kKeys = 65;  // more than a tile
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const Index finite : {0, 40, 64}) {
    Matrix<float> k = Matrix<float>::Constant(kKeys, 1, -kInfinity),
                  v = Matrix<float>::Random(kKeys, 3);
    k(finite, 0) = 1;
    const Matrix<float> q = Matrix<float>::Ones(2, 1), one = v.row(finite);
    EXPECT_EQ(softmax_bidirectional(inputs(q, k, v)), one.replicate(2, 1)) << finite;
  }
}

TEST(Softmax, KeysAreAsWideAsQueries) {
  const Matrix<float> q = Matrix<float>::Ones(4, 3), k = Matrix<float>::Ones(5, 2);
  EXPECT_EQ(message_of<shape_error>([&] { softmax_bidirectional(inputs(q, k, k)); }),
            "mhla::softmax_bidirectional: k has shape [5, 2], expected [any, 3]");
}

TEST(Softmax, MemoryGrowsWithTheTokensAndNotWithTheirSquare) {
  const auto bytes = [](Index n) {
    const MatrixView<const float> x(nullptr, n, 64, 64);
    return static_cast<double>(softmax_workspace_bytes(Inputs<float>{.q = x, .k = x, .v = x}));
  };
  EXPECT_LT(bytes(1 << 20) / bytes(1 << 19), 2.01);
}

}  // namespace
}  // namespace mhla::test

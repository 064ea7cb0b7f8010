/// \file
/// Two feature maps of your own: a type that satisfies the FeatureMap concept, and Elementwise.
///
/// 1. TaylorExp, the second-order Taylor series of e^(q.k), wider than its input:
///
///        phi(x) = [1, x_i, x_i^2 / sqrt(2), x_i x_j for i < j]          D -> 1 + D + D(D+1)/2
///        phi(q).phi(k) = 1 + q.k + (q.k)^2 / 2 >= 1/2
///
///    so weights stay positive although features do not. Source: Arora et al., arXiv:2402.18668.
/// 2. The square of relu, one line with Elementwise.
///
/// Each map is phi of an Operator. Outputs are compared with naive_attention in double on features
/// of a second implementation of the map, which has all D^2 products.
///
/// Run:       build/examples/own_feature_map
/// Expected:  (the errors depend on the processor)
///
///     TaylorExp     16 -> 153 features, condition 10.3, error 9.3e-08 of at most 5.2e-04: ok
///     squared relu  16 ->  16 features, condition 1.0, error 4.1e-08 of at most 3.4e-05: ok

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <mhla/mhla.hpp>
#include <vector>

namespace {

using mhla::Index;
using mhla::Matrix;

constexpr Index kTokens = 256;  // N
constexpr Index kWidth = 16;    // D, before the feature map
constexpr Index kValues = 32;   // E
constexpr Index kBlock = 16;    // W

/// The Taylor map, called once per token. Rows x and y do not overlap; they are float or double.
struct TaylorExp {
  Index features(Index d) const { return 1 + d + d * (d + 1) / 2; }

  template <mhla::Accumulator A>
  void operator()(const A* x, A* y, Index d) const {
    const A half_root = static_cast<A>(std::sqrt(0.5));
    *y++ = 1;
    y = std::copy_n(x, d, y);
    for (Index i = 0; i < d; ++i) {
      *y++ = x[i] * x[i] * half_root;
      for (Index j = i + 1; j < d; ++j) *y++ = x[i] * x[j];
    }
  }
};
static_assert(mhla::FeatureMap<TaylorExp, float> && mhla::FeatureMap<TaylorExp, double>);

/// A second implementation of the map, in double and with all products:
/// [1, x, (x outer x) / sqrt(2)].
Matrix<double> taylor_again(const Matrix<float>& tokens) {
  const Matrix<double> x = tokens.cast<double>();
  Matrix<double> features(x.rows(), 1 + kWidth + kWidth * kWidth);
  features.col(0).setOnes();
  features.middleCols(1, kWidth) = x;
  for (Index i = 0; i < kWidth; ++i) {
    features.middleCols(1 + kWidth + i * kWidth, kWidth) =
        (x.array().colwise() * x.col(i).array()) * std::sqrt(0.5);
  }
  return features;
}

Matrix<double> squared_relu_again(const Matrix<float>& tokens) {
  return tokens.cast<double>().cwiseMax(0).array().square();
}

/// Compares the operator with phi = `map` with naive_attention on features made by `again`, and
/// prints the result. Returns true if they agree.
template <class Map, class Again>
bool agrees(const char* name, const Map& map, const Again& again) {
  const Matrix<float> q = Matrix<float>::Random(kTokens, kWidth);
  const Matrix<float> k = Matrix<float>::Random(kTokens, kWidth);
  const Matrix<float> v = Matrix<float>::Random(kTokens, kValues);
  const mhla::Contiguous blocks(kTokens, kBlock);
  const auto mixing = mhla::locality<float>(blocks.blocks());
  const mhla::Operator op{map};
  const Matrix<float> o = mhla::bidirectional(q, k, v, blocks, mixing, op);

  auto p = mhla::naive_problem(mhla::inputs(q, k, v), blocks, mixing, op);
  p.q = again(q);
  p.k = again(k);
  const Matrix<double> expected = mhla::naive_attention(p);
  const double error = (o.cast<double>() - expected).cwiseAbs().maxCoeff();

  // Features of either sign cancel, so the error of a sum is relative to the sum of absolute terms.
  // `condition` is that sum over the denominator. |v| <= 1.
  const Matrix<double> denominators = mhla::naive_denominators(p);
  p.q = p.q.cwiseAbs().eval();
  p.k = p.k.cwiseAbs().eval();
  const double condition = mhla::naive_denominators(p).cwiseQuotient(denominators).maxCoeff();
  const auto roundings = static_cast<double>(kTokens + blocks.blocks() + map.features(kWidth));
  const double bound = 2 * condition * roundings * 0x1p-24;

  const bool ok = error <= bound;
  std::printf("%-12s %3td -> %3td features, condition %3.1f, error %.1e of at most %.1e: %s\n",
              name, kWidth, map.features(kWidth), condition, error, bound, ok ? "ok" : "FAILED");
  return ok;
}

}  // namespace

int main() {
  const mhla::Elementwise squared_relu([](auto x) { return x > 0 ? x * x : 0; });
  const bool taylor = agrees("TaylorExp", TaylorExp{}, taylor_again);
  const bool square = agrees("squared relu", squared_relu, squared_relu_again);
  return taylor && square ? 0 : 1;
}

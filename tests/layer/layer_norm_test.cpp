#include "mhla/layer/layer_norm.hpp"

#include "contract/layer.hpp"
#include "support/message_of.hpp"

namespace mhla::test {
namespace {

/// x [n,c], and if it is affine gain [c] and shift [c] -> y [n,c].
template <class A, bool kAffine = true>
struct NormLayer {
  using Scalar = A;
  static constexpr double kEps = 1e-2;

  static std::vector<Sizes> sizes() {  // n, c
    return {{0, 3}, {3, 0}, {1, 1}, {3, 2}, {3, 7}, {70, 16}, {130, 19}, {2, 100}, {500, 48}};
  }
  static std::vector<std::string> names() { return {"layer_norm", "x", "gain", "shift", "y"}; }
  static Shapes inputs(const Sizes& s) {
    if (!kAffine) return {{s[0], s[1]}};
    return {{s[0], s[1]}, row_of(s[1]), row_of(s[1])};
  }
  static Shapes outputs(const Sizes& s) { return {{s[0], s[1]}}; }
  template <class T>
  static std::span<T> row(const Views<T>& all, std::size_t i) {
    return kAffine ? span_of(all[i]) : std::span<T>();
  }
  static void forward(const Views<const A>& in, const Views<A>& out, const Call& call) {
    layer_norm(in[0], row(in, 1), row(in, 2), kEps, out[0], call.executor);
  }
  static void adjoint(const Views<const A>& in, const Views<const A>&, MatrixView<const A> dy,
                      const Views<A>& din, const Call& call) {
    layer_norm_adjoint(in[0], row(in, 1), kEps, dy, din[0], row(din, 1), row(din, 2), call);
  }
  static std::vector<Matrix<Dual<A>>> definition(const std::vector<Matrix<Dual<A>>>& in) {
    Matrix<Dual<A>> y = in[0];
    const Dual<A> count(y.cols());
    for (Index r = 0; r < y.rows(); ++r) {
      Dual<A> mean, variance(kEps);
      for (Index c = 0; c < y.cols(); ++c) mean += y(r, c) / count;
      for (Index c = 0; c < y.cols(); ++c) {
        y(r, c) -= mean;
        variance += y(r, c) * y(r, c) / count;
      }
      const Dual<A> deviation = sqrt(variance);
      for (Index c = 0; c < y.cols(); ++c) {
        y(r, c) /= deviation;
        if (kAffine) y(r, c) = y(r, c) * in[1](0, c) + in[2](0, c);
      }
    }
    return {y};
  }
  static Index roundings(const Sizes& s) { return s[0] + 4 * s[1] + 20; }
  static std::size_t forward_bytes(const Sizes&) { return 0; }
  static std::size_t adjoint_bytes(const Sizes& s) {
    return layer_norm_adjoint_workspace_bytes<A>(s[0], s[1]);
  }
};

using Norms = testing::Types<NormLayer<float>, NormLayer<double>, NormLayer<float, false>,
                             NormLayer<double, false>>;
TEST_LAYERS(LayerNorm, Norms);

template <class A>
void expect_large_mean_is_harmless() {
  constexpr A kLarge = A(1) / std::numeric_limits<A>::epsilon() / 1024;  // integers are exact
  Matrix<A> x(1, 8), y(1, 8);
  x << -3, -1, 1, 3, -3, -1, 1, 3;
  x.array() += kLarge;
  const std::vector<A> gain(8, A(1)), shift(8, A(0));
  layer_norm(x, gain, shift, 0, y);
  for (Index c = 0; c < 8; ++c) {
    const Wide exact = (x(0, c) - kLarge) / std::sqrt(5.0L);
    EXPECT_LE(std::abs(y(0, c) - exact), 8 * std::numeric_limits<A>::epsilon());
  }
}

TEST(LayerNorm, ALargeMeanDoesNotCancelTheVariance) {
  expect_large_mean_is_harmless<float>();
  expect_large_mean_is_harmless<double>();
}

TEST(LayerNormErrors, NameTheEpsilon) {
  const Matrix<float> x = Matrix<float>::Ones(4, 3);
  Matrix<float> y = Matrix<float>::Constant(4, 3, 7);
  EXPECT_EQ(message_of<error>([&] { layer_norm(x, {}, {}, -1, y); }),
            "mhla::layer_norm: eps is -1.000000, expected 0 or more");
  EXPECT_TRUE((y.array() == 7).all());
}

}  // namespace
}  // namespace mhla::test

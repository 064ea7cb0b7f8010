#include "mhla/layer/rms_norm.hpp"

#include "contract/layer.hpp"
#include "support/activations.hpp"
#include "support/message_of.hpp"

namespace mhla::test {
namespace {

/// x [n,c], gain [g], if gated also gate [n,c] -> y [n,c].
template <class A, bool kGated>
struct RmsNormLayer {
  using Scalar = A;
  static constexpr double kEps = 1e-2;

  static std::vector<Sizes> sizes() {  // n, c, g
    return {{0, 6, 3},    {3, 0, 2},     {1, 1, 1},    {3, 7, 7},    {5, 12, 1},
            {70, 38, 19}, {2, 100, 100}, {500, 24, 3}, {4200, 16, 8}};
  }
  static std::vector<std::string> names() {
    return {kGated ? "gated_rms_norm" : "rms_norm", "x", "-gain", "gate", "y"};
  }
  static Shapes inputs(const Sizes& s) {
    Shapes all{{s[0], s[1]}, row_of(s[2])};
    if (kGated) all.push_back({s[0], s[1]});
    return all;
  }
  static Shapes outputs(const Sizes& s) { return {{s[0], s[1]}}; }
  static void forward(const Views<const A>& in, const Views<A>& out, const Call& call) {
    if constexpr (kGated) {
      gated_rms_norm(in[0], span_of(in[1]), kEps, in[2], out[0], call.executor);
    } else {
      rms_norm(in[0], span_of(in[1]), kEps, out[0], call.executor);
    }
  }
  static void adjoint(const Views<const A>& in, const Views<const A>&, MatrixView<const A> dy,
                      const Views<A>& din, const Call& call) {
    if constexpr (kGated) {
      gated_rms_norm_adjoint(in[0], span_of(in[1]), kEps, in[2], dy, din[0], span_of(din[1]),
                             din[2], call);
    } else {
      rms_norm_adjoint(in[0], span_of(in[1]), kEps, dy, din[0], span_of(din[1]), call);
    }
  }
  static std::vector<Matrix<Dual<A>>> definition(const std::vector<Matrix<Dual<A>>>& in) {
    const Matrix<Dual<A>>&x = in[0], &gain = in[1];
    Matrix<Dual<A>> y = x;
    for (Index r = 0; r < y.rows(); ++r) {
      for (Index c = 0; c < y.cols(); ++c) {
        const Index first = c - c % gain.cols();
        Dual<A> mean(kEps);
        for (Index j = first; j < first + gain.cols(); ++j) {
          mean += x(r, j) * x(r, j) / gain.cols();
        }
        y(r, c) = x(r, c) / sqrt(mean) * gain(0, c - first);
        if constexpr (kGated) y(r, c) *= silu_definition(in[2](r, c));
      }
    }
    return {y};
  }
  /// The sum of squares and the root have G / 2 + 4 roundings in 1 / r. Three such factors are in
  /// dx, with a sum of G numbers and a few products. The gradient dgain is a sum of N C / G numbers
  /// in at most N chunks.
  static Index roundings(const Sizes& s) {
    return s[0] + s[0] * s[1] / s[2] + 3 * s[2] + 20 + (kGated ? 32 : 0);  // 32 are of silu
  }
  static std::size_t forward_bytes(const Sizes&) { return 0; }
  static std::size_t adjoint_bytes(const Sizes& s) {
    return kGated ? gated_rms_norm_adjoint_workspace_bytes<A>(s[0], s[2])
                  : rms_norm_adjoint_workspace_bytes<A>(s[0], s[2]);
  }
};

using RmsNorms = testing::Types<RmsNormLayer<float, false>, RmsNormLayer<double, false>,
                                RmsNormLayer<float, true>, RmsNormLayer<double, true>>;
TEST_LAYERS(RmsNorm, RmsNorms);

TEST(RmsNormErrors, NameTheFunctionTheArgumentAndWhatWasExpected) {
  const Matrix<float> x = Matrix<float>::Ones(4, 8), narrow(4, 2);
  const std::vector<float> three(3), four(4);
  Matrix<float> y = Matrix<float>::Constant(4, 8, 7);
  std::vector<float> d(4, 7.f);
  const auto message = [](auto call) { return message_of<error>(call); };
  EXPECT_EQ(message([&] { rms_norm(x, three, 0, y); }),
            "mhla::rms_norm: gain has 3 elements, expected a divisor of 8");
  EXPECT_EQ(message([&] { rms_norm(x, {}, 0, y); }),
            "mhla::rms_norm: gain has 0 elements, expected a divisor of 8");
  EXPECT_EQ(message([&] { rms_norm(x, four, -1, y); }),
            "mhla::rms_norm: eps is -1.000000, expected 0 or more");
  EXPECT_EQ(message([&] { gated_rms_norm(x, four, 0, {}, y); }),
            "mhla::gated_rms_norm: gate has shape [0, 0], expected [4, 8]");
  EXPECT_EQ(message([&] { rms_norm_adjoint(x, three, 0, x, y, d); }),
            "mhla::rms_norm_adjoint: gain has 3 elements, expected a divisor of 8");
  EXPECT_EQ(message([&] { gated_rms_norm_adjoint(x, four, 0, narrow, x, y, d, y); }),
            "mhla::gated_rms_norm_adjoint: gate has shape [4, 2], expected [4, 8]");
  EXPECT_TRUE((y.array() == 7).all() && d == std::vector<float>(4, 7.f));
}

}  // namespace
}  // namespace mhla::test

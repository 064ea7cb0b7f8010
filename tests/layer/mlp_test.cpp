#include "mhla/layer/mlp.hpp"

#include "contract/layer.hpp"
#include "support/message_of.hpp"

namespace mhla::test {
namespace {

template <class A>
Dual<A> gelu_definition(const Dual<A>& x) {
  const Dual<A> u = std::sqrt(2 / 3.14159265358979323846L) * (x + 0.044715L * x * x * x);
  return x / 2 * (1 + tanh(u));
}

/// x [n,c] -> y [n,c].
template <class A>
struct GeluLayer {
  using Scalar = A;

  static std::vector<Sizes> sizes() { return {{0, 3}, {1, 1}, {3, 7}, {65, 19}, {700, 3}}; }
  static Shapes inputs(const Sizes& s) { return {{s[0], s[1]}}; }
  static Shapes outputs(const Sizes& s) { return {{s[0], s[1]}}; }
  static void forward(const Views<const A>& in, const Views<A>& out, const Call& call) {
    gelu(in[0], out[0], call.executor);
  }
  static void adjoint(const Views<const A>& in, const Views<const A>&, MatrixView<const A> dy,
                      const Views<A>& din, const Call& call) {
    gelu_adjoint(in[0], dy, din[0], call.executor);
  }
  static std::vector<Matrix<Dual<A>>> definition(const std::vector<Matrix<Dual<A>>>& in) {
    return {in[0].unaryExpr(&gelu_definition<A>)};
  }
  static Index roundings(const Sizes&) { return 32; }
};

/// x [n,in], weights and biases of both layers -> pre, hidden [n,h], y [n,out].
template <class A>
struct MlpLayer {
  using Scalar = A;

  static std::vector<Sizes> sizes() {  // n, in, h, out
    return {{0, 3, 9, 4}, {1, 3, 9, 4}, {3, 5, 19, 3}, {66, 3, 9, 4}, {700, 5, 19, 3}};
  }
  static Shapes inputs(const Sizes& s) {
    return {{s[0], s[1]}, {s[2], s[1]}, row_of(s[2]), {s[3], s[2]}, row_of(s[3])};
  }
  static Shapes outputs(const Sizes& s) { return {{s[0], s[2]}, {s[0], s[2]}, {s[0], s[3]}}; }
  template <class T>
  static MlpView<T> parameters(const Views<T>& in) {
    return {{in[1], span_of(in[2])}, {in[3], span_of(in[4])}};
  }
  static void forward(const Views<const A>& in, const Views<A>& out, const Call& call) {
    mlp(in[0], parameters(in), out[0], out[1], out[2], call);
  }
  static void adjoint(const Views<const A>& in, const Views<const A>& out, MatrixView<const A> dy,
                      const Views<A>& din, const Call& call) {
    mlp_adjoint(in[0], parameters(in), out[0], out[1], dy, din[0], parameters(din), call);
  }
  static std::vector<Matrix<Dual<A>>> definition(const std::vector<Matrix<Dual<A>>>& in) {
    Matrix<Dual<A>> pre = in[0] * in[1].transpose();
    pre.rowwise() += in[2].row(0);
    const Matrix<Dual<A>> hidden = pre.unaryExpr(&gelu_definition<A>);
    Matrix<Dual<A>> y = hidden * in[3].transpose();
    y.rowwise() += in[4].row(0);
    return {pre, hidden, y};
  }
  /// Sums of I, H, O and N numbers, and gelu.
  static Index roundings(const Sizes& s) { return 2 * (s[0] + s[1] + s[2] + s[3]) + 32; }
  static std::size_t forward_bytes(const Sizes& s) {
    return mlp_workspace_bytes<A>(s[1], s[2], s[3]);
  }
  static std::size_t adjoint_bytes(const Sizes& s) {
    return mlp_adjoint_workspace_bytes<A>(s[0], s[1], s[2], s[3]);
  }
};

using Layers =
    testing::Types<GeluLayer<float>, GeluLayer<double>, MlpLayer<float>, MlpLayer<double>>;
INSTANTIATE_TYPED_TEST_SUITE_P(Mlp, LayerContract, Layers);
INSTANTIATE_TYPED_TEST_SUITE_P(Mlp, AdjointContract, Layers);
using Perceptrons = testing::Types<MlpLayer<float>, MlpLayer<double>>;
INSTANTIATE_TYPED_TEST_SUITE_P(Mlp, WorkspaceContract, Perceptrons);

template <class A>
class Gelu : public testing::Test {};
using Accumulators = testing::Types<float, double>;
TYPED_TEST_SUITE(Gelu, Accumulators);

TYPED_TEST(Gelu, IsTheFormWithTanhForNumbersOfAnySizeAndSoIsItsSlope) {
  using A = TypeParam;
  constexpr Wide kRoundoff = std::numeric_limits<A>::epsilon() / 2;
  for (const double size : {0.0, 1e-30, 1e-6, 1.0, 5.0, 12.0, 40.0, 1e6, 1e18, 1e30}) {
    for (int i = -50; i <= 50; ++i) {
      const Matrix<A> x = Matrix<A>::Constant(1, 1, static_cast<A>(size * i / 50));
      const Matrix<A> dy = Matrix<A>::Constant(1, 1, static_cast<A>(0.7));
      Matrix<A> y(1, 1), dx = dy;
      gelu(x, y);
      gelu_adjoint(x, dy, dx);
      Dual<A> at(x(0, 0));
      at.tangent = 1;
      const Dual<A> exact = gelu_definition(at);
      // With 5 roundings of -2u, e^(-2u) has a relative error of 5 |2u| + 4 of them. It moves x /
      // (1 + e^(-2u)) by that times |x| e^(-|2u|), and |x| |2u| e^(-|2u|) < 1; 3 more are of the
      // quotient.
      const Wide size_of_y = std::min(std::abs(Wide(x(0, 0))), std::abs(exact.value) + 1);
      EXPECT_LE(std::abs(y(0, 0) - exact.value),
                (8 + detail::kExponentialRoundoffs) * kRoundoff * size_of_y);
      // s has an error of 5 roundings and s (1 - s) x 2u', which is below 0.4 and largest where
      // |2u| is 2.5, one of 0.4 * (2 * (5 * 2.5 + 4) + 8); dy and dx are below 1.
      const Wide slope = dy(0, 0) * (1 + exact.tangent);
      EXPECT_LE(std::abs(dx(0, 0) - slope), 30 * kRoundoff) << x(0, 0);
    }
  }
}

TEST(MlpErrors, NameTheFunctionTheArgumentAndWhatWasExpected) {
  Random rng(6);
  using L = MlpLayer<float>;
  const Sizes sizes{4, 5, 7, 3}, others{4, 6, 8, 2};
  LayerRun<L> run(rng, sizes), other(rng, others);
  const auto in = L::parameters(LayerRun<L>::views_of(run.in));
  const auto bad = L::parameters(LayerRun<L>::views_of(other.in));
  const Views<float> out = run.out.views(), wrong = other.out.views();
  const auto forward = [&](const MlpView<const float>& parameters, MatrixView<float> pre,
                           MatrixView<float> hidden, MatrixView<float> y) {
    return message_of<error>([&] { mlp(run.in.views()[0], parameters, pre, hidden, y); });
  };
  EXPECT_EQ(forward(bad, out[0], out[1], out[2]),
            "mhla::mlp: first weight has shape [8, 6], expected [any, 5]");
  EXPECT_EQ(forward({{in.first.weight, bad.first.bias}, in.second}, out[0], out[1], out[2]),
            "mhla::mlp: first bias has 8 elements, expected 7 or none");
  EXPECT_EQ(forward({in.first, bad.second}, out[0], out[1], out[2]),
            "mhla::mlp: second weight has shape [2, 8], expected [any, 7]");
  EXPECT_EQ(forward(in, wrong[0], out[1], out[2]),
            "mhla::mlp: pre has shape [4, 8], expected [4, 7]");
  EXPECT_EQ(forward(in, out[0], wrong[1], out[2]),
            "mhla::mlp: hidden has shape [4, 8], expected [4, 7]");
  EXPECT_EQ(forward(in, out[0], out[1], wrong[2]),
            "mhla::mlp: y has shape [4, 2], expected [4, 3]");
  const Views<float> din = run.din.views(), wrong_din = other.din.views();
  const auto adjoint = [&](MatrixView<float> dx, const MlpView<float>& gradients) {
    return message_of<error>(
        [&] { mlp_adjoint(run.in.views()[0], in, out[0], out[1], out[2], dx, gradients); });
  };
  const MlpView<float> right = L::parameters(din), g = L::parameters(wrong_din);
  EXPECT_EQ(adjoint(wrong_din[0], right),
            "mhla::mlp_adjoint: dx has shape [4, 6], expected [4, 5]");
  EXPECT_EQ(adjoint(din[0], {g.first, {}}),
            "mhla::mlp_adjoint: gradient of first weight has shape [8, 6], expected [7, 5]");
  EXPECT_EQ(adjoint(din[0], {{}, {{}, g.second.bias}}),
            "mhla::mlp_adjoint: gradient of second bias has 2 elements, expected 3 or none");
  EXPECT_TRUE(run.din == run.before);
  EXPECT_EQ(message_of<error>([&] { gelu(run.in.views()[0], out[0]); }),
            "mhla::gelu: y has shape [4, 7], expected [4, 5]");
  EXPECT_EQ(message_of<error>([&] { gelu_adjoint(din[0], din[0], out[0]); }),
            "mhla::gelu_adjoint: dx has shape [4, 7], expected [4, 5]");
}

}  // namespace
}  // namespace mhla::test

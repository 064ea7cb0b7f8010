#include "mhla/layer/mlp.hpp"

#include <concepts>

#include "contract/layer.hpp"
#include "support/activations.hpp"
#include "support/message_of.hpp"

namespace mhla::test {
namespace {

/// x [n,in], weights and biases of both layers -> pre, hidden [n,h], y [n,out].
template <class A, class G = Gelu>
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
    mlp<G>(in[0], parameters(in), out[0], out[1], out[2], call);
  }
  static void adjoint(const Views<const A>& in, const Views<const A>& out, MatrixView<const A> dy,
                      const Views<A>& din, const Call& call) {
    mlp_adjoint<G>(in[0], parameters(in), out[0], out[1], dy, din[0], parameters(din), call);
  }
  static std::vector<Matrix<Dual<A>>> definition(const std::vector<Matrix<Dual<A>>>& in) {
    Matrix<Dual<A>> pre = in[0] * in[1].transpose();
    pre.rowwise() += in[2].row(0);
    const Matrix<Dual<A>> hidden =
        pre.unaryExpr(std::same_as<G, Gelu> ? &gelu_definition<A> : &erf_gelu_definition<A>);
    Matrix<Dual<A>> y = hidden * in[3].transpose();
    y.rowwise() += in[4].row(0);
    return {pre, hidden, y};
  }
  /// Sums of I, H, O and N numbers, and roundings of gelu.
  static Index roundings(const Sizes& s) { return 2 * (s[0] + s[1] + s[2] + s[3]) + 32; }
  static std::size_t forward_bytes(const Sizes& s) {
    return mlp_workspace_bytes<A>(s[1], s[2], s[3]);
  }
  static std::size_t adjoint_bytes(const Sizes& s) {
    return mlp_adjoint_workspace_bytes<A>(s[0], s[1], s[2], s[3]);
  }
};

using Perceptrons = testing::Types<MlpLayer<float>, MlpLayer<double>, MlpLayer<double, ErfGelu>>;
TEST_LAYERS(Mlp, Perceptrons);

TEST(MlpErrors, NameTheFunctionTheArgumentAndWhatWasExpected) {
  Random rng(6);
  using L = MlpLayer<float>;
  const Sizes sizes{4, 5, 7, 3}, others{4, 6, 8, 2};
  LayerRun<float> run(kLayerOn<L>, rng, sizes), other(kLayerOn<L>, rng, others);
  const auto in = L::parameters(LayerRun<float>::views_of(run.in));
  const auto bad = L::parameters(LayerRun<float>::views_of(other.in));
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
}

}  // namespace
}  // namespace mhla::test

#include "mhla/layer/mlp.hpp"

#include <concepts>

#include "contract/layer.hpp"
#include "support/activations.hpp"

namespace mhla::test {
namespace {

/// x [n,in], weights and biases of both layers -> pre, hidden [n,h], y [n,out].
template <class A, class G = Gelu>
struct MlpLayer {
  using Scalar = A;

  static std::vector<Sizes> sizes() {  // n, in, h, out
    return {{0, 3, 9, 4}, {1, 3, 9, 4}, {3, 5, 19, 3}, {66, 3, 9, 4}, {700, 5, 19, 3}};
  }
  static std::vector<std::string> names() {
    return {"mlp",         "x",   "first weight", "first bias", "second weight",
            "second bias", "pre", "hidden",       "y"};
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

}  // namespace
}  // namespace mhla::test

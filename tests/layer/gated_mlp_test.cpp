#include "mhla/layer/gated_mlp.hpp"

#include "contract/layer.hpp"
#include "support/activations.hpp"
#include "support/message_of.hpp"

namespace mhla::test {
namespace {

/// x [n,in], weights and biases of the three layers -> gate, up, hidden [n,h], y [n,out].
template <class A>
struct GatedMlpLayer {
  using Scalar = A;

  static std::vector<Sizes> sizes() {  // n, in, h, out
    return {{0, 3, 9, 4}, {1, 3, 9, 4}, {3, 5, 19, 3}, {66, 3, 2, 4}, {700, 5, 19, 3}};
  }
  static std::vector<std::string> names() {
    return {"gated_mlp",   "x",         "gate weight", "gate bias", "up weight", "up bias",
            "down weight", "down bias", "gate",        "up",        "hidden",    "y"};
  }
  static Shapes inputs(const Sizes& s) {
    return {{s[0], s[1]}, {s[2], s[1]}, row_of(s[2]), {s[2], s[1]},
            row_of(s[2]), {s[3], s[2]}, row_of(s[3])};
  }
  static Shapes outputs(const Sizes& s) {
    return {{s[0], s[2]}, {s[0], s[2]}, {s[0], s[2]}, {s[0], s[3]}};
  }
  template <class T>
  static GatedMlpView<T> parameters(const Views<T>& in) {
    return {{in[1], span_of(in[2])}, {in[3], span_of(in[4])}, {in[5], span_of(in[6])}};
  }
  static void forward(const Views<const A>& in, const Views<A>& out, const Call& call) {
    gated_mlp(in[0], parameters(in), out[0], out[1], out[2], out[3], call);
  }
  static void adjoint(const Views<const A>& in, const Views<const A>& out, MatrixView<const A> dy,
                      const Views<A>& din, const Call& call) {
    gated_mlp_adjoint(in[0], parameters(in), out[0], out[1], dy, din[0], parameters(din), call);
  }
  static Matrix<Dual<A>> affine(const Matrix<Dual<A>>& x, const Matrix<Dual<A>>& weight,
                                const Matrix<Dual<A>>& bias) {
    Matrix<Dual<A>> y = x * weight.transpose();
    y.rowwise() += bias.row(0);
    return y;
  }
  static std::vector<Matrix<Dual<A>>> definition(const std::vector<Matrix<Dual<A>>>& in) {
    const Matrix<Dual<A>> gate = affine(in[0], in[1], in[2]), up = affine(in[0], in[3], in[4]);
    const Matrix<Dual<A>> hidden = gate.unaryExpr(&silu_definition<A>).cwiseProduct(up);
    return {gate, up, hidden, affine(hidden, in[5], in[6])};
  }
  /// Sums of I numbers for gate and up, of H for y, of 2 H for dx, of O and of N, and roundings of
  /// silu and products.
  static Index roundings(const Sizes& s) { return s[0] + 2 * (s[1] + s[2]) + s[3] + 36; }
  static std::size_t forward_bytes(const Sizes& s) {
    return gated_mlp_workspace_bytes<A>(s[1], s[2], s[3]);
  }
  static std::size_t adjoint_bytes(const Sizes& s) {
    return gated_mlp_adjoint_workspace_bytes<A>(s[0], s[1], s[2], s[3]);
  }
};

using GatedPerceptrons = testing::Types<GatedMlpLayer<float>, GatedMlpLayer<double>>;
TEST_LAYERS(GatedMlp, GatedPerceptrons);

template <class L>
class GatedMlpOf : public testing::Test {};
TYPED_TEST_SUITE(GatedMlpOf, GatedPerceptrons);

/// Packs the three layers into `memory`.
template <class A>
PackedGatedMlp<A> packed_gated_mlp(const GatedMlpView<const A>& parameters,
                                   std::array<std::vector<std::byte>, 3>& memory) {
  const auto pack = [&](std::size_t i, const DenseView<const A>& layer) {
    memory[i].resize(packed_dense_bytes<A>(layer.weight.cols, layer.weight.rows));
    return PackedDense<A>(memory[i], layer);
  };
  return {pack(0, parameters.gate), pack(1, parameters.up), pack(2, parameters.down)};
}

TYPED_TEST(GatedMlpOf, PackedLayersGiveTheBitsOfTheUnpackedCall) {
  using A = typename TypeParam::Scalar;
  Random rng(7);
  ThreadPool pool(3);
  for (const Sizes& s : TypeParam::sizes()) {
    LayerRun<A> run(kLayerOn<TypeParam>, rng, s), packed = run;
    run.forward();
    std::array<std::vector<std::byte>, 3> memory;
    const Views<const A> in = LayerRun<A>::views_of(run.in);
    const Views<A> out = packed.out.views();
    gated_mlp(in[0], packed_gated_mlp<A>(TypeParam::parameters(in), memory), out[0], out[1], out[2],
              out[3], pool);
    EXPECT_TRUE(packed.out == run.out) << testing::PrintToString(s);
  }
}

TYPED_TEST(GatedMlpOf, GatesOfAnySizeHaveFiniteGradients) {
  using A = typename TypeParam::Scalar;
  const Matrix<A> one = Matrix<A>::Ones(1, 1), zero = Matrix<A>::Zero(1, 1);
  for (const double size : {-1e30, -1000.0, 1000.0, 1e30}) {
    const Matrix<A> gate = Matrix<A>::Constant(1, 1, static_cast<A>(size));
    Matrix<A> dx = zero, ddown = zero, dgate = zero;
    gated_mlp_adjoint(one, {{one, {}}, {one, {}}, {one, {}}}, gate, one, one, dx,
                      {{dgate, {}}, {}, {ddown, {}}});
    EXPECT_EQ(dgate(0, 0), size > 0 ? 1 : 0) << size;
    EXPECT_EQ(ddown(0, 0), size > 0 ? gate(0, 0) : 0) << size;
    EXPECT_EQ(dx(0, 0), size > 0 ? 1 + gate(0, 0) : 0) << size;
  }
}

TEST(GatedMlpErrors, NamePackedLayersAndWhatTheForwardWrote) {
  Random rng(6);
  using L = GatedMlpLayer<float>;
  LayerRun<float> run(kLayerOn<L>, rng, {4, 5, 7, 3}), other(kLayerOn<L>, rng, {4, 6, 8, 2});
  const auto x = run.in.views()[0];
  const auto in = L::parameters(LayerRun<float>::views_of(run.in));
  const auto bad = L::parameters(LayerRun<float>::views_of(other.in));
  const Views<float> out = run.out.views(), wide = other.out.views(), din = run.din.views();
  std::array<std::vector<std::byte>, 3> memory, bad_memory;
  using P = PackedGatedMlp<float>;
  const P right = packed_gated_mlp(in, memory), wrong = packed_gated_mlp(bad, bad_memory);
  const auto forward = [&](const P& parameters, MatrixView<float> hidden) {
    return message_of<error>([&] { gated_mlp(x, parameters, out[0], out[1], hidden, out[3]); });
  };
  EXPECT_EQ(forward(wrong, out[2]), "mhla::gated_mlp: x has shape [4, 5], expected [any, 6]");
  EXPECT_EQ(forward(P{right.gate, wrong.up, right.down}, out[2]),
            "mhla::gated_mlp: up has 6 inputs, expected 5 (the inputs of gate)");
  EXPECT_EQ(forward(P{right.gate, right.up, wrong.down}, out[2]),
            "mhla::gated_mlp: down has 8 inputs, expected 7 (the outputs of gate)");
  EXPECT_EQ(forward(right, wide[2]), "mhla::gated_mlp: hidden has shape [4, 8], expected [4, 7]");
  for (std::size_t i = 0; i < out.size(); ++i) EXPECT_TRUE(run.out.copy(i).array().isNaN().all());
  const auto adjoint = [&](MatrixView<float> gate, MatrixView<float> up) {
    return message_of<error>(
        [&] { gated_mlp_adjoint(x, in, gate, up, out[3], din[0], L::parameters(din)); });
  };
  EXPECT_EQ(adjoint(wide[0], out[1]),
            "mhla::gated_mlp_adjoint: gate has shape [4, 8], expected [4, 7]");
  EXPECT_EQ(adjoint(out[0], wide[1]),
            "mhla::gated_mlp_adjoint: up has shape [4, 8], expected [4, 7]");
  EXPECT_TRUE(run.din == run.before);
}

}  // namespace
}  // namespace mhla::test

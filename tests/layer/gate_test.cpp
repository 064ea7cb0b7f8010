#include "mhla/layer/gate.hpp"

#include "contract/layer.hpp"
#include "support/activations.hpp"
#include "support/message_of.hpp"

namespace mhla::test {
namespace {

/// x, g [n,c] -> y [n,c].
template <class A, GateFunction kFunction>
struct GateLayer {
  using Scalar = A;
  static constexpr GateFunction kGate = kFunction;

  static std::vector<Sizes> sizes() {  // n, c
    return {{0, 3}, {3, 0}, {1, 1}, {3, 7}, {65, 19}, {700, 3}};
  }
  static std::vector<std::string> names() { return {"gate", "x", "g", "y"}; }
  static Shapes inputs(const Sizes& s) { return {{s[0], s[1]}, {s[0], s[1]}}; }
  static Shapes outputs(const Sizes& s) { return {{s[0], s[1]}}; }
  static void forward(const Views<const A>& in, const Views<A>& out, const Call& call) {
    gate(in[0], in[1], out[0], kFunction, call.executor);
  }
  static void adjoint(const Views<const A>& in, const Views<const A>&, MatrixView<const A> dy,
                      const Views<A>& din, const Call& call) {
    gate_adjoint(in[0], in[1], dy, din[0], din[1], kFunction, call.executor);
  }
  static Dual<A> function(const Dual<A>& g) {
    return kFunction == GateFunction::kSilu ? silu_definition(g) : (1 + tanh(g / 2)) / 2;
  }
  static std::vector<Matrix<Dual<A>>> definition(const std::vector<Matrix<Dual<A>>>& in) {
    return {in[0].cwiseProduct(in[1].unaryExpr(&function))};
  }
  /// Roundings of an activation, and two of the products.
  static Index roundings(const Sizes&) { return 32 + 2; }
};

using Gates =
    testing::Types<GateLayer<float, GateFunction::kSilu>, GateLayer<double, GateFunction::kSilu>,
                   GateLayer<float, GateFunction::kSigmoid>,
                   GateLayer<double, GateFunction::kSigmoid>>;
TEST_LAYERS(Gate, Gates);

template <class L>
class GateOf : public testing::Test {};
TYPED_TEST_SUITE(GateOf, Gates);

TYPED_TEST(GateOf, NumbersOfAnySizeIsItsDefinitionAndSoIsItsSlope) {
  using A = typename TypeParam::Scalar;
  constexpr Wide kRoundoff = std::numeric_limits<A>::epsilon() / 2;
  const Matrix<A> x = Matrix<A>::Constant(1, 1, static_cast<A>(0.7));
  for (const double size : {0.0, 1e-30, 1e-6, 1.0, 5.0, 12.0, 40.0, 1e6, 1e30}) {
    for (int i = -50; i <= 50; ++i) {
      const Matrix<A> g = Matrix<A>::Constant(1, 1, static_cast<A>(size * i / 50));
      Matrix<A> y(1, 1), dx = Matrix<A>::Zero(1, 1), dg = x;
      gate(x, g, y, TypeParam::kGate);
      gate_adjoint(x, g, x, dx, dg, TypeParam::kGate);
      Dual<A> at(g(0, 0));
      at.tangent = 1;
      const Wide factor = x(0, 0), slope = TypeParam::function(at).tangent;
      const Wide logistic = 1 / (1 + std::exp(-at.value));
      const bool silu = TypeParam::kGate == GateFunction::kSilu;
      const Wide f = silu ? at.value * logistic : logistic;
      // activation_test.cpp derives the error of silu. The logistic function errs by few roundings
      // of its value, down to subnormal numbers. The product adds one rounding.
      const Wide magnitude = silu ? std::min(std::abs(at.value), std::abs(f) + 1) : f;
      const Wide bound = (9 + detail::kExponentialRoundoffs) * kRoundoff * magnitude +
                         std::numeric_limits<A>::min();
      EXPECT_LE(std::abs(y(0, 0) - factor * f), bound) << at.value;
      EXPECT_LE(std::abs(dx(0, 0) - factor * f), bound) << at.value;
      EXPECT_LE(std::abs(dg(0, 0) - factor * (1 + factor * slope)), 30 * kRoundoff);
    }
  }
}

TEST(Gate, PassesThroughSiluUnlessToldOtherwise) {
  Random rng(1);
  const Matrix<float> x = rng.matrix<float>(3, 9), g = rng.matrix<float>(3, 9);
  Matrix<float> y(3, 9), told(3, 9);
  gate(x, g, y);
  gate(x, g, told, GateFunction::kSilu);
  EXPECT_EQ(y, told);
}

TEST(GateErrors, NameTheGateOfTheAdjoint) {
  const Matrix<float> x = Matrix<float>::Ones(4, 5), wide(4, 7);
  Matrix<float> y = x;
  EXPECT_EQ(message_of<error>([&] { gate_adjoint(x, wide, x, y, y); }),
            "mhla::gate_adjoint: g has shape [4, 7], expected [4, 5]");
  EXPECT_EQ(y, x);
}

}  // namespace
}  // namespace mhla::test

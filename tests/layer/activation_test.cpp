#include "mhla/layer/activation.hpp"

#include "contract/layer.hpp"
#include "support/activations.hpp"

namespace mhla::test {
namespace {

/// The calls of an activation, and of its adjoint.
struct GeluCalls {
  static constexpr const char* kName = "gelu";
  static void value(const auto& x, auto y, const ExecutorRef& e) { gelu(x, y, e); }
  static void adjoint(const auto& x, auto dy, auto dx, const ExecutorRef& e) {
    gelu_adjoint(x, dy, dx, e);
  }
  template <class A>
  static Dual<A> definition(const Dual<A>& x) {
    return gelu_definition(x);
  }
};
struct ErfGeluCalls {
  static constexpr const char* kName = "erf_gelu";
  static void value(const auto& x, auto y, const ExecutorRef& e) { erf_gelu(x, y, e); }
  static void adjoint(const auto& x, auto dy, auto dx, const ExecutorRef& e) {
    erf_gelu_adjoint(x, dy, dx, e);
  }
  template <class A>
  static Dual<A> definition(const Dual<A>& x) {
    return erf_gelu_definition(x);
  }
};
struct SiluCalls {
  static constexpr const char* kName = "silu";
  static void value(const auto& x, auto y, const ExecutorRef& e) { silu(x, y, e); }
  static void adjoint(const auto& x, auto dy, auto dx, const ExecutorRef& e) {
    silu_adjoint(x, dy, dx, e);
  }
  template <class A>
  static Dual<A> definition(const Dual<A>& x) {
    return silu_definition(x);
  }
};

/// x [n,c] -> y [n,c].
template <class A, class C>
struct ActivationLayer {
  using Calls = C;
  using Scalar = A;

  static std::vector<Sizes> sizes() { return {{0, 3}, {1, 1}, {3, 7}, {65, 19}, {700, 3}}; }
  static std::vector<std::string> names() { return {Calls::kName, "x", "y"}; }
  static Shapes inputs(const Sizes& s) { return {{s[0], s[1]}}; }
  static Shapes outputs(const Sizes& s) { return {{s[0], s[1]}}; }
  static void forward(const Views<const A>& in, const Views<A>& out, const Call& call) {
    Calls::value(in[0], out[0], call.executor);
  }
  static void adjoint(const Views<const A>& in, const Views<const A>&, MatrixView<const A> dy,
                      const Views<A>& din, const Call& call) {
    Calls::adjoint(in[0], dy, din[0], call.executor);
  }
  static std::vector<Matrix<Dual<A>>> definition(const std::vector<Matrix<Dual<A>>>& in) {
    return {in[0].unaryExpr([](const Dual<A>& x) { return Calls::definition(x); })};
  }
  static Index roundings(const Sizes&) { return 32; }
};

using Activations =
    testing::Types<ActivationLayer<float, GeluCalls>, ActivationLayer<double, GeluCalls>,
                   ActivationLayer<float, ErfGeluCalls>, ActivationLayer<double, ErfGeluCalls>,
                   ActivationLayer<float, SiluCalls>, ActivationLayer<double, SiluCalls>>;
TEST_LAYERS(Activation, Activations);

template <class L>
class ActivationOf : public testing::Test {};
TYPED_TEST_SUITE(ActivationOf, Activations);

TYPED_TEST(ActivationOf, NumbersOfAnySizeIsItsDefinitionAndSoIsItsSlope) {
  using A = typename TypeParam::Scalar;
  constexpr Wide kRoundoff = std::numeric_limits<A>::epsilon() / 2;
  for (const double size : {0.0, 1e-30, 1e-6, 1.0, 5.0, 12.0, 40.0, 1e6, 1e18, 1e30}) {
    for (int i = -50; i <= 50; ++i) {
      const Matrix<A> x = Matrix<A>::Constant(1, 1, static_cast<A>(size * i / 50));
      const Matrix<A> dy = Matrix<A>::Constant(1, 1, static_cast<A>(0.7));
      Matrix<A> y(1, 1), dx = dy;
      TypeParam::Calls::value(x, MatrixView<A>(y), {});
      TypeParam::Calls::adjoint(x, MatrixView<const A>(dy), MatrixView<A>(dx), {});
      Dual<A> at(x(0, 0));
      at.tangent = 1;
      const Dual<A> exact = TypeParam::Calls::definition(at);
      // The exponent, -2u or -x, has at most 5 roundings, so e^(-2u) has a relative error of 5 |2u|
      // + 4 roundings. This moves x / (1 + e^(-2u)) by that error times |x| e^(-|2u|), and |x| |2u|
      // e^(-|2u|) is below 1. The quotient adds 3 roundings.
      const Wide size_of_y = std::min(std::abs(Wide(x(0, 0))), std::abs(exact.value) + 1);
      EXPECT_LE(std::abs(y(0, 0) - exact.value),
                (8 + detail::kExponentialRoundoffs) * kRoundoff * size_of_y);
      // The slope has the parts s and s (1 - s) x 2u'. The first has an error of 5 roundings. The
      // second is below 0.4 and largest where |2u| is 2.5. Its error is at most
      // 0.4 * (2 * (5 * 2.5 + 4) + 8) roundings. Both dy and dx are below 1.
      const Wide slope = dy(0, 0) * (1 + exact.tangent);
      EXPECT_LE(std::abs(dx(0, 0) - slope), 30 * kRoundoff) << x(0, 0);
    }
  }
}

}  // namespace
}  // namespace mhla::test

#include "mhla/attention/operator.hpp"

#include <gtest/gtest.h>

#include "mhla/policy/learned_feature_map.hpp"
#include "support/message_of.hpp"

namespace mhla::test {
namespace {

TEST(Operator, PoliciesAreDeducedAndDefaultToThePaper) {
  static_assert(std::is_same_v<decltype(Operator{}), Operator<Relu, Relu, KeySum>>);
  static_assert(std::is_same_v<decltype(Operator{Exp{}}), Operator<Exp, Exp, KeySum>>);
  static_assert(std::is_same_v<decltype(Operator{Relu{}, Exp{}}), Operator<Relu, Exp, KeySum>>);
  static_assert(std::is_same_v<decltype(Operator{Relu{}, Relu{}, CrossQuery{}, 2.0}),
                               Operator<Relu, Relu, CrossQuery>>);
  EXPECT_EQ(Operator{}.query_map.eps, 1e-6);
  EXPECT_EQ(Operator{}.normalizer.eps, 0);
  EXPECT_EQ(Operator{}.scale, 1);
  EXPECT_EQ((Operator{Relu{}, Relu{}, CrossQuery{}, 2.0}.scale), 2);
}

TEST(Operator, KeysGetTheMapOfTheQueriesWhereNoneIsGiven) {
  EXPECT_EQ(Operator{Relu{0.5}}.key_map.eps, 0.5);
  EXPECT_EQ((Operator{Relu{0.5}, Relu{0.25}}.key_map.eps), 0.25);
  const float gain = 3;  // a map that cannot be made from nothing
  const Operator captured{Elementwise([gain](auto x) { return gain * x; })};
  static_assert(OperatorOn<decltype(captured), float>);
  EXPECT_EQ(captured.key_map.function(2.0f), 6);
}

TEST(Operator, FeaturesOfQueriesAndKeysMustAgree) {
  const Matrix<float> x = Matrix<float>::Ones(3, 4), y = Matrix<float>::Ones(3, 32);
  Matrix<float> out(3, 4);
  const Inputs<float> widened{.q = x, .k = y, .v = x};
  EXPECT_NO_THROW(detail::expect_inputs<float>("f", widened, Operator{Dpfp{}, Identity{}}, out));
  EXPECT_EQ(message_of<shape_error>([&] {
              detail::expect_inputs<float>("f", widened, Operator{Dpfp{2}, Identity{}}, out);
            }),
            "mhla::f: k has width 32, 32 after the feature map, expected 16 features (those of q "
            "[3, 4])");
}

TEST(Operator, SizesThatNoMemoryHoldsAreRefused) {
  const Index huge = Index{1} << 40;
  const Matrix<float> x = Matrix<float>::Ones(1, 1);
  const MatrixView<const float> q(x.data(), huge, huge, 0, 0), v(x.data(), huge, 1, 0, 0);
  Matrix<float> out(1, 1);
  EXPECT_EQ(message_of<shape_error>([&] {
              detail::expect_inputs<float>("f", {.q = q, .k = q, .v = v}, Operator{}, out);
            }),
            "mhla::f: q has shape [1099511627776, 1099511627776], expected a product that fits "
            "std::ptrdiff_t");
}

}  // namespace
}  // namespace mhla::test

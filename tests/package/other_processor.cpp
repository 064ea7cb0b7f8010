// The forms against the definition, on a processor that this is not (other_processor.cmake).

#include <gtest/gtest.h>

#include <limits>

#include "mhla/mhla.hpp"

namespace mhla::test {
namespace {

template <class T>
void expect_forms_equal_the_definition() {
  const Matrix<T> q = Matrix<T>::Random(150, 24), k = Matrix<T>::Random(150, 24),
                  v = Matrix<T>::Random(150, 20);
  const auto in = inputs(q, k, v);
  const Contiguous blocks(150, 40);
  const auto mixing = locality<T>(4);
  const Operator op;
  const auto error = [&](const Matrix<T>& out, Order order) {
    const Matrix<double> exact = naive_attention(in, blocks, mixing, op, order);
    return (out.template cast<double>() - exact).cwiseAbs().maxCoeff();
  };
  const double most = 1000 * std::numeric_limits<T>::epsilon();
  EXPECT_LE(error(bidirectional(in, blocks, mixing, op), Order::kBidirectional), most);
  EXPECT_LE(error(causal(in, blocks, mixing, op), Order::kCausal), most);
}

TEST(OtherProcessor, FormsOfFloatEqualTheDefinition) { expect_forms_equal_the_definition<float>(); }
TEST(OtherProcessor, FormsOfDoubleEqualTheDefinition) {
  expect_forms_equal_the_definition<double>();
}
TEST(OtherProcessor, TheVectorsOfItsInstructionSetAreUsed) {
  EXPECT_STREQ(kInstructionSet, INSTRUCTION_SET);
}

}  // namespace
}  // namespace mhla::test

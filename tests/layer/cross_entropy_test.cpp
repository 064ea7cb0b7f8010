#include "mhla/layer/cross_entropy.hpp"

#include <cstdint>

#include "contract/layer.hpp"
#include "support/message_of.hpp"

namespace mhla::test {
namespace {

/// logits [rows,classes] -> loss [1,1].
template <class A>
struct CrossEntropyLayer {
  using Scalar = A;
  static constexpr bool kLoss = true;

  static std::vector<Sizes> sizes() {  // rows, classes
    return {{1, 1}, {1, 2}, {2, 10}, {9, 16}, {2, 37}, {9, 3}};
  }
  static Shapes inputs(const Sizes& s) { return {{s[0], s[1]}}; }
  static Shapes outputs(const Sizes&) { return {{1, 1}}; }
  static std::vector<int> labels(Index rows, Index classes) {
    std::vector<int> all;
    for (Index r = 0; r < rows; ++r) all.push_back(static_cast<int>((5 * r + 3) % classes));
    return all;
  }
  static void forward(const Views<const A>& in, const Views<A>& out, const Call&) {
    const CrossEntropy result = cross_entropy(in[0], labels(in[0].rows, in[0].cols));
    out[0](0, 0) = static_cast<A>(result.loss);
  }
  static void adjoint(const Views<const A>& in, const Views<const A>&, MatrixView<const A>,
                      const Views<A>& din, const Call&) {
    cross_entropy(in[0], labels(in[0].rows, in[0].cols), din[0]);
  }
  static std::vector<Matrix<Dual<A>>> definition(const std::vector<Matrix<Dual<A>>>& in) {
    const Matrix<Dual<A>>& z = in[0];
    const std::vector<int> right = labels(z.rows(), z.cols());
    Dual<A> loss;
    for (Index b = 0; b < z.rows(); ++b) {
      Dual<A> sum;
      for (Index c = 0; c < z.cols(); ++c) sum += exp(z(b, c));
      loss += (log(sum) - z(b, right[static_cast<std::size_t>(b)])) / z.rows();
    }
    return {Matrix<Dual<A>>::Constant(1, 1, loss)};
  }
  static Index roundings(const Sizes& s) { return s[0] + s[1] + 16; }
};

template <class A>
class CrossEntropyOf : public testing::Test {};
using Accumulators = testing::Types<float, double>;
TYPED_TEST_SUITE(CrossEntropyOf, Accumulators);
using Losses = testing::Types<CrossEntropyLayer<float>, CrossEntropyLayer<double>>;
TEST_LAYERS(CrossEntropy, Losses);

TYPED_TEST(CrossEntropyOf, LogitsOfAnySizeNeitherOverflowNorVanish) {
  using A = TypeParam;
  constexpr A kLarge = std::numeric_limits<A>::max() / 4;
  Matrix<A> z(2, 3), dz = Matrix<A>::Zero(2, 3), exact(2, 3);
  z << kLarge, kLarge, -kLarge, 0, 2000, -kLarge;
  const CrossEntropy result = cross_entropy(z, std::vector<int>{1, 0}, dz);
  EXPECT_NEAR(result.loss, (std::log(2) + 2000) / 2, 2000 * std::numeric_limits<A>::epsilon());
  exact << 0.25, -0.25, 0, -0.5, 0.5, 0;
  EXPECT_EQ(dz, exact);
}

TYPED_TEST(CrossEntropyOf, CountsTheRowsWhoseLargestLogitIsThatOfTheLabel) {
  using A = TypeParam;
  Matrix<A> z(4, 3);
  z << 1, 2, 3, 5, 5, 1, 5, 5, 1, -1, -3, -2;
  EXPECT_EQ(cross_entropy(z, std::vector<int>{2, 0, 1, 0}).correct, 3);
  EXPECT_EQ(cross_entropy(z, std::vector<int>{0, 2, 2, 1}).correct, 0);
  EXPECT_EQ(
      cross_entropy(Matrix<double>::Constant(2, 3, NAN).eval(), std::vector<int>{0, 2}).correct, 0);
}

TEST(CrossEntropyLabels, AreIntegersOfAnyType) {
  Random rng(3);
  const Matrix<float> z = rng.matrix<float>(3, 4);
  const double loss = cross_entropy(z, std::vector<int>{3, 0, 1}).loss;
  const std::vector<Index> wide{3, 0, 1};
  EXPECT_EQ(cross_entropy(z, std::span<const Index>(wide)).loss, loss);
  EXPECT_EQ(cross_entropy(z, std::vector<std::uint8_t>{3, 0, 1}).loss, loss);
}

TEST(CrossEntropyErrors, NameTheArgumentBeforeAnythingIsWritten) {
  const Matrix<float> z = Matrix<float>::Ones(2, 3), none(0, 3);
  Matrix<float> dz = Matrix<float>::Constant(2, 3, 7), other = Matrix<float>::Constant(2, 2, 7);
  const auto text = [](MatrixView<const float> logits, std::vector<int> labels,
                       MatrixView<float> dlogits) {
    return message_of<error>([&] { cross_entropy(logits, labels, dlogits); });
  };
  EXPECT_EQ(text(z, {0, 3}, dz),
            "mhla::cross_entropy: labels has a label 3, expected labels in [0, 3)");
  EXPECT_EQ(text(z, {0, -1}, dz),
            "mhla::cross_entropy: labels has a label -1, expected labels in [0, 3)");
  EXPECT_THROW(cross_entropy(z, std::vector<std::uint64_t>{0, std::uint64_t(-1)}, dz),
               option_error);
  EXPECT_EQ(text(z, {0}, dz), "mhla::cross_entropy: labels has 1 elements, expected 2");
  EXPECT_EQ(text(none, {}, {}), "mhla::cross_entropy: logits has no rows, expected at least one");
  EXPECT_EQ(text(z, {0, 1}, other),
            "mhla::cross_entropy: dlogits has shape [2, 2], expected [2, 3]");
  EXPECT_TRUE((dz.array() == 7).all() && (other.array() == 7).all());
}

TEST(Argmax, IsTheFirstPlaceOfTheLargest) {
  const std::vector<float> x{-3, 4, 1, 4}, none;
  EXPECT_EQ(argmax(x), 1);
  EXPECT_EQ(argmax(none), -1);
}

}  // namespace
}  // namespace mhla::test

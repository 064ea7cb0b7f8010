#include "mhla/layer/cross_entropy.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "support/differences.hpp"
#include "support/message_of.hpp"
#include "support/random.hpp"

namespace mhla {
namespace {

using Wide = long double;

Wide definition(const test::WideMatrix& z, const std::vector<int>& labels) {
  Wide total = 0;
  for (Index b = 0; b < z.rows(); ++b) {
    Wide sum = 0;
    for (Index c = 0; c < z.cols(); ++c) sum += std::exp(z(b, c));
    total += std::log(sum) - z(b, labels[static_cast<std::size_t>(b)]);
  }
  return total / static_cast<Wide>(z.rows());
}

std::vector<int> random_labels(test::Random& rng, Index rows, Index classes) {
  std::vector<int> labels(static_cast<std::size_t>(rows));
  for (int& label : labels) label = static_cast<int>(rng.integer(0, classes - 1));
  return labels;
}

template <class A>
class CrossEntropyOf : public testing::Test {
 public:
  static constexpr Wide kRoundoff = std::numeric_limits<A>::epsilon() / 2;
};
using Accumulators = testing::Types<float, double>;
TYPED_TEST_SUITE(CrossEntropyOf, Accumulators);

TYPED_TEST(CrossEntropyOf, IsItsDefinitionAndAddsItsGradient) {
  using A = TypeParam;
  test::Random rng(1);
  for (const Index rows : {1, 2, 9}) {
    for (const Index classes : {1, 2, 10, 16, 37}) {
      const Matrix<A> z = rng.matrix<A>(rows, classes, -4, 4),
                      before = rng.matrix<A>(rows, classes);
      const std::vector<int> labels = random_labels(rng, rows, classes);
      Matrix<A> dz = before;
      const CrossEntropy result = cross_entropy<A>(z, labels, dz);
      test::WideMatrix wide = z.template cast<Wide>();
      // Differences of the logits, below 8, are rounded, exponentials by 4, and their sum.
      const Wide relative = static_cast<Wide>(8 + 4 + classes) * this->kRoundoff;
      EXPECT_LE(std::abs(result.loss - definition(wide, labels)), 2 * relative);
      const test::WideMatrix gradient =
          test::differences(wide, [&] { return definition(wide, labels); });
      EXPECT_LE(test::distance(dz, before.template cast<Wide>() + gradient), 3 * relative + 1e-11L);
      EXPECT_EQ(cross_entropy<A>(z, labels).loss, result.loss);
    }
  }
}

TYPED_TEST(CrossEntropyOf, LogitsOfAnySizeNeitherOverflowNorVanish) {
  using A = TypeParam;
  constexpr A kLarge = std::numeric_limits<A>::max() / 4;
  Matrix<A> z(2, 3), dz = Matrix<A>::Zero(2, 3), exact(2, 3);
  z << kLarge, kLarge, -kLarge, 0, 2000, -kLarge;
  const CrossEntropy result = cross_entropy<A>(z, std::vector<int>{1, 0}, dz);
  EXPECT_NEAR(result.loss, (std::log(2) + 2000) / 2, 2000 * std::numeric_limits<A>::epsilon());
  exact << 0.25, -0.25, 0, -0.5, 0.5, 0;
  EXPECT_EQ(dz, exact);
}

TYPED_TEST(CrossEntropyOf, CountsTheRowsWhoseLargestLogitIsThatOfTheLabel) {
  using A = TypeParam;
  Matrix<A> z(4, 3);
  z << 1, 2, 3, 5, 5, 1, 5, 5, 1, -1, -3, -2;
  EXPECT_EQ(cross_entropy<A>(z, std::vector<int>{2, 0, 1, 0}).correct, 3);
  EXPECT_EQ(cross_entropy<A>(z, std::vector<int>{0, 2, 2, 1}).correct, 0);
}

TYPED_TEST(CrossEntropyOf, RowsMayLieAtAnyStrideAndNothingBesideThemIsTouched) {
  using A = TypeParam;
  test::Random rng(2);
  for (const Index classes : {3, 19}) {
    const Matrix<A> z = rng.matrix<A>(5, classes);
    const std::vector<int> labels = random_labels(rng, 5, classes);
    Matrix<A> dz = Matrix<A>::Zero(5, classes), wide_dz = Matrix<A>::Constant(5, classes + 3, 7);
    Matrix<A> wide_z = wide_dz * std::numeric_limits<A>::infinity();
    wide_z.middleCols(1, classes) = z;
    wide_dz.middleCols(1, classes).setZero();
    const CrossEntropy result = cross_entropy<A>(z, labels, dz);
    const CrossEntropy wide =
        cross_entropy<A>(wide_z.middleCols(1, classes), labels, wide_dz.middleCols(1, classes));
    EXPECT_EQ(wide.loss, result.loss);
    EXPECT_EQ(wide_dz.middleCols(1, classes), dz);
    EXPECT_TRUE((wide_dz.col(0).array() == 7).all() && (wide_dz.rightCols(2).array() == 7).all());
  }
}

TEST(CrossEntropyLabels, AreIntegersOfAnyType) {
  test::Random rng(3);
  const Matrix<float> z = rng.matrix<float>(3, 4);
  const double loss = cross_entropy<float>(z, std::vector<int>{3, 0, 1}).loss;
  const std::vector<Index> wide{3, 0, 1};
  EXPECT_EQ(cross_entropy<float>(z, std::span<const Index>(wide)).loss, loss);
  EXPECT_EQ(cross_entropy<float>(z, std::vector<std::uint8_t>{3, 0, 1}).loss, loss);
}

TEST(CrossEntropyErrors, NameTheArgumentBeforeAnythingIsWritten) {
  const Matrix<float> z = Matrix<float>::Ones(2, 3), none(0, 3);
  Matrix<float> dz = Matrix<float>::Constant(2, 3, 7), other = Matrix<float>::Constant(2, 2, 7);
  const auto text = [](MatrixView<const float> logits, std::vector<int> labels,
                       MatrixView<float> dlogits) {
    return test::message_of<error>([&] { cross_entropy<float>(logits, labels, dlogits); });
  };
  EXPECT_EQ(text(z, {0, 3}, dz),
            "mhla::cross_entropy: labels has a label 3, expected labels in [0, 3)");
  EXPECT_EQ(text(z, {0, -1}, dz),
            "mhla::cross_entropy: labels has a label -1, expected labels in [0, 3)");
  EXPECT_THROW(cross_entropy<float>(z, std::vector<std::uint64_t>{0, std::uint64_t(-1)}, dz),
               option_error);
  EXPECT_EQ(text(z, {0}, dz), "mhla::cross_entropy: labels has 1 elements, expected 2");
  EXPECT_EQ(text(none, {}, {}), "mhla::cross_entropy: logits has no rows, expected at least one");
  EXPECT_EQ(text(z, {0, 1}, other),
            "mhla::cross_entropy: dlogits has shape [2, 2], expected [2, 3]");
  EXPECT_TRUE((dz.array() == 7).all() && (other.array() == 7).all());
}

TEST(Argmax, IsTheFirstPlaceOfTheLargest) {
  const std::vector<float> x{-3, 4, 1, 4}, none;
  EXPECT_EQ(argmax<float>(x), 1);
  EXPECT_EQ(argmax<float>(none), -1);
}

}  // namespace
}  // namespace mhla

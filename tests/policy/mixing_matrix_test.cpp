#include "mhla/policy/mixing_matrix.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <span>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "mhla/policy/mixing_constraints.hpp"
#include "support/bands.hpp"
#include "support/message_of.hpp"
#include "support/random.hpp"

namespace mhla {
namespace {

/// Random coefficients, none of them 0.
template <class A>
Matrix<A> coefficients(test::Random& rng, Index rows, Index cols) {
  return rng.matrix<A>(rows, cols, 0.25, 2);
}

template <class A>
Matrix<A> inside_band(const Matrix<A>& dense, Index lower, Index upper) {
  Matrix<A> band = dense;
  for (Index i = 0; i < dense.rows(); ++i) {
    for (Index b = 0; b < dense.cols(); ++b) {
      if (b < i - lower || b > i + upper) band(i, b) = 0;
    }
  }
  return band;
}

template <class A>
class MixingMatrixOf : public testing::Test {};
using Accumulators = testing::Types<float, double>;
TYPED_TEST_SUITE(MixingMatrixOf, Accumulators);

TYPED_TEST(MixingMatrixOf, AViewReadsAndWritesTheBufferOfTheCaller) {
  using A = TypeParam;
  test::for_bands([](test::Random& rng, Index rows, Index cols, Index lower, Index upper) {
    const Pattern band(rows, cols, lower, upper);
    const Matrix<A> c = coefficients<A>(rng, rows, cols);
    std::vector<A> parameters(static_cast<std::size_t>(band.size() + 2), A(7));
    A* const data = parameters.data() + 1;
    const MixingView<A> m(data, band);
    std::fill_n(data, band.size(), A(0));
    for (Index i = -1; i <= rows; ++i) {
      for (Index b = -1; b <= cols; ++b) {
        if (band.holds(i, b)) {
          m.at(i, b) = c(i, b);
        } else {
          EXPECT_THROW(m.at(i, b), option_error) << i << ", " << b;
        }
      }
    }
    for (Index i = 0; i < rows; ++i) {
      for (Index j = 0; j < band.width(); ++j) {
        const Index b = band.first(i) + j;
        ASSERT_EQ(data[i * band.width() + j], b < band.last(i) ? c(i, b) : 0);
        ASSERT_EQ(m.row_from_zero(i) + b, data + i * band.width() + j);
      }
    }
    EXPECT_EQ(parameters.front() + parameters.back(), 14) << "written beside the buffer";
    const MixingView<const A> constant = m;
    const Matrix<A> expected = inside_band(c, lower, upper);
    EXPECT_EQ(m.dense(), expected);
    EXPECT_EQ(constant.dense(), expected);
    EXPECT_EQ(constant.pattern(), band);
    EXPECT_EQ(m.storage().data(), data);
    EXPECT_EQ(std::ssize(m.storage()), band.size());
    m.for_each([](A& x) { x += 1; });
    EXPECT_EQ(m.dense(), inside_band<A>(c.array() + 1, lower, upper));
  });
}

TYPED_TEST(MixingMatrixOf, AViewOfAnEigenMatrixIsItsMemory) {
  using A = TypeParam;
  test::Random rng(3);
  Matrix<A> c = coefficients<A>(rng, 4, 7);
  const MixingView<A> m(c);
  const MixingView<const A> constant(std::as_const(c));
  EXPECT_EQ(m.storage().data(), c.data());
  EXPECT_EQ(constant.storage().data(), c.data());
  EXPECT_EQ(m.pattern(), Pattern(4, 7));
  m.at(2, 3) = 9;
  EXPECT_EQ(c(2, 3), 9);
  EXPECT_EQ(constant.dense(), c);
  Matrix<A> none(0, 2);
  EXPECT_THROW(MixingView<A>{none}, option_error);
  static_assert(!std::is_constructible_v<MixingView<const A>, Matrix<A>>, "it would dangle");
  static_assert(!std::is_constructible_v<MixingView<A>, const Matrix<A>&>);
}

TYPED_TEST(MixingMatrixOf, CopiesAViewWithItsBandAndMakesZerosLikeIt) {
  using A = TypeParam;
  test::for_bands([](test::Random& rng, Index rows, Index cols, Index lower, Index upper) {
    auto m = MixingMatrix<A>::banded(coefficients<A>(rng, rows, cols), lower, upper);
    const MixingView<const A> constant = m;
    const MixingMatrix<A> copy(constant);
    EXPECT_EQ(copy.dense(), m.dense());
    EXPECT_EQ(copy.pattern(), m.pattern());
    EXPECT_NE(copy.storage().data(), constant.storage().data());
    for (const MixingMatrix<A>& zeros :
         {zeros_like(m), zeros_like(m.view()), zeros_like(constant)}) {
      EXPECT_EQ(zeros.pattern(), m.pattern());
      for (const A x : zeros.storage()) EXPECT_EQ(x, 0);
    }
  });
  EXPECT_EQ(test::message_of<option_error>([] { zeros_like(MixingView<A>()); }),
            "mhla::zeros_like: m is absent, expected a view of coefficients");
  EXPECT_EQ(test::message_of<option_error>([] { MixingMatrix<A>(MixingView<const A>()); }),
            "mhla::MixingMatrix: m is absent, expected a view of coefficients");
}

/// A file of tensors 0, 1, 2, ...; it holds no numbers of "other".
struct CountingFile {
  struct Stored {
    std::vector<Index> shape;
  };
  std::map<std::string, Stored> stored;

  const std::map<std::string, Stored>& tensors() const { return stored; }
  template <class A>
  void copy_to(const std::string& name, std::span<A> to) const {
    if (name == "other") throw std::runtime_error("other is of another type");
    std::iota(to.begin(), to.end(), A(0));
  }
};

TEST(LoadMixing, ReadsTheLeadingAxesOfATensor) {
  const CountingFile file{{{"matrix", {{2, 3}}},
                           {"vision", {{3, 3, 1, 1}}},
                           {"language", {{4, 4, 1, 1, 1, 1}}},
                           {"heads", {{3, 2, 2}}},
                           {"one", {{1, 1, 1}}}}};
  EXPECT_EQ(load_mixing(file, "matrix").dense(),
            (Matrix<float>(2, 3) << 0, 1, 2, 3, 4, 5).finished());
  const MixingMatrix<double> vision = load_mixing<double>(file, "vision");
  EXPECT_EQ(vision.pattern(), Pattern(3, 3));
  EXPECT_EQ(vision(2, 1), 7);
  EXPECT_EQ(load_mixing(file, "language")(3, 3), 15);
  EXPECT_EQ(load_mixing(file, "one").rows(), 1);
  const MixingMatrix<float> heads = load_mixing(file, "heads");
  ASSERT_EQ(heads.heads(), 3);
  EXPECT_EQ(heads.of_head(2).dense(), (Matrix<float>(2, 2) << 8, 9, 10, 11).finished());
}

TEST(LoadMixing, RefusesWhatIsNoMatrixBeforeAnythingIsCopied) {
  const CountingFile file{{{"vector", {{4}}},
                           {"scalar", {{}}},
                           {"late", {{2, 2, 1, 2}}},
                           {"headless", {{0, 2, 2}}},
                           {"empty", {{0, 2}}},
                           {"other", {{2, 2}}}}};
  for (const char* name : {"vector", "scalar", "late"}) {
    EXPECT_EQ(test::message_of<shape_error>([&] { load_mixing(file, name); }),
              "mhla::load_mixing: file has shape " +
                  detail::shape_text(file.stored.at(name).shape) + " for " + name +
                  ", expected a tensor [Mq, Mk], [Mq, Mk, 1, ...] or [H, Mq, Mk]");
  }
  EXPECT_EQ(test::message_of<shape_error>([&] { load_mixing(file, "absent"); }),
            "mhla::load_mixing: file has no tensor absent, expected a tensor [Mq, Mk], [Mq, Mk, 1, "
            "...] or [H, Mq, Mk]");
  EXPECT_THROW(load_mixing(file, "empty"), option_error);
  EXPECT_THROW(load_mixing(file, "headless"), option_error);
  EXPECT_EQ(test::message_of<std::runtime_error>([&] { load_mixing(file, "other"); }),
            "other is of another type");
}

TEST(MixingView, AbsentIsAViewThatWasNeverSet) {
  EXPECT_TRUE(MixingView<float>().absent());
  EXPECT_TRUE(MixingView<const float>(MixingView<float>()).absent());
  EXPECT_TRUE(MixingView<float>().storage().empty());
  EXPECT_FALSE(MixingMatrix<float>(Pattern(1, 1)).view().absent());
}

TYPED_TEST(MixingMatrixOf, KeepsTheBandOfAnyEigenObjectAndDropsTheRest) {
  using A = TypeParam;
  test::for_bands([](test::Random& rng, Index rows, Index cols, Index lower, Index upper) {
    const Matrix<double> c = coefficients<double>(rng, rows + 1, cols + 1);
    const Eigen::MatrixXd columns = c;
    const Matrix<A> all = c.template cast<A>(), part = all.block(1, 1, rows, cols);
    EXPECT_EQ(MixingMatrix<A>(c).dense(), all);
    EXPECT_EQ(MixingMatrix<A>(columns).dense(), all);
    EXPECT_EQ(MixingMatrix<A>(c).pattern(), Pattern(rows + 1, cols + 1));
    const auto m = MixingMatrix<A>::banded(columns.block(1, 1, rows, cols), lower, upper);
    EXPECT_EQ(m.dense(), inside_band(part, lower, upper));
    EXPECT_EQ(m.pattern(), Pattern(rows, cols, lower, upper));
    EXPECT_EQ(m.rows(), rows);
    EXPECT_EQ(m.cols(), cols);
    EXPECT_TRUE((MixingMatrix<A>::banded(rows, cols, lower, upper).dense().array() == 0).all());
    EXPECT_EQ(m(rows - 1, 0), m.dense()(rows - 1, 0));
  });
}

TYPED_TEST(MixingMatrixOf, KeepsCoefficientsThatAreNotZeroAsLists) {
  using A = TypeParam;
  test::for_bands([](test::Random& rng, Index rows, Index cols, Index lower, Index upper) {
    auto banded = MixingMatrix<A>::banded(coefficients<A>(rng, rows, cols), lower, upper);
    banded.view().for_each([&rng](A& c) { c = rng.chance(0.5) ? c : 0; });
    auto m = MixingMatrix<A>::sparse(banded);
    const Matrix<A> dense = banded.dense();
    EXPECT_EQ(m.dense(), dense);
    EXPECT_EQ(std::ssize(m.storage()), (dense.array() != 0).count());
    EXPECT_EQ(zeros_like(m).pattern(), m.pattern());
    EXPECT_EQ(lower_triangle(m).dense(), inside_band(dense, rows, 0));
    clamp(m, A(0.5), A(1));
    EXPECT_EQ(m.dense(), (dense.array() == 0).select(dense, dense.cwiseMax(A(0.5)).cwiseMin(A(1))));
    if ((dense.rowwise().sum().array() == 0).any()) return;
    normalize_rows(m);
    for (const A sum : m.dense().rowwise().sum().eval()) EXPECT_NEAR(sum, 1, 1e-6);
  });
}

TYPED_TEST(MixingMatrixOf, OwnsItsCoefficientsAndIsAView) {
  using A = TypeParam;
  test::Random rng(2);
  const Matrix<A> c = coefficients<A>(rng, 4, 7);
  MixingMatrix<A> m = MixingMatrix<A>::banded(c, 1, 2);
  const MixingMatrix<A> copy = m;
  const MixingView<A> view = m;
  view.at(2, 3) = 5;
  EXPECT_EQ(m(2, 3), 5);
  EXPECT_EQ(copy(2, 3), c(2, 3));
  EXPECT_EQ(MixingView<const A>(std::as_const(m)).storage().data(), view.storage().data());
}

TYPED_TEST(MixingMatrixOf, LowerTriangleDropsLaterBlocks) {
  test::for_bands([](test::Random& rng, Index rows, Index cols, Index lower, Index upper) {
    const Matrix<TypeParam> c = coefficients<TypeParam>(rng, rows, cols);
    const auto m = lower_triangle(MixingMatrix<TypeParam>::banded(c, lower, upper));
    EXPECT_EQ(m.dense(), inside_band(c, lower, 0));
    for (Index i = 0; i < rows; ++i) EXPECT_EQ(m.pattern().last(i), std::min(i + 1, cols));
  });
}

TYPED_TEST(MixingMatrixOf, UniformCausalReadsAllEarlierBlocksAlike) {
  for (const Index blocks : {1, 2, 9}) {
    const MixingMatrix<TypeParam> m = uniform_causal<TypeParam>(blocks);
    ASSERT_EQ(m.rows(), blocks);
    ASSERT_EQ(m.cols(), blocks);
    for (Index i = 0; i < blocks; ++i) {
      for (Index b = 0; b < blocks; ++b) {
        EXPECT_EQ(m(i, b), b <= i ? TypeParam(1) / static_cast<TypeParam>(i + 1) : 0);
      }
    }
  }
}

TEST(ExpectMixing, RejectsOtherRowsAndOtherColumns) {
  const MixingMatrix<float> m(Matrix<float>::Ones(3, 4));
  const auto text = [&](Index rows, Index cols) {
    return test::message_of<shape_error>([&] { detail::expect_mixing("f", m.view(), rows, cols); });
  };
  const auto leading = [&](Index rows, Index cols) {
    return test::message_of<shape_error>(
        [&] { detail::expect_leading_mixing("f", m.view(), rows, cols); });
  };
  EXPECT_EQ(text(3, 4), "no exception");
  EXPECT_EQ(leading(2, 3), "no exception");
  for (const auto& [rows, cols] : {std::pair<Index, Index>{4, 4}, {3, 5}}) {
    const std::string wanted = detail::shape_text({rows, cols});
    EXPECT_EQ(text(rows, cols), "mhla::f: mixing has shape [3, 4], expected " + wanted +
                                    " (query blocks, key blocks)");
    EXPECT_EQ(leading(rows, cols), "mhla::f: mixing has shape [3, 4], expected at least " + wanted +
                                       " for the blocks of the sequence");
  }
}

TEST(MixingMatrix, RejectsEmptyOnesAndNegativeBandwidths) {
  using M = MixingMatrix<float>;
  const auto empty = [](const char* shape) {
    return std::string("mhla::MixingMatrix: coefficients have shape ") + shape +
           ", expected at least one row and one column";
  };
  EXPECT_EQ(test::message_of<option_error>([] { M(Matrix<float>(2, 0)); }), empty("[2, 0]"));
  EXPECT_EQ(test::message_of<option_error>([] { Pattern(0, 3, 1, 1); }), empty("[0, 3]"));
  EXPECT_EQ(test::message_of<option_error>([] { uniform_causal<float>(0); }), empty("[0, 0]"));
  EXPECT_EQ(test::message_of<option_error>([] { M::banded(3, 3, -1, 2); }),
            "mhla::MixingMatrix: band is -1 below and 2 above the diagonal, "
            "expected bandwidths >= 0");
  EXPECT_THROW(Pattern(3, 3, 0, -1), option_error);
  EXPECT_THROW(Pattern(Index{1} << 62, 4), shape_error);
  auto m = MixingMatrix<double>::banded(4, 5, 1, 0);
  EXPECT_EQ(
      test::message_of<option_error>([&m] { m.at(1, 2); }),
      "mhla::MixingMatrix::at: position is [1, 2], expected a coefficient of the pattern of a "
      "[4, 5] matrix");
}

}  // namespace
}  // namespace mhla

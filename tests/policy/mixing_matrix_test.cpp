#include "mhla/policy/mixing_matrix.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <string>
#include <utility>

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

/// Calls f(rng, rows, cols, lower, upper) for many sizes and bands.
template <class F>
void for_bands(F&& f) {
  test::Random rng(1);
  for (const Index rows : {1, 2, 5, 9}) {
    for (const Index cols : {1, 3, 5, 12}) {
      for (const Index lower : {0, 1, 4, 20}) {
        for (const Index upper : {0, 2, 5, 20}) f(rng, rows, cols, lower, upper);
      }
    }
  }
}

template <class A>
class MixingMatrixOf : public testing::Test {};
using Accumulators = testing::Types<float, double>;
TYPED_TEST_SUITE(MixingMatrixOf, Accumulators);

TYPED_TEST(MixingMatrixOf, DenseKeepsEveryCoefficient) {
  test::Random rng(2);
  const Matrix<TypeParam> c = coefficients<TypeParam>(rng, 4, 7);
  const MixingMatrix<TypeParam> m(c);
  EXPECT_EQ(m.rows(), 4);
  EXPECT_EQ(m.cols(), 7);
  EXPECT_EQ(m.dense(), c);
  for (Index i = 0; i < 4; ++i) {
    EXPECT_EQ(m.first(i), 0);
    EXPECT_EQ(m.last(i), 7);
    for (Index b = 0; b < 7; ++b) EXPECT_EQ(m.row(i)[b], c(i, b));
  }
}

TYPED_TEST(MixingMatrixOf, TakesAnyEigenObject) {
  test::Random rng(3);
  const Matrix<double> c = rng.matrix<double>(3, 5);
  const Matrix<TypeParam> expected = c.template cast<TypeParam>();
  EXPECT_EQ(MixingMatrix<TypeParam>(c).dense(), expected);
  const Eigen::MatrixXd columns = c;
  EXPECT_EQ(MixingMatrix<TypeParam>(columns).dense(), expected);
  const Matrix<TypeParam> part = expected.block(1, 1, 2, 3);
  EXPECT_EQ(MixingMatrix<TypeParam>(expected.block(1, 1, 2, 3)).dense(), part);
}

TYPED_TEST(MixingMatrixOf, BandKeepsTheBandAndDropsTheRest) {
  for_bands([](test::Random& rng, Index rows, Index cols, Index lower, Index upper) {
    const Matrix<TypeParam> c = coefficients<TypeParam>(rng, rows, cols);
    const auto m = MixingMatrix<TypeParam>::banded(c, lower, upper);
    EXPECT_EQ(m.dense(), inside_band(c, lower, upper));
    for (Index i = 0; i < rows; ++i) {
      ASSERT_LE(m.first(i), m.last(i));
      for (Index b = 0; b < cols; ++b) {
        const bool held = b >= m.first(i) && b < m.last(i);
        ASSERT_EQ(held, b >= i - lower && b <= i + upper);
        if (!held) continue;
        EXPECT_EQ(m.row(i)[b - m.first(i)], c(i, b));
      }
    }
  });
}

TYPED_TEST(MixingMatrixOf, EmptyBandIsFilledByAtAndRejectsTheOutside) {
  for_bands([](test::Random& rng, Index rows, Index cols, Index lower, Index upper) {
    const Matrix<TypeParam> c = coefficients<TypeParam>(rng, rows, cols);
    auto m = MixingMatrix<TypeParam>::banded(rows, cols, lower, upper);
    EXPECT_TRUE((m.dense().array() == 0).all());
    for (Index i = -1; i <= rows; ++i) {
      for (Index b = -1; b <= cols; ++b) {
        if (i >= 0 && i < rows && b >= m.first(i) && b < m.last(i)) {
          m.at(i, b) = c(i, b);
        } else {
          EXPECT_THROW(m.at(i, b), option_error) << i << ", " << b;
        }
      }
    }
    EXPECT_EQ(m.dense(), inside_band(c, lower, upper));
  });
}

TYPED_TEST(MixingMatrixOf, HugeBandwidthsAreTheWholeMatrix) {
  constexpr Index kMax = std::numeric_limits<Index>::max();
  test::Random rng(4);
  const Matrix<TypeParam> c = coefficients<TypeParam>(rng, 3, 5);
  EXPECT_EQ(MixingMatrix<TypeParam>::banded(c, kMax, kMax).dense(), c);
}

TYPED_TEST(MixingMatrixOf, ForEachVisitsWhatIsStoredOnce) {
  for_bands([](test::Random&, Index rows, Index cols, Index lower, Index upper) {
    auto m = MixingMatrix<TypeParam>::banded(rows, cols, lower, upper);
    m.for_each([](TypeParam& c) { c += 1; });
    const Matrix<TypeParam> ones = Matrix<TypeParam>::Ones(rows, cols);
    EXPECT_EQ(m.dense(), inside_band(ones, lower, upper));
  });
}

TYPED_TEST(MixingMatrixOf, LowerTriangleDropsLaterBlocks) {
  for_bands([](test::Random& rng, Index rows, Index cols, Index lower, Index upper) {
    const Matrix<TypeParam> c = coefficients<TypeParam>(rng, rows, cols);
    const MixingMatrix<TypeParam> m =
        lower_triangle(MixingMatrix<TypeParam>::banded(c, lower, upper));
    EXPECT_EQ(m.dense(), inside_band(c, lower, 0));
    for (Index i = 0; i < rows; ++i) EXPECT_EQ(m.last(i), std::min(i + 1, cols));
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

TYPED_TEST(MixingMatrixOf, ClampMovesStoredCoefficientsIntoTheRange) {
  test::Random rng(5);
  const Matrix<TypeParam> c = rng.matrix<TypeParam>(6, 6, -2, 2);
  MixingMatrix<TypeParam> dense(c);
  clamp<TypeParam>(dense, 0, 1);
  EXPECT_EQ(dense.dense(), c.cwiseMax(0).cwiseMin(1).eval());
  auto band = MixingMatrix<TypeParam>::banded(c, 1, 1);
  clamp<TypeParam>(band, TypeParam(0.5), 1);
  const Matrix<TypeParam> clamped = c.cwiseMax(TypeParam(0.5)).cwiseMin(1);
  EXPECT_EQ(band.dense(), inside_band(clamped, 1, 1));
}

TYPED_TEST(MixingMatrixOf, ClampToLowerTriangleAlsoDropsLaterBlocks) {
  test::Random rng(6);
  const Matrix<TypeParam> c = rng.matrix<TypeParam>(6, 6, -2, 2);
  MixingMatrix<TypeParam> m(c);
  clamp_to_lower_triangle(m, TypeParam(1e-5), TypeParam(1));
  const Matrix<TypeParam> clamped = c.cwiseMax(TypeParam(1e-5)).cwiseMin(1);
  EXPECT_EQ(m.dense(), inside_band(clamped, 6, 0));
}

TYPED_TEST(MixingMatrixOf, NormalizeRowsDividesEveryRowByItsSum) {
  constexpr long double u = std::numeric_limits<TypeParam>::epsilon() / 2;
  for_bands([](test::Random& rng, Index rows, Index cols, Index lower, Index upper) {
    const Matrix<TypeParam> c = coefficients<TypeParam>(rng, rows, cols);
    auto m = MixingMatrix<TypeParam>::banded(c, lower, upper);
    for (Index i = 0; i < rows; ++i) {
      if (m.first(i) == m.last(i)) return;  // an empty row cannot be normalised
    }
    normalize_rows(m);
    for (Index i = 0; i < rows; ++i) {
      long double total = 0;
      for (Index b = m.first(i); b < m.last(i); ++b) total += c(i, b);
      const long double w = static_cast<long double>(m.last(i) - m.first(i));
      for (Index b = m.first(i); b < m.last(i); ++b) {
        // w - 1 additions of positive numbers and one division.
        EXPECT_LE(std::abs(m(i, b) - c(i, b) / total), w * u / (1 - w * u) * c(i, b) / total);
      }
    }
  });
}

TYPED_TEST(MixingMatrixOf, NormalizeRowsRejectsABadRowBeforeAnythingChanges) {
  using Limits = std::numeric_limits<TypeParam>;
  test::Random rng(7);
  for (const TypeParam bad : {TypeParam(-1), Limits::infinity(), Limits::quiet_NaN()}) {
    Matrix<TypeParam> c = Matrix<TypeParam>::Constant(3, 2, 3);
    c.row(2) << 1, bad;
    MixingMatrix<TypeParam> m(c);
    const std::string text = test::message_of<option_error>([&m] { normalize_rows(m); });
    EXPECT_EQ(text, "mhla::normalize_rows: m has row 2 with sum " + std::to_string(1 + bad) +
                        ", expected rows with a finite sum other than 0");
    EXPECT_TRUE((m.dense().topRows(2).array() == 3).all());
    EXPECT_EQ(m(2, 0), 1);
  }
}

TEST(MixingMatrix, RejectsEmptyOnesAndNegativeBandwidths) {
  using M = MixingMatrix<float>;
  const auto empty = [](const char* shape) {
    return std::string("mhla::MixingMatrix: coefficients have shape ") + shape +
           ", expected at least one row and one column";
  };
  EXPECT_EQ(test::message_of<option_error>([] { M(Matrix<float>()); }), empty("[0, 0]"));
  EXPECT_EQ(test::message_of<option_error>([] { M(Matrix<float>(2, 0)); }), empty("[2, 0]"));
  EXPECT_EQ(test::message_of<option_error>([] { M::banded(Matrix<float>(0, 3), 1, 1); }),
            empty("[0, 3]"));
  EXPECT_EQ(test::message_of<option_error>([] { M::banded(0, 3, 1, 1); }), empty("[0, 3]"));
  EXPECT_EQ(test::message_of<option_error>([] { uniform_causal<float>(0); }), empty("[0, 0]"));
  EXPECT_THROW(uniform_causal<float>(-2), option_error);
  EXPECT_EQ(test::message_of<option_error>([] { M::banded(3, 3, -1, 2); }),
            "mhla::MixingMatrix: band is -1 below and 2 above the diagonal, "
            "expected bandwidths >= 0");
  EXPECT_THROW(M::banded(3, 3, 0, -1), option_error);
}

TYPED_TEST(MixingMatrixOf, RowsThatHoldAColumnAreThoseWhoseBandHasIt) {
  for_bands([](test::Random&, Index rows, Index cols, Index lower, Index upper) {
    const auto m = MixingMatrix<TypeParam>::banded(rows, cols, lower, upper);
    for (Index b = 0; b < cols; ++b) {
      ASSERT_LE(m.first_row(b), m.last_row(b));
      for (Index i = 0; i < rows; ++i) {
        EXPECT_EQ(i >= m.first_row(b) && i < m.last_row(b), b >= i - lower && b <= i + upper)
            << i << ", " << b << " of a band of " << lower << " and " << upper;
      }
    }
  });
}

TYPED_TEST(MixingMatrixOf, StorageIsTheRowsOneAfterAnother) {
  for_bands([](test::Random& rng, Index rows, Index cols, Index lower, Index upper) {
    const Matrix<TypeParam> c = coefficients<TypeParam>(rng, rows, cols);
    auto m = MixingMatrix<TypeParam>::banded(c, lower, upper);
    const std::span<TypeParam> storage = m.storage();
    ASSERT_EQ(std::ssize(storage), rows * m.width());
    EXPECT_EQ(std::as_const(m).storage().data(), storage.data());
    EXPECT_EQ(std::as_const(m).storage().size(), storage.size());
    Index widest = 0;
    for (Index i = 0; i < rows; ++i) {
      const Index size = m.last(i) - m.first(i);
      widest = std::max(widest, size);
      ASSERT_EQ(m.row(i), storage.data() + i * m.width());
      for (Index j = 0; j < m.width(); ++j) {
        TypeParam& stored = storage[static_cast<std::size_t>(i * m.width() + j)];
        EXPECT_EQ(stored, j < size ? c(i, m.first(i) + j) : 0);
        if (j < size) stored = TypeParam(7);
      }
    }
    EXPECT_LE(widest, m.width());
    EXPECT_LE(m.width(), std::min(cols, lower + upper + 1));
    EXPECT_EQ(m.dense(),
              inside_band<TypeParam>(Matrix<TypeParam>::Constant(rows, cols, 7), lower, upper));
  });
}

TEST(MixingMatrix, TheSameBandIsTheSameShapeAndTheSamePlaces) {
  using M = MixingMatrix<float>;
  const M m = M::banded(5, 6, 2, 1);
  EXPECT_TRUE(m.same_band(m));
  EXPECT_TRUE(m.same_band(M::banded(Matrix<float>::Ones(5, 6), 2, 1)));
  EXPECT_FALSE(m.same_band(M::banded(4, 6, 2, 1)));
  EXPECT_FALSE(m.same_band(M::banded(5, 7, 2, 1)));
  EXPECT_FALSE(m.same_band(M::banded(5, 6, 1, 2)));  // the same width
  EXPECT_FALSE(m.same_band(M::banded(5, 6, 2, 2)));
  EXPECT_FALSE(m.same_band(M::banded(5, 6, 1, 1)));
  // Bands that go beyond the matrix on both sides are the dense matrix.
  EXPECT_TRUE(M::banded(5, 6, 20, 30).same_band(M(Matrix<float>::Ones(5, 6))));
}

TEST(MixingMatrix, AtTellsThePositionAndTheShape) {
  auto m = MixingMatrix<double>::banded(4, 5, 1, 0);
  EXPECT_EQ(test::message_of<option_error>([&m] { m.at(1, 2); }),
            "mhla::MixingMatrix::at: position is [1, 2], expected a place inside the band of a "
            "[4, 5] matrix");
}

TEST(ExpectMixing, RejectsAnotherShapeButNotWhereThereIsNothingToMix) {
  const auto m = MixingMatrix<float>::banded(4, 5, 9, 9);
  EXPECT_NO_THROW(detail::expect_mixing("f", m, 4, 5));
  EXPECT_NO_THROW(detail::expect_mixing("f", m, 0, 5));
  EXPECT_NO_THROW(detail::expect_mixing("f", m, 4, 0));
  EXPECT_EQ(test::message_of<shape_error>([&] { detail::expect_mixing("f", m, 5, 5); }),
            "mhla::f: mixing has shape [4, 5], expected [5, 5] (query blocks, key blocks)");
  EXPECT_THROW(detail::expect_mixing("f", m, 4, 4), shape_error);
}

TEST(ExpectMixing, LeadingBlocksMayBeFewerThanTheMatrixHas) {
  const auto m = MixingMatrix<float>::banded(4, 5, 9, 9);
  EXPECT_NO_THROW(detail::expect_leading_mixing("f", m, 3, 2));
  EXPECT_NO_THROW(detail::expect_leading_mixing("f", m, 4, 5));
  EXPECT_EQ(test::message_of<shape_error>([&] { detail::expect_leading_mixing("f", m, 5, 5); }),
            "mhla::f: mixing has shape [4, 5], expected at least [5, 5] for the blocks of the "
            "sequence");
  EXPECT_THROW(detail::expect_leading_mixing("f", m, 4, 6), shape_error);
}

TEST(MixingMatrix, ClampRejectsAnEmptyRange) {
  auto m = uniform_causal<double>(2);
  EXPECT_THROW(clamp(m, 1.0, 0.0), option_error);
  EXPECT_EQ(m(0, 0), 1);
}

}  // namespace
}  // namespace mhla

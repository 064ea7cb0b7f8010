#include "mhla/core/matrix.hpp"

#include <gtest/gtest.h>

#include <array>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

#include "support/message_of.hpp"
#include "support/random.hpp"

namespace mhla {
namespace {

using ColumnMajor = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::ColMajor>;

static_assert(!std::is_convertible_v<const Matrix<float>&, MatrixView<float>>);
static_assert(!std::is_convertible_v<Matrix<float>&, MatrixView<double>>);
static_assert(!std::is_convertible_v<MatrixView<const float>, MatrixView<float>>);
static_assert(
    !std::is_convertible_v<decltype(Matrix<float>() + Matrix<float>()), MatrixView<const float>>);
static_assert(!std::is_convertible_v<std::vector<bool>, Mask>);
static_assert(!std::is_convertible_v<std::vector<int>, Mask>);

template <class M>
void expect_same_elements(const MatrixView<const float>& view, const M& m) {
  ASSERT_EQ(view.rows, m.rows());
  ASSERT_EQ(view.cols, m.cols());
  for (Index r = 0; r < view.rows; ++r) {
    for (Index c = 0; c < view.cols; ++c) EXPECT_EQ(view(r, c), m(r, c)) << r << ", " << c;
  }
}

TEST(MatrixView, OfEigenObjectsHasTheirElements) {
  test::Random rng(1);
  Matrix<float> rows = rng.matrix<float>(4, 7);
  ColumnMajor columns = rows;
  Eigen::Array<float, Eigen::Dynamic, Eigen::Dynamic> array = rows;
  expect_same_elements(rows, rows);
  expect_same_elements(columns, rows);
  expect_same_elements(array, rows);
  auto block = rows.block(1, 2, 3, 4);
  expect_same_elements(block, block);
  auto transposed = rows.transpose();
  expect_same_elements(transposed, transposed);
  using Strides = Eigen::Stride<Eigen::Dynamic, Eigen::Dynamic>;
  Eigen::Map<Matrix<float>, 0, Strides> map(rows.data(), 2, 3, Strides(14, 2));
  expect_same_elements(map, map);
  Eigen::VectorXf vector = rows.col(3);
  expect_same_elements(vector, vector);
}

TEST(MatrixView, WritesThroughToTheMatrix) {
  Matrix<float> m = Matrix<float>::Zero(3, 2);
  const MatrixView<float> view = m;
  view(2, 1) = 5;
  view.row(1)[0] = 7;
  EXPECT_EQ(m(2, 1), 5);
  EXPECT_EQ(m(1, 0), 7);
  EXPECT_EQ(m.sum(), 12);
  EXPECT_TRUE(MatrixView<const float>(MatrixView<float>()).absent());
  EXPECT_FALSE(MatrixView<float>(nullptr, 0, 3, 3).absent());
}

TEST(MatrixView, StridesMayBeZeroOrNegative) {
  const std::array<float, 6> values{0, 1, 2, 3, 4, 5};
  const MatrixView<const float> broadcast(values.data(), 3, 2, 0);
  const MatrixView<const float> backwards(values.data() + 5, 2, 3, -3, -1);
  for (Index r = 0; r < 3; ++r) EXPECT_EQ(broadcast(r, 1), 1);
  EXPECT_EQ(backwards(0, 0), 5);
  EXPECT_EQ(backwards(1, 2), 0);
  EXPECT_EQ(backwards.row(1)[0], 2);
}

TEST(MatrixView, MiddleRowsAreTheRowsFromBegin) {
  test::Random rng(2);
  const Matrix<float> m = rng.matrix<float>(5, 3);
  const ColumnMajor columns = m;
  for (Index begin = 0; begin <= 5; ++begin) {
    for (Index count = 0; begin + count <= 5; ++count) {
      const Matrix<float> expected = m.middleRows(begin, count);
      expect_same_elements(MatrixView<const float>(m).middle_rows(begin, count), expected);
      expect_same_elements(MatrixView<const float>(columns).middle_rows(begin, count), expected);
    }
  }
}

constexpr std::array<bool, 6> kKeep{true, false, false, true, true, false};

void expect_keeps(const Mask& mask) {
  EXPECT_FALSE(mask.all());
  ASSERT_EQ(mask.size, 6);
  for (Index t = 0; t < 6; ++t) EXPECT_EQ(mask[t], kKeep[static_cast<std::size_t>(t)]) << t;
}

TEST(Mask, KeepsAllByDefaultAndOtherwiseWhatAnyRowOfFlagsSays) {
  EXPECT_TRUE(Mask().all());
  EXPECT_TRUE(Mask()[1234]);
  const std::vector<unsigned char> bytes{1, 0, 0, 255, 2, 0};
  const std::vector<char> chars(bytes.begin(), bytes.end());
  const Eigen::Array<bool, Eigen::Dynamic, 1> eigen = Eigen::Array<bool, 6, 1>::Map(kKeep.data());
  expect_keeps({kKeep.data(), 6});
  expect_keeps({bytes.data(), 6});
  expect_keeps(kKeep);
  expect_keeps(bytes);
  expect_keeps(chars);
  expect_keeps(eigen);
  Eigen::Matrix<bool, 4, 6> columns;
  columns.row(2) = eigen.matrix().transpose();
  expect_keeps(columns.row(2));  // of a column-major matrix
  using Bools = Eigen::Matrix<bool, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  expect_keeps(Eigen::Map<const Bools>(kKeep.data(), 2, 3));
  EXPECT_EQ(test::message_of<shape_error>([&] { expect_keeps(columns.leftCols(3).topRows(2)); }),
            "mhla::Mask: flags are part of a matrix [2, 3], expected a row, a column or a whole "
            "matrix");
  using EverySecond = Eigen::Stride<3, 2>;  // every second number of a row
  const std::array<bool, 12> doubled{};
  EXPECT_EQ(test::message_of<shape_error>([&] {
              expect_keeps(Eigen::Map<const Bools, 0, EverySecond>(doubled.data(), 2, 3));
            }),
            "mhla::Mask: flags are part of a matrix [2, 3], expected a row, a column or a whole "
            "matrix");
  const std::vector<unsigned char> none;
  EXPECT_FALSE(Mask(none).all());
  EXPECT_EQ(Mask(none).size, 0);
  const Mask strided{kKeep.data(), 3, 2}, backwards{kKeep.data() + 5, 6, -1};
  for (Index t = 0; t < 3; ++t) EXPECT_EQ(strided[t], kKeep[static_cast<std::size_t>(2 * t)]);
  for (Index t = 0; t < 6; ++t) EXPECT_EQ(backwards[t], kKeep[static_cast<std::size_t>(5 - t)]);
}

/// Expects a batch of masks where item b of 2 keeps token n of 3 as kKeep[3 * b + n].
void expect_batch(const BatchMask& mask) {
  EXPECT_FALSE(mask.absent());
  ASSERT_EQ(mask.rows, 2);
  ASSERT_EQ(mask.cols, 3);
  for (Index b = 0; b < 2; ++b) {
    for (Index n = 0; n < 3; ++n) {
      EXPECT_EQ(mask.keep[b * mask.row_stride + n * mask.col_stride] != 0,
                kKeep[static_cast<std::size_t>(3 * b + n)])
          << b << ", " << n;
    }
  }
}

TEST(BatchMask, IsMadeOfFlagsOneItemAfterAnotherAndOfEigenObjects) {
  using Rows = Eigen::Array<bool, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  const Rows rows = Eigen::Map<const Rows>(kKeep.data(), 2, 3);
  const Eigen::Array<bool, Eigen::Dynamic, Eigen::Dynamic> columns = rows;
  expect_batch({kKeep.data(), 2, 3, 3});
  std::array<bool, 16> spread{};  // flags 2 apart, items 9 apart
  for (std::size_t i = 0; i < 6; ++i) spread[i / 3 * 9 + i % 3 * 2] = kKeep[i];
  expect_batch({spread.data(), 2, 3, 9, 2});
  expect_batch(Eigen::Map<const Rows, 0, Eigen::Stride<9, 2>>(spread.data(), 2, 3));
  expect_batch(rows);
  expect_batch(columns);
  expect_batch({kKeep, 2});
  const std::vector<unsigned char> bytes(kKeep.begin(), kKeep.end());
  expect_batch({bytes, 2});
  expect_batch({Eigen::Map<const Eigen::Array<bool, Eigen::Dynamic, 1>>(kKeep.data(), 6), 2});
  EXPECT_TRUE(BatchMask().absent());
  EXPECT_FALSE(BatchMask(std::span(bytes).first(0), 0).absent());
  EXPECT_EQ(test::message_of<shape_error>([&] { BatchMask(kKeep, 4); }),
            "mhla::BatchMask: flags has 6 entries, expected as many for each of 4 sequences");
  EXPECT_THROW(BatchMask(kKeep, 0), shape_error);
}

TEST(ExpectShape, RejectsOtherShapesNullAndSizesThatNoMemoryHolds) {
  float x = 0;
  const auto check = [](const MatrixView<float>& m, Index rows = -1, Index cols = -1) {
    return test::message_of<error>([&] { detail::expect_shape("f", "x", m, rows, cols); });
  };
  const MatrixView<float> m(&x, 3, 4, 4);
  for (const Index rows : {Index{-1}, Index{3}}) {
    for (const Index cols : {Index{-1}, Index{4}}) EXPECT_EQ(check(m, rows, cols), "no exception");
  }
  EXPECT_EQ(check(m, 2, 4), "mhla::f: x has shape [3, 4], expected [2, 4]");
  EXPECT_EQ(check(m, -1, 0), "mhla::f: x has shape [3, 4], expected [any, 0]");
  EXPECT_EQ(check({nullptr, 0, 4, 4}, 0, 4), "no exception");
  EXPECT_EQ(check({nullptr, 4, 0, 0}, 4, 0), "no exception");
  EXPECT_EQ(check({nullptr, 2, 3, 3}),
            "mhla::f: x is null with shape [2, 3], expected a pointer to data");
  EXPECT_NE(check({&x, -1, 2, 2}), "no exception");
  EXPECT_NE(check({&x, 2, -1, 2}), "no exception");
  const Index size = Index{1} << (std::numeric_limits<Index>::digits - 1);
  EXPECT_EQ(check({&x, size, 2, 0, 0}), "mhla::f: x has shape [" + std::to_string(size) +
                                            ", 2], expected a product that fits std::ptrdiff_t");
}

TEST(ExpectMask, RejectsAnotherNumberOfEntries) {
  const bool keep = true;
  EXPECT_NO_THROW(detail::expect_mask("f", "mask", Mask(), 7));
  EXPECT_NO_THROW(detail::expect_mask("f", "mask", Mask{&keep, 7, 0}, 7));
  EXPECT_THROW(detail::expect_mask("f", "mask", Mask{&keep, 1}, 7), shape_error);
}

}  // namespace
}  // namespace mhla

#include "mhla/stage/gather.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "mhla/stage/grid_partition.hpp"
#include "support/outputs.hpp"
#include "support/random.hpp"

namespace mhla {
namespace {

using test::Memory;
using test::RandomMask;

using detail::Rows;

template <class T>
bool is_nan(T x) {
  return std::isnan(static_cast<accumulator_t<T>>(x));
}

/// A matrix with strides of its own inside memory that is otherwise NaN.
template <class T>
struct Strided {
  std::vector<T> all;
  MatrixView<T> view;

  Strided(Index rows, Index cols, Index row_stride, Index col_stride)
      : all(static_cast<std::size_t>(20 + rows * std::abs(row_stride) +
                                     cols * std::abs(col_stride)),
            static_cast<T>(std::numeric_limits<accumulator_t<T>>::quiet_NaN())) {
    T* const first = all.data() + 3 + (row_stride < 0 ? (1 - rows) * row_stride : 0) +
                     (col_stride < 0 ? (1 - cols) * col_stride : 0);
    view = {first, rows, cols, row_stride, col_stride};
  }
};

struct Strides {
  Index row, col;
};

constexpr Index kTokens = 9, kWidth = 5;
// Row-major, padded, column-major, spread, backwards.
constexpr Strides kStrides[] = {{5, 1}, {8, 1}, {1, 9}, {20, 3}, {-5, 1}, {-40, -2}};

template <class T>
class Gather : public testing::Test {};
using Scalars = testing::Types<float, double, Eigen::half, Eigen::bfloat16>;
TYPED_TEST_SUITE(Gather, Scalars);

TYPED_TEST(Gather, WidensTheRowsItIsAskedFor) {
  using A = accumulator_t<TypeParam>;
  test::Random rng(1);
  const Matrix<TypeParam> x = rng.matrix<TypeParam>(kTokens, kWidth, -3, 3);
  const Index tokens[] = {7, 0, 4, 4};
  for (const Strides strides : kStrides) {
    Strided<TypeParam> in(kTokens, kWidth, strides.row, strides.col);
    for (const Index t : tokens) {
      for (Index j = 0; j < kWidth; ++j) in.view(t, j) = x(t, j);  // all others stay NaN
    }
    Memory memory(10000);
    const Rows<A> rows("f", memory.arena, 6, kWidth);
    detail::gather<TypeParam>(in.view, tokens, 4, rows);
    for (Index s = 0; s < 6; ++s) {
      for (Index j = 0; j < rows.stride; ++j) {
        if (s < 4 && j < kWidth) {
          EXPECT_EQ(rows.row(s)[j], static_cast<A>(x(tokens[s], j)));
        } else {
          EXPECT_TRUE(std::isnan(rows.row(s)[j])) << "written outside";
        }
      }
    }
  }
}

TYPED_TEST(Gather, ReadsBroadcastRowsAndColumns) {
  using A = accumulator_t<TypeParam>;
  const TypeParam x[] = {static_cast<TypeParam>(1.f), static_cast<TypeParam>(2.f)};
  const Index tokens[] = {5, 0};
  Memory memory(10000);
  const Rows<A> rows("f", memory.arena, 2, 2);
  detail::gather<TypeParam>({x, 9, 2, 0, 1}, tokens, 2, rows);
  for (Index s = 0; s < 2; ++s) EXPECT_EQ(rows.row(s)[0] + 10 * rows.row(s)[1], 21);
  detail::gather<TypeParam>({x + 1, 9, 2, 0, 0}, tokens, 2, rows);
  for (Index s = 0; s < 2; ++s) EXPECT_EQ(rows.row(s)[0] + 10 * rows.row(s)[1], 22);
}

TYPED_TEST(Gather, FeaturesAreTheMapOfTheWidenedRowWhateverTheStrides) {
  using A = accumulator_t<TypeParam>;
  test::Random rng(2);
  const Matrix<TypeParam> x = rng.matrix<TypeParam>(kTokens, kWidth, -3, 3);
  const Index tokens[] = {8, 2, 3};
  for (const Strides strides : kStrides) {
    Strided<TypeParam> in(kTokens, kWidth, strides.row, strides.col);
    for (const Index t : tokens) {
      for (Index j = 0; j < kWidth; ++j) in.view(t, j) = x(t, j);
    }
    Memory memory(10000);
    A* const raw = memory.arena.template take<A>("f", kWidth);
    const Rows<A> rows("f", memory.arena, 3, kWidth);
    detail::gather_features<TypeParam>(in.view, tokens, 3, EluPlusOne{}, raw, rows);
    for (Index s = 0; s < 3; ++s) {
      A row[kWidth], expected[kWidth];
      for (Index j = 0; j < kWidth; ++j) row[j] = static_cast<A>(x(tokens[s], j));
      EluPlusOne{}(row, expected, kWidth);
      EXPECT_EQ(std::memcmp(rows.row(s), expected, sizeof(expected)), 0);
    }
  }
}

TYPED_TEST(Gather, ScatterRoundsToTheRowsItIsAskedForAndWritesNothingElse) {
  using A = accumulator_t<TypeParam>;
  test::Random rng(3);
  const Index tokens[] = {6, 1, 3};
  Memory memory(10000);
  const Rows<A> rows("f", memory.arena, 3, kWidth);
  for (Index s = 0; s < 3; ++s) {
    for (Index j = 0; j < kWidth; ++j) rows.row(s)[j] = static_cast<A>(rng.uniform(-3, 3));
  }
  for (const Strides strides : kStrides) {
    Strided<TypeParam> out(kTokens, kWidth, strides.row, strides.col);
    detail::scatter<TypeParam>(rows, tokens, 3, out.view);
    Index written = 0;
    for (const TypeParam value : out.all) written += is_nan(value) ? 0 : 1;
    EXPECT_EQ(written, 3 * kWidth);
    for (Index s = 0; s < 3; ++s) {
      for (Index j = 0; j < kWidth; ++j) {
        EXPECT_EQ(out.view(tokens[s], j), static_cast<TypeParam>(rows.row(s)[j]));
      }
    }
  }
}

TYPED_TEST(Gather, ClearMaskedZeroesTheMaskedRowsOfItsBlockAlone) {
  test::Random rng(4);
  const Grid blocks({3, 3}, {2, 2});
  for (const Strides strides : kStrides) {
    for (Index b = 0; b < blocks.blocks(); ++b) {
      const RandomMask random(rng, kTokens, 0.5);
      Strided<TypeParam> out(kTokens, kWidth, strides.row, strides.col);
      detail::clear_masked<TypeParam>(blocks, b, {}, out.view);
      for (const TypeParam value : out.all) EXPECT_TRUE(is_nan(value));
      detail::clear_masked<TypeParam>(blocks, b, random.mask, out.view);
      Index expected = 0, written = 0;
      for (Index r = 0; r < blocks.runs(b); ++r) {
        const Run run = blocks.run(b, r);
        for (Index t = run.begin; t < run.begin + run.length; ++t) {
          if (random.mask[t]) continue;
          expected += kWidth;
          for (Index j = 0; j < kWidth; ++j) EXPECT_EQ(out.view(t, j), TypeParam(0));
        }
      }
      for (const TypeParam value : out.all) written += is_nan(value) ? 0 : 1;
      EXPECT_EQ(written, expected);
    }
  }
}

}  // namespace
}  // namespace mhla

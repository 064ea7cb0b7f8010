#include "mhla/stage/strip.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "mhla/stage/grid_partition.hpp"
#include "support/outputs.hpp"
#include "support/random.hpp"

namespace mhla {
namespace {

using test::Memory;
using test::RandomMask;

using detail::kStripTokens;
using detail::Rows;

/// The strips of every block against a list of the block's kept tokens.
template <Partition P>
void expect_strips(const P& blocks, Mask mask) {
  for (Index b = 0; b < blocks.blocks(); ++b) {
    std::vector<Index> tokens, slots;
    Index slot = 0;
    for (Index r = 0; r < blocks.runs(b); ++r) {
      const Run run = blocks.run(b, r);
      for (Index t = run.begin; t < run.begin + run.length; ++t, ++slot) {
        if (!mask[t]) continue;
        tokens.push_back(t);
        slots.push_back(slot);
      }
    }
    detail::StripCursor strip(blocks, b, mask);
    std::size_t seen = 0;
    while (strip.next() > 0) {
      const Index left = std::ssize(tokens) - static_cast<Index>(seen);
      ASSERT_EQ(strip.count(), std::min(kStripTokens, left));
      for (Index s = 0; s < strip.count(); ++s, ++seen) {
        ASSERT_EQ(strip.tokens()[s], tokens[seen]);
        ASSERT_EQ(strip.slots()[s], slots[seen]);
      }
    }
    ASSERT_EQ(seen, tokens.size()) << "block " << b;
    EXPECT_EQ(strip.next(), 0) << "past the end";
  }
}

TEST(StripCursor, VisitsTheKeptTokensOfEveryBlockInOrder) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    test::Random rng(seed);
    const Grid grid{{rng.integer(1, 4), rng.integer(1, 12), rng.integer(1, 12)},
                    {rng.integer(1, 4), rng.integer(1, 12), rng.integer(1, 12)}};
    const Contiguous sequence(grid.tokens(), rng.integer(1, 200));
    for (const double probability : {0.0, 0.1, 0.7, 1.0}) {
      const RandomMask random(rng, grid.tokens(), probability);
      expect_strips(grid, random.mask);
      expect_strips(sequence, random.mask);
    }
    expect_strips(grid, {});
    expect_strips(sequence, {});
  }
}

TEST(StripCursor, WholeStripsAreFollowedByAnEmptyOne) {
  for (const Index size :
       {Index{0}, kStripTokens - 1, kStripTokens, kStripTokens + 1, 2 * kStripTokens}) {
    const BlockSizes blocks({3, size});
    expect_strips(blocks, {});
    detail::StripCursor strip(blocks, 1, {});
    EXPECT_EQ(strip.next(), std::min(size, kStripTokens));
  }
}

TEST(Rows, StartOnTheirOwnCacheLines) {
  for (Index cols = 0; cols <= 40; ++cols) {
    Memory memory(100000);
    const Rows<float> rows("f", memory.arena, 5, cols);
    const Rows<double> wide("f", memory.arena, 5, cols);
    EXPECT_GE(rows.stride, cols);
    for (Index r = 0; r < 5; ++r) {
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(rows.row(r)) % 64, 0u);
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(wide.row(r)) % 64, 0u);
    }
    EXPECT_GE(reinterpret_cast<char*>(wide.row(0)), reinterpret_cast<char*>(rows.row(4) + cols));
  }
}

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
class Strip : public testing::Test {};
using Scalars = testing::Types<float, double, Eigen::half, Eigen::bfloat16>;
TYPED_TEST_SUITE(Strip, Scalars);

TYPED_TEST(Strip, GatherWidensTheRowsItIsAskedFor) {
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

TYPED_TEST(Strip, GatherReadsBroadcastRowsAndColumns) {
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

TYPED_TEST(Strip, GatherFeaturesIsTheMapOfTheWidenedRowWhateverTheStrides) {
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

TYPED_TEST(Strip, ScatterRoundsToTheRowsItIsAskedForAndWritesNothingElse) {
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

TYPED_TEST(Strip, ClearMaskedZeroesTheMaskedRowsOfItsBlockAlone) {
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

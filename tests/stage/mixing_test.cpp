#include "mhla/stage/mixing.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "support/outputs.hpp"
#include "support/random.hpp"

namespace mhla {
namespace {

using test::Memory;
using test::same_bits;

using detail::ColumnSpan;
using detail::kGroupBlocks;
using detail::Reach;

/// Random summaries and a random dense or banded matrix that mixes the first `blocks` of them.
template <class A>
struct Mix {
  test::Random rng;
  Index rows, cols, d, e, blocks;
  Reach reach;
  Index lower, upper;
  MixingMatrix<A> m;
  Matrix<A> kv;        // [blocks, D*E]
  Matrix<A> key_sums;  // [blocks, D]

  explicit Mix(std::uint64_t seed)
      : rng(seed),
        rows(rng.integer(1, 40)),
        cols(rng.integer(1, 40)),
        d(rng.integer(1, 20)),  // up to five slabs
        e(rng.integer(1, 20)),
        blocks(rng.chance(0.5) ? cols : rng.integer(0, cols)),
        reach(rng.chance(0.5) ? Reach::kAll : Reach::kEarlier),
        lower(bandwidth()),
        upper(bandwidth()),
        m(MixingMatrix<A>::banded(rng.matrix<A>(rows, cols), lower, upper)),
        kv(rng.matrix<A>(blocks, d * e)),
        key_sums(rng.matrix<A>(blocks, d)) {}

  Index bandwidth() { return rng.chance(0.5) ? rng.integer(0, 6) : 40; }

  bool reads(Index i, Index b) const {
    return b >= m.first(i) && b < m.last(i) && b < blocks && (reach == Reach::kAll || b < i);
  }
};

/// Rows [begin, end) of both mixtures, side by side.   // [end - begin, D*E + D]
template <class A>
Matrix<A> mixtures_of(const Mix<A>& x, Index begin, Index end) {
  const Index count = end - begin, group_rows = count + 1;  // the last one is not written
  Memory memory(static_cast<std::size_t>(300000 + 4500 * group_rows));
  detail::Summaries<A> s("f", memory.arena, x.blocks, x.d, x.e);
  for (Index b = 0; b < x.blocks; ++b) {
    const detail::SummaryBlock<A> block = s.block(b);
    for (Index j = 0; j < x.d * x.e; ++j) {
      block.row(j / x.e)[j % x.e] = x.kv(b, j);
    }
  }
  const detail::Mixtures<A> mixtures("f", memory.arena, group_rows, x.cols, x.d, x.e);
  const detail::MixingGroup<A> group(x.m, begin, end, x.reach, x.blocks, mixtures.coefficients);
  detail::mix_values(group, s, mixtures);
  detail::mix_key_sums(group, x.key_sums.data(), x.d, mixtures);
  Matrix<A> result(count, x.d * x.e + x.d);
  for (Index g = 0; g < group_rows; ++g) {
    for (Index j = 0; j < mixtures.kv_stride; ++j) {
      if (g < count && j < x.d * x.e) {
        result(g, j) = mixtures.block(g)[j];
      } else {
        EXPECT_TRUE(std::isnan(mixtures.block(g)[j])) << "written outside";
      }
    }
    for (Index j = 0; j < x.d; ++j) {
      if (g < count) {
        result(g, x.d * x.e + j) = mixtures.block_key_sum(g)[j];
      } else {
        EXPECT_TRUE(std::isnan(mixtures.block_key_sum(g)[j])) << "written outside";
      }
    }
  }
  return result;
}

/// Rows [0, Mq) of both mixtures, made in groups of `size`.
template <class A>
Matrix<A> mixtures_in_groups(const Mix<A>& x, Index size) {
  Matrix<A> result(x.rows, x.d * x.e + x.d);
  for (Index begin = 0; begin < x.rows; begin += size) {
    const Index count = std::min(size, x.rows - begin);
    result.middleRows(begin, count) = mixtures_of(x, begin, begin + count);
  }
  return result;
}

template <class A>
class Mixing : public testing::Test {};
using Accumulators = testing::Types<float, double>;
TYPED_TEST_SUITE(Mixing, Accumulators);

TYPED_TEST(Mixing, IsTheWeightedSumOfTheSummariesARowReads) {
  constexpr long double u = std::numeric_limits<TypeParam>::epsilon() / 2;
  for (std::uint64_t seed = 0; seed < 400; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const Mix<TypeParam> x(seed);
    const Matrix<TypeParam> got = mixtures_in_groups(x, kGroupBlocks);
    for (Index i = 0; i < x.rows; ++i) {
      for (Index j = 0; j < got.cols(); ++j) {
        long double sum = 0, size = 0, m = 0;  // m roundings: one for each summary
        for (Index b = 0; b < x.blocks; ++b) {
          if (!x.reads(i, b)) continue;
          const bool value = j < x.d * x.e;
          const long double term = static_cast<long double>(x.m(i, b)) *
                                   (value ? x.kv(b, j) : x.key_sums(b, j - x.d * x.e));
          sum += term;
          size += std::abs(term);
          m += 1;
        }
        ASSERT_LE(std::abs(got(i, j) - sum), m * u / (1 - m * u) * size) << i << ", " << j;
      }
    }
  }
}

TYPED_TEST(Mixing, BitsOfARowDoNotDependOnItsGroup) {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const Mix<TypeParam> x(seed);
    const Matrix<TypeParam> alone = mixtures_in_groups(x, 1);
    for (const Index size : {Index{3}, Index{7}, kGroupBlocks, Index{24}, Index{40}}) {
      EXPECT_TRUE(same_bits(mixtures_in_groups(x, size), alone)) << "groups of " << size;
    }
  }
}

TYPED_TEST(Mixing, ANaNReachesTheRowsThatReadItAndNoOther) {
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Mix<TypeParam> x(seed);
    const Matrix<TypeParam> clean = mixtures_in_groups(x, kGroupBlocks);
    for (Index b = 0; b < x.blocks; b += 1 + b / 4) {
      Mix<TypeParam> touched = x;
      touched.kv.row(b).setConstant(std::numeric_limits<TypeParam>::quiet_NaN());
      touched.key_sums.row(b).setConstant(std::numeric_limits<TypeParam>::quiet_NaN());
      const Matrix<TypeParam> got = mixtures_in_groups(touched, kGroupBlocks);
      for (Index i = 0; i < x.rows; ++i) {
        if (x.reads(i, b)) {
          EXPECT_TRUE(got.row(i).array().isNaN().all()) << i << " reads " << b;
        } else {
          EXPECT_TRUE(same_bits<TypeParam>(got.row(i), clean.row(i))) << i << " and " << b;
        }
      }
    }
  }
}

TYPED_TEST(Mixing, CoefficientsBeyondTheBlocksAndOfLaterBlocksAreNotRead) {
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const Mix<TypeParam> x(seed);
    Mix<TypeParam> touched = x;
    for (Index i = 0; i < x.rows; ++i) {
      for (Index b = x.m.first(i); b < x.m.last(i); ++b) {
        if (!x.reads(i, b)) touched.m.at(i, b) = std::numeric_limits<TypeParam>::quiet_NaN();
      }
    }
    EXPECT_TRUE(
        same_bits(mixtures_in_groups(touched, kGroupBlocks), mixtures_in_groups(x, kGroupBlocks)));
  }
}

TYPED_TEST(Mixing, ABandMixesLikeTheDenseMatrixWithItsZeros) {
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    Mix<TypeParam> x(seed);
    const Matrix<TypeParam> band = mixtures_in_groups(x, kGroupBlocks);
    x.m = MixingMatrix<TypeParam>(x.m.dense());
    EXPECT_EQ(mixtures_in_groups(x, kGroupBlocks), band) << "seed " << seed;
  }
}

TYPED_TEST(Mixing, TheIdentityCopiesTheSummaries) {
  Mix<TypeParam> x(1);
  x.rows = x.cols = x.blocks = 21;
  x.reach = Reach::kAll;
  x.kv = x.rng.template matrix<TypeParam>(21, x.d * x.e);
  x.key_sums = x.rng.template matrix<TypeParam>(21, x.d);
  x.m = MixingMatrix<TypeParam>(Matrix<TypeParam>::Identity(21, 21).eval());
  const Matrix<TypeParam> got = mixtures_in_groups(x, kGroupBlocks);
  EXPECT_EQ(got.leftCols(x.d * x.e), x.kv);
  EXPECT_EQ(got.rightCols(x.d), x.key_sums);
}

TYPED_TEST(Mixing, RowsThatReadNothingAreZero) {
  Mix<TypeParam> x(2);
  x.reach = Reach::kEarlier;  // the first block has none before it
  EXPECT_TRUE((mixtures_of(x, 0, 1).array() == 0).all());
  x.reach = Reach::kAll;
  x.blocks = 0;
  EXPECT_TRUE((mixtures_in_groups(x, kGroupBlocks).array() == 0).all());
}

TYPED_TEST(Mixing, EmptyRowsAreZeroWhateverTheirGroupReads) {
  Index beside = 0;  // empty rows of a group that reads something
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Mix<TypeParam> x(seed);
    x.kv.setConstant(std::numeric_limits<TypeParam>::quiet_NaN());
    x.key_sums.setConstant(std::numeric_limits<TypeParam>::quiet_NaN());
    const Matrix<TypeParam> got = mixtures_of(x, 0, x.rows);
    for (Index i = 0; i < x.rows; ++i) {
      bool reads = false;
      for (Index b = 0; b < x.cols; ++b) reads = reads || x.reads(i, b);
      if (reads) {
        EXPECT_TRUE(got.row(i).array().isNaN().all()) << i;
        continue;
      }
      EXPECT_TRUE((got.row(i).array() == 0).all()) << i;
      beside += got.array().isNaN().any() ? 1 : 0;
    }
  }
  EXPECT_GT(beside, 200);
}

TYPED_TEST(Mixing, ReadableIsTheBandCutOffAtItsReach) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    const Mix<TypeParam> x(seed);
    for (Index i = 0; i < x.rows; ++i) {
      const ColumnSpan columns = detail::readable(x.m, i, x.reach, x.blocks);
      ASSERT_GE(columns.begin, 0);
      ASSERT_LE(columns.begin, columns.end);
      for (Index b = 0; b < x.cols; ++b) {
        const bool inside = b >= columns.begin && b < columns.end;
        ASSERT_EQ(inside, x.reads(i, b)) << "seed " << seed << ": " << i << ", " << b;
      }
    }
  }
}

TYPED_TEST(Mixing, SummariesAreMixedOverAnySpans) {
  constexpr TypeParam kNaN = std::numeric_limits<TypeParam>::quiet_NaN();
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    test::Random rng(seed);
    const Index rows = rng.integer(1, 20), blocks = rng.integer(0, 40), cols = rng.integer(0, 70);
    Matrix<TypeParam> m = rng.matrix<TypeParam>(rows, blocks);
    const Matrix<TypeParam> s = rng.matrix<TypeParam>(blocks, cols);
    Matrix<TypeParam> got = test::unwritten<TypeParam>(rows, cols), expected = got;
    std::vector<ColumnSpan> spans;
    for (Index i = 0; i < rows; ++i) {
      const Index begin = rng.integer(0, blocks), end = rng.integer(begin, blocks);
      spans.push_back({begin, rng.chance(0.2) ? begin : end});
      const Index cut = spans.back().end;
      detail::multiply(
          detail::Start::kZero, detail::Target<TypeParam>{expected.data() + i * cols, cols},
          detail::LeftRows<TypeParam>{m.data() + i * blocks + begin, blocks},
          detail::RightOperand<TypeParam>{s.data() + begin * cols, cols}, 1, cols, cut - begin);
      m.row(i).leftCols(begin).setConstant(kNaN);
      m.row(i).rightCols(blocks - cut).setConstant(kNaN);
    }
    detail::multiply(detail::Start::kZero, detail::Target<TypeParam>{got.data(), cols},
                     detail::LeftBand<TypeParam>{m.data(), blocks, spans.data()},
                     detail::SummaryRows<TypeParam>{s.data(), cols}, rows, cols, blocks);
    EXPECT_TRUE(same_bits(got, expected)) << "seed " << seed;
  }
}

TEST(GroupBlocks, SixteenMixturesFitTheSecondCacheOrTheWorkersShareTheBlocks) {
  const auto small = [](Index blocks, Index workers) {
    return detail::group_blocks<float>(blocks, 64, 64, workers);
  };
  const auto large = [](Index blocks, Index workers) {
    return detail::group_blocks<float>(blocks, 128, 128, workers);
  };
  EXPECT_EQ(small(1, 1), kGroupBlocks);
  EXPECT_EQ(small(1000, 1), kGroupBlocks);
  EXPECT_EQ(large(1, 1), kGroupBlocks);
  EXPECT_EQ(large(100, 1), detail::round_up(100, detail::kTileRows));
  EXPECT_EQ(large(100, 2), detail::round_up(50, detail::kTileRows));
  EXPECT_EQ(large(100, 64), kGroupBlocks);
  EXPECT_EQ(large(1000, 1), detail::kLargestGroup);
  EXPECT_EQ(large(0, 3), kGroupBlocks);
}

TEST(Mixtures, GroupsHaveRoomAndApartFromEachOther) {
  Memory memory(100000);
  const detail::Mixtures<float> mixtures("f", memory.arena, kGroupBlocks, 9, 4, 8);
  EXPECT_GE(mixtures.kv_stride, 4 * 8);
  EXPECT_NE(mixtures.kv_stride * static_cast<Index>(sizeof(float)) % 4096, 0);
  EXPECT_EQ(mixtures.block(3), mixtures.kv + 3 * mixtures.kv_stride);
  EXPECT_EQ(mixtures.block_key_sum(3), mixtures.key_sum + 3 * 4);
}

}  // namespace
}  // namespace mhla

#include "mhla/stage/summary.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "mhla/policy/grid_partition.hpp"
#include "mhla/policy/learned_feature_map.hpp"
#include "support/outputs.hpp"
#include "support/random.hpp"

namespace mhla {
namespace {

using test::Memory;
using test::RandomMask;

/// S_b and z_b as the stage writes them.
template <class A>
struct Block {
  Matrix<A> kv;       // [D,E]
  Matrix<A> key_sum;  // [1,D]

  friend bool operator==(const Block& x, const Block& y) {
    const auto same = [](const Matrix<A>& a, const Matrix<A>& b) {
      const std::size_t bytes = static_cast<std::size_t>(a.size()) * sizeof(A);
      return a.rows() == b.rows() && a.cols() == b.cols() &&
             (bytes == 0 || std::memcmp(a.data(), b.data(), bytes) == 0);
    };
    return same(x.kv, y.kv) && same(x.key_sum, y.key_sum);
  }
};

template <class T, Partition P, class Map>
Block<accumulator_t<T>> summary_of(MatrixView<const T> k, MatrixView<const T> v, const P& blocks,
                                   Index b, Mask mask, const Map& map) {
  using A = accumulator_t<T>;
  constexpr A kNaN = std::numeric_limits<A>::quiet_NaN();
  const Index d = map.features(k.cols), e = v.cols;
  Memory memory(200000);
  detail::KeyScratch<A> scratch("f", memory.arena, k.cols, d, e);
  const Index slabs = (d + detail::kSlabFeatures - 1) / detail::kSlabFeatures;
  const Index columns = detail::kSlabFeatures * e;
  Matrix<A> memory_of_kv = Matrix<A>::Constant(slabs, columns + 3, kNaN);
  Matrix<A> key_sum = Matrix<A>::Constant(1, d, kNaN);
  const detail::SummaryBlock<A> block{memory_of_kv.data(), columns + 3, e};
  detail::summarize<T>(k, v, blocks, b, mask, map, scratch, block, key_sum.data());
  EXPECT_TRUE(memory_of_kv.rightCols(3).array().isNaN().all()) << "written outside";
  Matrix<A> kv(d, e);
  for (Index i = 0; i < d; ++i) {
    for (Index j = 0; j < e; ++j) kv(i, j) = block.row(i)[j];
  }
  return {kv, key_sum};
}

/// The kept tokens of a block in the order of their slots.
template <Partition P>
std::vector<Index> tokens_of(const P& blocks, Index b, Mask mask) {
  std::vector<Index> tokens;
  for (Index r = 0; r < blocks.runs(b); ++r) {
    const Run run = blocks.run(b, r);
    for (Index t = run.begin; t < run.begin + run.length; ++t) {
      if (mask[t]) tokens.push_back(t);
    }
  }
  return tokens;
}

/// Rows `tokens` of x.
template <class T>
Matrix<T> rows_of(const Matrix<T>& x, const std::vector<Index>& tokens) {
  Matrix<T> rows(std::ssize(tokens), x.cols());
  for (Index s = 0; s < rows.rows(); ++s) rows.row(s) = x.row(tokens[static_cast<std::size_t>(s)]);
  return rows;
}

/// Random keys and values over a random grid, which is also read as a sequence.
template <class T>
struct Sequence {
  test::Random rng;
  Grid grid;
  Contiguous blocks;
  Matrix<T> k, v;
  RandomMask random;

  explicit Sequence(std::uint64_t seed)
      : rng(seed),
        grid{{rng.integer(1, 14), rng.integer(1, 20)}, {rng.integer(1, 14), rng.integer(1, 20)}},
        blocks(grid.tokens(), rng.integer(1, 200)),
        k(rng.matrix<T>(grid.tokens(), rng.integer(1, 20))),
        v(rng.matrix<T>(grid.tokens(), rng.integer(1, 40))),
        random(rng, grid.tokens(), rng.chance(0.3) ? 1 : 0.6) {}

  /// Calls f(partition, block) for all blocks of both partitions.
  template <class F>
  void for_blocks(F&& f) {
    for (Index b = 0; b < grid.blocks(); ++b) f(grid, b);
    for (Index b = 0; b < blocks.blocks(); ++b) f(blocks, b);
  }
};

template <class T>
class Summary : public testing::Test {};
using Scalars = testing::Types<float, double, Eigen::half, Eigen::bfloat16>;
TYPED_TEST_SUITE(Summary, Scalars);

TYPED_TEST(Summary, IsTheSumOverTheKeptTokensOfTheBlock) {
  using A = accumulator_t<TypeParam>;
  constexpr long double u = std::numeric_limits<A>::epsilon() / 2;
  const Relu map{.eps = 0.25};
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Sequence<TypeParam> x(seed);
    x.for_blocks([&](const auto& blocks, Index b) {
      const auto got = summary_of<TypeParam>(x.k, x.v, blocks, b, x.random.mask, map);
      const std::vector<Index> tokens = tokens_of(blocks, b, x.random.mask);
      const long double m = static_cast<long double>(tokens.size()) + 1,
                        bound = m * u / (1 - m * u);
      const auto feature = [&](Index t, Index d) {
        return std::max(static_cast<A>(x.k(t, d)), A(0)) + A(0.25);  // as the map rounds it
      };
      for (Index d = 0; d < x.k.cols(); ++d) {
        long double z = 0;
        for (const Index t : tokens) z += feature(t, d);
        ASSERT_LE(std::abs(got.key_sum(0, d) - z), bound * z);
        for (Index e = 0; e < x.v.cols(); ++e) {
          long double sum = 0, size = 0;
          for (const Index t : tokens) {
            const long double term =
                static_cast<long double>(feature(t, d)) * static_cast<A>(x.v(t, e));
            sum += term;
            size += std::abs(term);
          }
          ASSERT_LE(std::abs(got.kv(d, e) - sum), bound * size);
        }
      }
    });
  }
}

TYPED_TEST(Summary, BitsAreThoseOfTheSequenceOfKeptTokensAlone) {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Sequence<TypeParam> x(seed);
    x.for_blocks([&](const auto& blocks, Index b) {
      const std::vector<Index> tokens = tokens_of(blocks, b, x.random.mask);
      const Matrix<TypeParam> k = rows_of(x.k, tokens), v = rows_of(x.v, tokens);
      const BlockSizes alone({std::ssize(tokens)});
      EXPECT_TRUE(summary_of<TypeParam>(x.k, x.v, blocks, b, x.random.mask, Relu{}) ==
                  summary_of<TypeParam>(k, v, alone, 0, {}, Relu{}));
    });
  }
}

TYPED_TEST(Summary, NothingIsReadOfMaskedTokensAndOtherBlocks) {
  const auto nan = static_cast<TypeParam>(std::numeric_limits<float>::quiet_NaN());
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Sequence<TypeParam> x(seed);
    x.for_blocks([&](const auto& blocks, Index b) {
      Matrix<TypeParam> k = Matrix<TypeParam>::Constant(x.k.rows(), x.k.cols(), nan);
      Matrix<TypeParam> v = Matrix<TypeParam>::Constant(x.v.rows(), x.v.cols(), nan);
      for (const Index t : tokens_of(blocks, b, x.random.mask)) {
        k.row(t) = x.k.row(t);
        v.row(t) = x.v.row(t);
      }
      EXPECT_TRUE(summary_of<TypeParam>(x.k, x.v, blocks, b, x.random.mask, Relu{}) ==
                  summary_of<TypeParam>(k, v, blocks, b, x.random.mask, Relu{}));
    });
  }
}

/// Values with a unit column stride are read in place where they need no widening, all others are
/// gathered.
TYPED_TEST(Summary, StridesOfKeysAndValuesChangeNoBit) {
  using ColumnMajor = Eigen::Matrix<TypeParam, Eigen::Dynamic, Eigen::Dynamic>;
  const auto expect_same = [](const auto& k, const auto& v, const auto& blocks, Index b, Mask m) {
    const ColumnMajor k_columns = k, v_columns = v;
    Matrix<TypeParam> wide = test::unwritten<TypeParam>(v.rows(), v.cols() + 3);
    wide.leftCols(v.cols()) = v;
    const MatrixView<const TypeParam> padded(wide.data(), v.rows(), v.cols(), wide.cols());
    const auto expected = summary_of<TypeParam>(k_columns, v_columns, blocks, b, m, EluPlusOne{});
    EXPECT_TRUE(summary_of<TypeParam>(k, v, blocks, b, m, EluPlusOne{}) == expected);
    EXPECT_TRUE(summary_of<TypeParam>(k, padded, blocks, b, m, EluPlusOne{}) == expected);
  };
  test::Random rng(5);
  for (const Index size : {0, 63, 64, 65, 128}) {
    const BlockSizes blocks({3, size, 2});
    const RandomMask some(rng, size + 5, 0.9);
    for (const Index d : {1, 3, 4, 5, 8, 9, 26}) {
      for (const Index e : {1, 7, 33, 64}) {
        const auto k = rng.matrix<TypeParam>(size + 5, d), v = rng.matrix<TypeParam>(size + 5, e);
        expect_same(k, v, blocks, 1, {});
        expect_same(k, v, blocks, 1, some.mask);
      }
    }
  }
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Sequence<TypeParam> x(seed);
    x.for_blocks([&](const auto& blocks, Index b) {
      expect_same(x.k, x.v, blocks, b, {});
      expect_same(x.k, x.v, blocks, b, x.random.mask);
    });
  }
}

TYPED_TEST(Summary, BitsAreThoseOfTheWidenedKeysAndValues) {
  using A = accumulator_t<TypeParam>;
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Sequence<TypeParam> x(seed);
    const Matrix<A> k = x.k.template cast<A>(), v = x.v.template cast<A>();
    x.for_blocks([&](const auto& blocks, Index b) {
      EXPECT_TRUE(summary_of<TypeParam>(x.k, x.v, blocks, b, x.random.mask, Relu{}) ==
                  summary_of<A>(k, v, blocks, b, x.random.mask, Relu{}));
    });
  }
}

TYPED_TEST(Summary, WhatIsAskedForMeanwhileChangesNoBit) {
  using A = accumulator_t<TypeParam>;
  test::Random rng(8);
  const Matrix<TypeParam> k = rng.matrix<TypeParam>(200, 40), v = rng.matrix<TypeParam>(200, 21);
  const Contiguous blocks(200, 50);
  detail::StripCursor strip(blocks, 2, {});
  const detail::Lookahead lookahead(strip.ahead(), MatrixView<const TypeParam>(k),
                                    MatrixView<const TypeParam>(v));
  Matrix<A> keys = rng.matrix<A>(64, 48), values = rng.matrix<A>(64, 32);
  for (const Index count : {0, 1, 50, 64}) {
    Matrix<A> expected = rng.matrix<A>(40, 21), got = expected;
    for (Matrix<A>* const sums : {&expected, &got}) {
      detail::accumulate_summary<A>(detail::Start::kTarget, {keys.data(), 48}, {values.data(), 32},
                                    count, 40, {sums->data(), detail::kSlabFeatures * 21, 21},
                                    sums == &got ? lookahead : detail::Lookahead());
    }
    EXPECT_TRUE(test::same_bits(got, expected));
  }
}

TYPED_TEST(Summary, SumKeysIsTheKeySumOfTheSummary) {
  using A = accumulator_t<TypeParam>;
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    Sequence<TypeParam> x(seed);
    x.for_blocks([&](const auto& blocks, Index b) {
      Memory memory(200000);
      const Index d = x.k.cols();
      detail::KeyScratch<A> scratch("f", memory.arena, d, d, 0);
      Matrix<A> sums = Matrix<A>::Constant(1, d, std::numeric_limits<A>::quiet_NaN());
      detail::sum_keys<TypeParam>(x.k, blocks, b, x.random.mask, Exp{}, scratch, sums.data());
      EXPECT_EQ(sums, summary_of<TypeParam>(x.k, x.v, blocks, b, x.random.mask, Exp{}).key_sum);
    });
  }
}

TYPED_TEST(Summary, OfNoTokensIsZero) {
  using A = accumulator_t<TypeParam>;
  test::Random rng(6);
  const Matrix<TypeParam> k = rng.matrix<TypeParam>(5, 3), v = rng.matrix<TypeParam>(5, 4);
  const RandomMask none(rng, 5, 0);
  const Block<A> zero{Matrix<A>::Zero(3, 4), Matrix<A>::Zero(1, 3)};
  EXPECT_TRUE(summary_of<TypeParam>(k, v, BlockSizes({0, 5}), 0, {}, Relu{}) == zero);
  EXPECT_TRUE(summary_of<TypeParam>(k, v, BlockSizes({0, 5}), 1, none.mask, Relu{}) == zero);
}

TYPED_TEST(Summary, MapsMayChangeTheWidth) {
  using A = accumulator_t<TypeParam>;
  test::Random rng(7);
  const Matrix<TypeParam> k = rng.matrix<TypeParam>(70, 3), v = rng.matrix<TypeParam>(70, 5);
  Matrix<TypeParam> wide(70, 12);
  for (Index t = 0; t < 70; ++t) {
    A x[3], y[12];
    for (Index j = 0; j < 3; ++j) x[j] = static_cast<A>(k(t, j));
    Dpfp{2}(x, y, 3);
    for (Index j = 0; j < 12; ++j) wide(t, j) = static_cast<TypeParam>(y[j]);
  }
  const auto got = summary_of<TypeParam>(k, v, Contiguous(70, 70), 0, {}, Dpfp{2});
  ASSERT_EQ(got.kv.rows(), 12);
  if constexpr (std::is_same_v<TypeParam, A>) {  // features of other types would be rounded
    EXPECT_TRUE(got == summary_of<TypeParam>(wide, v, Contiguous(70, 70), 0, {}, Identity{}));
  }
}

TEST(Summaries, RowsOfASlabAreAnOddNumberOfCacheLinesApart) {
  Memory memory(1 << 20);
  for (const Index e : {1, 16, 64, 72}) {
    const detail::Summaries<float> s("f", memory.arena, 3, 4, e);
    EXPECT_EQ(s.block_stride % 32, 16);  // a line holds 16 floats
    EXPECT_GE(s.block_stride, detail::kSlabFeatures * e);
  }
}

TEST(Summaries, RowsOfABlockAreRowsOfItsSlabs) {
  for (const Index m : {1, 3}) {
    for (const Index d : {1, 4, 19}) {
      for (const Index e : {1, 5}) {
        Memory memory(40000);
        const detail::Summaries<float> s("f", memory.arena, m, d, e);
        Index rows = 0;
        for (Index slab = 0; slab < s.slabs(); ++slab) rows += s.slab_columns(slab) / e;
        EXPECT_EQ(rows, d);
        for (Index b = 0; b < m; ++b) {
          for (Index i = 0; i < d; ++i) {
            const detail::RightOperand<float> slab = s.slab(i / detail::kSlabFeatures);
            EXPECT_EQ(s.block(b).row(i),
                      slab.data + b * slab.depth_stride + i % detail::kSlabFeatures * e);
          }
        }
      }
    }
  }
}

TEST(Summaries, RejectSizesThatNoMemoryCouldHold) {
  detail::Arena counting;
  const Index large = Index{1} << 31;
  EXPECT_THROW(detail::Summaries<float>("f", counting, large, large, 8), shape_error);
}

}  // namespace
}  // namespace mhla

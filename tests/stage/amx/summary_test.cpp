#include "mhla/stage/amx/summary.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "support/any_partition.hpp"
#include "support/outputs.hpp"
#include "support/random.hpp"

namespace mhla {
namespace {

using detail::TiledKeyScratch;
using detail::TiledSizes;
using detail::TiledSummaries;
using test::Memory;
using T = Eigen::bfloat16;

/// Features that no bfloat16 number is: 1 / 3 of the keys.
const auto kThirds = Elementwise([](float x) { return x / 3; });

struct Sums {
  Matrix<float> summary;  // [padded D, padded E]
  Matrix<float> key_sum;  // [1,D]
};

template <class Map, class P>
Sums summaries_of(const Matrix<T>& k, const Matrix<T>& v, const P& blocks, Index b, Mask mask,
                  const Map& map) {
  const TiledSizes n{k.cols(), v.cols()};
  Memory memory(1 << 21);
  const TiledKeyScratch scratch("f", memory.arena, k.cols(), k.cols(), n);
  Sums out{Matrix<float>::Constant(n.padded_features(), n.padded_values(), NAN),
           Matrix<float>::Constant(1, k.cols(), NAN)};
  detail::summarize(k, v, blocks, b, mask, map, scratch, n, out.summary.data(), out.key_sum.data());
  return out;
}

TEST(TiledSummary, EqualsTheSumWithinTheBoundAndIsZeroWhereItIsPadded) {
  if (!detail::tiles_granted()) GTEST_SKIP() << "the system does not grant the tiles";
  double worst = 0;
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    test::Random rng(seed);
    const Index d = rng.integer(1, 70), e = rng.integer(1, 70);
    const Index n = seed % 10 == 0 ? 700 : rng.integer(1, 150);
    const auto blocks = test::random_partition(rng, n);
    const Matrix<T> k = rng.matrix<T>(blocks.tokens(), d), v = rng.matrix<T>(blocks.tokens(), e);
    const test::RandomMask kept(rng, blocks.tokens(), 0.8);
    const Mask mask = rng.chance(0.5) ? kept.mask : Mask{};
    const bool thirds = rng.chance(0.5);
    for (Index b = 0; b < blocks.blocks(); ++b) {
      const Sums s = thirds ? summaries_of(k, v, blocks, b, mask, kThirds)
                            : summaries_of(k, v, blocks, b, mask, Identity{});
      Matrix<double> sum = Matrix<double>::Zero(s.summary.rows(), s.summary.cols()), size = sum;
      Index tokens = 0;
      for (Index r = 0; r < blocks.runs(b); ++r) {
        const mhla::Run run = blocks.run(b, r);
        for (Index t = run.begin; t < run.begin + run.length; ++t) {
          if (!mask[t]) continue;
          ++tokens;
          for (Index i = 0; i < d; ++i) {
            const float key = static_cast<float>(k(t, i));
            for (Index j = 0; j < e; ++j) {
              const double x = double(thirds ? key / 3 : key) * static_cast<float>(v(t, j));
              sum(i, j) += x;
              size(i, j) += std::abs(x);
            }
          }
        }
      }
      const double roundings = 18 + 2 * (double(tokens) / 32 + 2);
      const double bound = (thirds ? 0x1p-17 * (1 + 0x1p-7) : 0) + 1.02 * roundings * 0x1p-24;
      for (Index i = 0; i < sum.rows(); ++i) {
        for (Index j = 0; j < sum.cols(); ++j) {
          const double error = std::abs(double(s.summary(i, j)) - sum(i, j));
          ASSERT_LE(error, bound * size(i, j)) << "seed " << seed;
          if (error > 0) worst = std::max(worst, error / (bound * size(i, j)));
        }
      }
    }
  }
  EXPECT_GT(worst, 0.01);
}

TEST(TiledSummary, KeySumsAreThoseOfTheFloatForm) {
  if (!detail::tiles_granted()) GTEST_SKIP() << "the system does not grant the tiles";
  test::Random rng(3);
  const Matrix<T> k = rng.matrix<T>(300, 21), v = rng.matrix<T>(300, 18);
  const test::RandomMask kept(rng, 300, 0.8);
  const Contiguous blocks(300, 170);
  for (Index b = 0; b < 2; ++b) {
    Memory memory(1 << 20);
    const detail::KeyScratch<float> scratch("f", memory.arena, 21, 21, 18);
    Matrix<float> expected(1, 21);
    detail::sum_keys(MatrixView<const T>(k), blocks, b, kept.mask, kThirds, scratch,
                     expected.data());
    EXPECT_TRUE(
        test::same_bits(expected, summaries_of(k, v, blocks, b, kept.mask, kThirds).key_sum));
  }
}

TEST(TiledSummary, PairsOfBlocksAreStoredAsRightOperand) {
  test::Random rng(4);
  const TiledSizes n{40, 50};
  const Index m = 45;  // two steps
  Memory memory(std::size_t{1} << 22);
  const TiledSummaries s("f", memory.arena, m, n);
  EXPECT_EQ(s.steps(), 2);
  std::vector<Matrix<float>> all;
  for (Index b = 0; b < m; ++b) all.push_back(rng.matrix<float>(64, 64));
  std::vector<bool> seen(64, false);
  for (Index pair = 0; pair < s.pairs(); ++pair) {
    const auto block = [&](Index b) {
      EXPECT_FALSE(seen.at(static_cast<std::size_t>(b)));
      seen.at(static_cast<std::size_t>(b)) = true;
      return b < m ? all[static_cast<std::size_t>(b)].data() : nullptr;
    };
    const float* const first = block(TiledSummaries::first_block(pair));
    detail::store_summaries(first, block(TiledSummaries::second_block(pair)), pair, s);
  }
  EXPECT_TRUE(s.all_finite());
  for (Index b = 0; b < 64; ++b) {
    for (Index d = 0; d < 64; ++d) {
      for (Index e = 0; e < 64; ++e) {
        const Index t = d / 32 * 4 + e / 16;
        const detail::Pair* const high = s.tile(b / 32, t, d % 32) + b % 16 * 16 + e % 16;
        const detail::PairSums x = detail::sums_of(high[0], high[detail::kTilePairs]);
        const float got = b % 32 < 16 ? x.first : x.second;
        const float right = b < m ? all[static_cast<std::size_t>(b)](d, e) : 0;
        ASSERT_LE(std::abs(got - right), 0x1p-16f * std::abs(right)) << b << " " << d << " " << e;
      }
    }
  }
}

TEST(TiledSummary, ASummaryThatIsNotFiniteIsNoticed) {
  const TiledSizes n{16, 16};
  for (Index b : {0, 15, 16, 31, 32, 40}) {
    Memory memory(std::size_t{1} << 20);
    const TiledSummaries s("f", memory.arena, 41, n);
    const Matrix<float> zero = Matrix<float>::Zero(32, 32);
    Matrix<float> bad = zero;
    bad(15, 15) = b % 2 == 0 ? NAN : INFINITY;
    for (Index pair = 0; pair < s.pairs(); ++pair) {
      const auto block = [&](Index i) {
        return i >= 41 ? nullptr : i == b ? bad.data() : zero.data();
      };
      detail::store_summaries(block(TiledSummaries::first_block(pair)),
                              block(TiledSummaries::second_block(pair)), pair, s);
    }
    EXPECT_FALSE(s.all_finite());
  }
}

}  // namespace
}  // namespace mhla

#include "mhla/stage/amx/mixing.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "support/any_map.hpp"
#include "support/outputs.hpp"
#include "support/random.hpp"

namespace mhla {
namespace {

using detail::Pair;
using detail::TiledMixtures;
using detail::TiledSizes;
using detail::TiledSummaries;
using test::Memory;

/// Summaries of m blocks, padded with zeros, in double too.
struct Stored {
  TiledSizes n;
  Memory memory;
  TiledSummaries s;
  Matrix<double> values;  // [m, D*E]

  Stored(test::Random& rng, Index m, Index d, Index e, float scale = 1)
      : n{d, e}, memory(std::size_t{1} << 24), s("f", memory.arena, m, n), values(m, d * e) {
    std::vector<Matrix<float>> all;
    for (Index b = 0; b < m; ++b) {
      Matrix<float> padded = Matrix<float>::Zero(n.padded_features(), n.padded_values());
      padded.topLeftCorner(d, e) = scale * rng.matrix<float>(d, e);
      for (Index i = 0; i < d * e; ++i) values(b, i) = padded(i / e, i % e);
      all.push_back(padded);
    }
    for (Index pair = 0; pair < s.pairs(); ++pair) {
      const auto block = [&](Index b) {
        return b < m ? all[static_cast<std::size_t>(b)].data() : nullptr;
      };
      detail::store_summaries(block(TiledSummaries::first_block(pair)),
                              block(TiledSummaries::second_block(pair)), pair, s);
    }
  }
};

/// Mixtures of rows [begin, end) as numbers [end - begin, padded D * padded E].
Matrix<double> mixed(const Stored& x, const MixingMatrix<float>& m, Index begin, Index end,
                     Index not_finite = 0) {
  Memory memory(std::size_t{1} << 23);
  const Index group = detail::round_up(end - begin, 16);
  const TiledMixtures mixtures("f", memory.arena, group, x.s);
  detail::mix_values(m, begin, end, x.s, mixtures);
  const Index e = x.n.padded_values();
  Matrix<double> out(end - begin, x.n.padded_features() * e);
  for (Index g = 0; g < end - begin; ++g) {
    not_finite -= mixtures.finite[g] == 0;
    for (Index i = 0; i < out.cols(); ++i) {
      const Index d = i / e, j = i % e;
      const Pair* const high = mixtures.block(g) +
                               (d / 32 * x.n.value_tiles() + j / 16) * detail::kSplitPairs +
                               d % 16 * 16 + j % 16;
      const detail::PairSums sums = detail::sums_of(high[0], high[detail::kTilePairs]);
      out(g, i) = d % 32 < 16 ? sums.first : sums.second;
    }
  }
  EXPECT_EQ(not_finite, 0);
  return out;
}

class TiledMixing : public testing::Test {
 protected:
  void SetUp() override {
    if (!detail::tiles_granted()) GTEST_SKIP() << "the system does not grant the tiles";
  }
};

TEST_F(TiledMixing, EqualsTheProductWithinTheBoundWhateverTheGroup) {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    test::Random rng(seed);
    const Index rows = rng.integer(1, 80), cols = rng.integer(1, 80);
    const Index d = rng.integer(1, 40), e = rng.integer(1, 40);
    const Stored x(rng, cols, d, e);
    const Index lower = rng.chance(0.5) ? rng.integer(0, 9) : 80;
    const Index upper = rng.chance(0.5) ? rng.integer(0, 9) : 80;
    const auto m = MixingMatrix<float>::banded(rng.matrix<float>(rows, cols), lower, upper);
    const Matrix<double> all = mixed(x, m, 0, rows);
    const Matrix<double> c = m.dense().cast<double>(), sums = c * x.values,
                         sizes = c.cwiseAbs() * x.values.cwiseAbs();
    // 2^-15 of the product, 2^-17 of the mixture's own parts.
    const double bound =
        (0x1p-15 + 0x1p-17) * (1 + 0x1p-7) + 1.02 * double(18 + 3 * x.s.steps()) * 0x1p-24;
    for (Index i = 0; i < rows; ++i) {
      for (Index j = 0; j < all.cols(); ++j) {
        const Index a = j / x.n.padded_values(), b = j % x.n.padded_values();
        const bool inside = a < d && b < e;
        const double sum = inside ? sums(i, a * e + b) : 0, size = inside ? sizes(i, a * e + b) : 0;
        ASSERT_LE(std::abs(all(i, j) - sum), bound * size) << "seed " << seed;
      }
    }
    const Index begin = rng.integer(0, rows - 1), end = rng.integer(begin + 1, rows);
    EXPECT_TRUE(mixed(x, m, begin, end) == all.middleRows(begin, end - begin)) << "seed " << seed;
  }
}

TEST_F(TiledMixing, GroupsInTheMiddleOfABandReadItsStepsOnly) {
  test::Random rng(5);
  Stored x(rng, 150, 17, 17);
  const auto m = MixingMatrix<float>::banded(rng.matrix<float>(150, 150), 3, 3);
  const Matrix<double> all = mixed(x, m, 0, 150), sums = m.dense().cast<double>() * x.values,
                       sizes = m.dense().cwiseAbs().cast<double>() * x.values.cwiseAbs();
  std::fill_n(x.s.tile(0, 0, 0), x.s.step_stride, ~Pair{0});  // NaN where nobody looks
  for (Index begin : {48, 64, 80, 112, 144}) {
    const Index end = std::min<Index>(begin + 16, 150);
    const Matrix<double> part = mixed(x, m, begin, end);
    EXPECT_TRUE(part == all.middleRows(begin, end - begin)) << begin;
    for (Index i = begin; i < end; ++i) {
      for (Index d = 0; d < 17; ++d) {
        ASSERT_NEAR(part(i - begin, d * 32), sums(i, d * 17), 0x1p-14 * sizes(i, d * 17));
      }
    }
  }
}

TEST_F(TiledMixing, OverflowIsNoticedRowByRow) {
  test::Random rng(1);
  const Stored x(rng, 5, 16, 16, 0x1p126f);
  Matrix<float> c = Matrix<float>::Constant(20, 5, 0.01f);
  c(17, 3) = 100;
  mixed(x, MixingMatrix<float>(c), 0, 20, 1);
}

TEST_F(TiledMixing, CoefficientsThatMayBeReadHaveToBeFinite) {
  Matrix<float> c = Matrix<float>::Zero(6, 6);
  EXPECT_TRUE(detail::all_finite(MixingMatrix<float>(c), 6, 6));
  c(2, 5) = NAN;
  EXPECT_FALSE(detail::all_finite(MixingMatrix<float>(c), 6, 6));
  EXPECT_TRUE(detail::all_finite(MixingMatrix<float>(c), 2, 6));
  EXPECT_TRUE(detail::all_finite(MixingMatrix<float>(c), 6, 5));
  EXPECT_TRUE(detail::all_finite(MixingMatrix<float>::banded(c, 6, 2), 6, 6));
}

TEST_F(TiledMixing, GroupsAreWholeTilesOfRows) {
  for (Index blocks : {0, 1, 17, 500}) {
    for (Index workers : {1, 3, 64}) {
      for (const TiledSizes n : {TiledSizes{16, 16}, TiledSizes{128, 128}}) {
        const Index group = detail::tiled_group_blocks(blocks, n, workers);
        EXPECT_GT(group, 0);
        EXPECT_EQ(group % 16, 0);
      }
    }
  }
}

}  // namespace
}  // namespace mhla

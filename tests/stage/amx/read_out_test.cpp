#include "mhla/stage/amx/read_out.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "support/any_map.hpp"
#include "support/outputs.hpp"
#include "support/random.hpp"

namespace mhla {
namespace {

using detail::Pair;
using detail::Rows;
using detail::TiledMixtures;
using detail::TiledSizes;
using test::Memory;

/// One mixture [D,E], as the third of a group.
struct Mixture {
  static constexpr Index kPlace = 2;
  TiledSizes n;
  Memory memory;
  detail::TiledSummaries summaries;
  TiledMixtures mixtures;
  detail::TiledQueries packed;

  explicit Mixture(const Matrix<float>& x)
      : n{x.rows(), x.cols()},
        memory(std::size_t{1} << 21),
        summaries("f", memory.arena, 1, n),
        mixtures("f", memory.arena, 16, summaries),
        packed("f", memory.arena, n) {
    Matrix<float> padded = Matrix<float>::Zero(n.padded_features(), n.padded_values());
    padded.topLeftCorner(x.rows(), x.cols()) = x;
    for (Index f = 0; f < n.feature_steps(); ++f) {
      for (Index j = 0; j < n.value_tiles(); ++j) {
        Pair* const tile = mixtures.block(kPlace) + (f * n.value_tiles() + j) * detail::kSplitPairs;
        for (Index p = 0; p < 16; ++p) {
          detail::split_pairs(&padded(f * 32 + p, j * 16), &padded(f * 32 + p + 16, j * 16),
                              tile + p * 16, tile + detail::kTilePairs + p * 16);
        }
      }
    }
    mixtures.finite[kPlace] = x.allFinite();
  }

  Matrix<float> read(const Matrix<float>& queries) {
    Memory rows(1 << 20);
    const Rows<float> q("f", rows.arena, detail::kStripTokens, n.features);
    const Rows<float> outputs("f", rows.arena, detail::kStripTokens, n.padded_values());
    const Index count = queries.rows();
    for (Index s = 0; s < count; ++s) std::copy_n(&queries(s, 0), n.features, q.row(s));
    detail::read_mixture(q, count, mixtures, kPlace, packed, outputs);
    Matrix<float> out(count, n.values);
    for (Index s = 0; s < count; ++s) std::copy_n(outputs.row(s), n.values, &out(s, 0));
    return out;
  }
};

class TiledReadOut : public testing::Test {
 protected:
  void SetUp() override {
    if (!detail::tiles_granted()) GTEST_SKIP() << "the system does not grant the tiles";
  }
};

TEST_F(TiledReadOut, EqualsTheProductWithinTheBound) {
  double worst = 0;
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    test::Random rng(seed);
    const Index d = rng.integer(1, 100), e = rng.integer(1, 70), count = rng.integer(1, 64);
    const bool thirds = rng.chance(0.5);
    Matrix<float> q = rng.matrix<Eigen::bfloat16>(count, d).cast<float>();
    if (thirds) q /= 3;
    const Matrix<float> x = rng.matrix<float>(d, e), out = Mixture(x).read(q);
    const Matrix<double> sum = q.cast<double>() * x.cast<double>(),
                         size = q.cast<double>().cwiseAbs() * x.cast<double>().cwiseAbs();
    const double bound = (thirds ? 0x1p-15 : 0x1p-17) * (1 + 0x1p-7) +
                         1.02 * (18 + 3 * (double(d) / 32 + 1)) * 0x1p-24;
    for (Index i = 0; i < count; ++i) {
      for (Index j = 0; j < e; ++j) {
        const double error = std::abs(out(i, j) - sum(i, j));
        ASSERT_LE(error, bound * size(i, j)) << "seed " << seed;
        worst = std::max(worst, error / (bound * size(i, j)));
      }
    }
  }
  EXPECT_GT(worst, 0.05);
}

TEST_F(TiledReadOut, AQueryThatIsNotFiniteReachesItsOwnRowAsInFp32) {
  test::Random rng(2);
  const Matrix<float> x = rng.matrix<float>(20, 19), q = rng.matrix<float>(30, 20);
  const Matrix<float> clean = Mixture(x).read(q);
  for (const float bad : {INFINITY, -INFINITY, NAN}) {
    Matrix<float> poisoned = q;
    poisoned(7, 17) = bad;
    const Matrix<float> out = Mixture(x).read(poisoned);
    for (Index e = 0; e < 19; ++e) {
      EXPECT_TRUE(std::isnan(bad) ? std::isnan(out(7, e)) : out(7, e) == bad * x(17, e)) << bad;
    }
    Matrix<float> others = out;
    others.row(7) = clean.row(7);
    EXPECT_TRUE(others == clean);
  }
}

TEST_F(TiledReadOut, AMixtureThatIsNotFiniteReachesWhatItReachesInFp32) {
  test::Random rng(3);
  Matrix<float> x = rng.matrix<float>(40, 19);
  const Matrix<float> q = rng.matrix<float>(30, 40, 0.5, 1).cast<Eigen::bfloat16>().cast<float>();
  x(33, 4) = INFINITY;
  x(3, 5) = -INFINITY;
  x(20, 18) = NAN;
  const Matrix<float> out = Mixture(x).read(q);
  for (Index t = 0; t < 30; ++t) {
    EXPECT_EQ(out(t, 4), INFINITY);
    EXPECT_EQ(out(t, 5), -INFINITY);
    EXPECT_TRUE(std::isnan(out(t, 18)));
    EXPECT_NEAR(out(t, 6), q.row(t).dot(x.col(6)), 1e-3);
  }
}

TEST_F(TiledReadOut, RowsAreDividedRoundedAndScattered) {
  test::Random rng(4);
  const Matrix<float> x = rng.matrix<float>(20, 19), q = rng.matrix<float>(5, 20);
  Mixture mixture(x);
  const Matrix<float> plain = mixture.read(q);
  Memory memory(1 << 20);
  const detail::QueryScratch<float> scratch("f", memory.arena, 20, 20, 0,
                                            mixture.n.padded_values());
  const float denominators[5] = {1, 3, 0, 0x1p-127f, -7};
  for (Index s = 0; s < 5; ++s) std::copy_n(&q(s, 0), 20, scratch.queries.row(s));
  std::copy_n(denominators, 5, scratch.denominators);
  const Index tokens[5] = {4, 1, 0, 5, 2};
  Matrix<Eigen::bfloat16> out = test::unwritten<Eigen::bfloat16>(6, 19);
  detail::write_mixture(scratch, tokens, 5, mixture.mixtures, Mixture::kPlace, mixture.packed,
                        MatrixView<Eigen::bfloat16>(out));
  for (Index s = 0; s < 5; ++s) {
    for (Index e = 0; e < 19; ++e) {
      const float expected = plain(s, e) / denominators[s];
      const float got = static_cast<float>(out(tokens[s], e));
      if (std::isfinite(expected)) {
        EXPECT_NEAR(got, expected, 0x1.01p-8f * std::abs(expected));
      } else {
        EXPECT_EQ(got, expected);
      }
    }
  }
  EXPECT_TRUE(out.row(3).cast<float>().array().isNaN().all());
}

}  // namespace
}  // namespace mhla

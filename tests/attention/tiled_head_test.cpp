#include "mhla/attention/tiled_head.hpp"

#include <gtest/gtest.h>

#include "mhla/attention/batched.hpp"
#include "mhla/attention/bidirectional.hpp"
#include "mhla/attention/linear.hpp"
#include "mhla/policy/locality.hpp"
#include "support/bidirectional_run.hpp"
#include "support/reference.hpp"

namespace mhla::test {
namespace {

using T = Eigen::bfloat16;
using detail::EmulatedTiles;

/// A random problem wide enough for the tiles.
Problem<T> tiled_problem(std::uint64_t seed) {
  Problem<T> p = random_problem<T>(seed, false);
  Random rng(seed + 77);
  const Index d = rng.integer(detail::kLeastTiled, 40), e = rng.integer(detail::kLeastTiled, 40);
  p.query_map = random_map<float>(rng, rng.integer(0, kSameWidthMaps - 1), d);
  p.key_map =
      rng.chance(0.5) ? p.query_map : random_map<float>(rng, rng.integer(0, kSameWidthMaps - 1), d);
  const double decades =
      p.query_map.exponential() || p.key_map.exponential() ? 0.5 : rng.uniform(0, 3);
  p.q = random_values<T>(rng, p.q.rows(), d, decades);
  p.k = random_values<T>(rng, p.k.rows(), d, decades);
  p.v = random_values<T>(rng, p.v.rows(), e, decades);
  if (p.has_own_normalizer()) {
    p.normalizer_q = random_values<T>(rng, p.q.rows(), d, decades);
    p.normalizer_k = random_values<T>(rng, p.k.rows(), d, decades);
  }
  return p;
}

/// N tokens in blocks of w, dense or with a band.
Problem<T> self_attention(std::uint64_t seed, Index n, Index w, Index d, Index e, Index band) {
  Problem<T> p;
  Random rng(seed);
  p.seed = seed;
  p.q = rng.matrix<T>(n, d);
  p.k = rng.matrix<T>(n, d);
  p.v = rng.matrix<T>(n, e);
  p.query_blocks = p.key_blocks = AnyPartition::of(Contiguous(n, w));
  const Index m = p.query_blocks.blocks();
  p.coefficients = rng.matrix<float>(m, m, -1, 1);
  p.lower = p.upper = band;
  p.normalizer = NaiveNormalizer::kNone;
  return p;
}

/// The float form, as on a system that refuses the tiles.
Matrix<T> float_form(const Problem<T>& p) {
  EmulatedTiles::refused = true;
  const Matrix<T> out = kRun(p);
  EmulatedTiles::refused = false;
  return out;
}

/// Whether f multiplies tiles on this thread.
template <class F>
bool multiplies_tiles(F&& f) {
  constexpr detail::Pair kMark = 0x12345678;
  EmulatedTiles::of_thread().tile[4][3][2] = kMark;
  EmulatedTiles::of_thread().tile[6][3][2] = kMark;
  f();
  return EmulatedTiles::of_thread().tile[4][3][2] != kMark ||
         EmulatedTiles::of_thread().tile[6][3][2] != kMark;
}

constexpr bool kEmulated = kMatrixUnitKind == MatrixUnit::kEmulated;

void expect_equal(const Problem<T>& p, Tally& tally) {
  compare(p, expected(p, kChain(p)), kRun(p), "tiled", tally);
}

TEST(TiledHead, EqualsNaive) {
  Tally tally;
  for (std::uint64_t seed = 0; seed < 1500 && !HasFatalFailure(); ++seed) {
    expect_equal(tiled_problem(5'000'000 + seed), tally);
  }
  std::cout << "tiled: worst error " << tally.worst << " of the bound in " << tally.outputs
            << " outputs, " << tally.ill << " more without a bound\n";
  EXPECT_LT(tally.ill, tally.outputs / 20);
}

TEST(TiledHead, EqualsNaiveWithManyBlocksLongBlocksAndBands) {
  Tally tally;
  expect_equal(self_attention(1, 200, 3, 33, 17, 1000), tally);    // 67 blocks: groups, steps
  expect_equal(self_attention(2, 700, 300, 17, 33, 1000), tally);  // a block of two panels
  expect_equal(self_attention(3, 300, 3, 16, 16, 2), tally);       // 100 blocks, a band
  expect_equal(self_attention(4, 256, 1, 16, 16, 1000), tally);
  expect_equal(self_attention(5, 520, 520, 64, 64, 1000), tally);
  auto far_below = self_attention(6, 300, 3, 16, 16, 0);  // rows that read no block at all
  far_below.query_blocks = AnyPartition::of(Contiguous(300, 2));
  far_below.coefficients = Matrix<float>::Random(150, 100);
  expect_equal(far_below, tally);
  auto grid = self_attention(7, 8 * 9 * 10, 72, 24, 40, 1000);
  grid.query_blocks = grid.key_blocks = AnyPartition::of(Grid({8, 9, 10}, {3, 4, 5}));
  grid.coefficients = Matrix<float>::Random(18, 18);
  expect_equal(grid, tally);
}

TEST(TiledHead, SumsThatCancelAreAsExactAsPairs) {
  // Two values that differ in sign only and two features that differ by 2^-12: what is left of the
  // sum is far below what bfloat16 factors could tell.
  const Index d = 16;
  Matrix<T> q = Matrix<T>::Constant(1, d, T(1)), k(2, d), v(2, d);
  const Elementwise map([](float x) { return x > 1 ? 1 + 0x1p-12f : 1.0f; });
  k.row(0).setConstant(T(2));
  k.row(1).setConstant(T(1));
  v.row(0).setConstant(T(1));
  v.row(1).setConstant(T(-1));
  const MixingMatrix<float> mixing(Matrix<float>::Constant(1, 1, 1 + 0x1p-10f));
  Matrix<T> out(1, d);
  bidirectional(Inputs<T>{.q = q, .k = k, .v = v}, Contiguous(1, 1), Contiguous(2, 2), mixing,
                Operator{map, map, NoNormalizer{}}, out);
  for (Index e = 0; e < d; ++e) {
    EXPECT_NEAR(static_cast<float>(out(0, e)), 16 * 0x1p-12, 16 * 0x1p-12 * 0x1p-8);
  }
}

TEST(TiledHead, BitsDependNeitherOnThreadsNorOnTheBatch) {
  ThreadPool two(2), three(3), eight(8);
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    const auto p = seed % 30 != 0 ? tiled_problem(seed)
                                  : self_attention(seed, 160, 2, 130, 130, seed == 0 ? 5 : 1000);
    const Matrix<T> alone = kRun(p);
    for (ThreadPool* pool : {&two, &three, &eight}) {
      EXPECT_TRUE(same_bits(alone, kRunWith(p, *pool))) << pool->workers() << " " << p.text();
    }
  }
  const auto p = self_attention(9, 40, 10, 20, 18, 1000);
  const Matrix<T> alone = kRun(p);
  // Two items of two heads; the second head of the second item is p, the others are infinite.
  const Index n = 40, h = 2;
  const auto placed = [&](const Matrix<T>& x) {
    Matrix<T> all = Matrix<T>::Constant(2 * n * h, x.cols(), T(INFINITY));
    for (Index t = 0; t < n; ++t) all.row((n + t) * h + 1) = x.row(t);
    return all;
  };
  const Matrix<T> q = placed(p.q), k = placed(p.k), v = placed(p.v);
  Matrix<T> out = unwritten<T>(2 * n * h, 18);
  const auto view = [&](auto& x) { return bnhd(x.data(), 2, n, h, x.cols()); };
  bidirectional(BatchInputs<T>{.q = view(q), .k = view(k), .v = view(v)}, p.query_blocks,
                p.key_blocks, p.mixing(), Operator{Identity{}, Identity{}, NoNormalizer{}},
                view(out), {}, Sequential{});
  for (Index t = 0; t < n; ++t) {
    EXPECT_TRUE(same_bits(Matrix<T>(alone.row(t)), Matrix<T>(out.row((n + t) * h + 1))));
  }
}

TEST(TiledHead, BitsDoNotDependOnStridesAndAlignment) {
  const auto p = self_attention(8, 70, 9, 19, 21, 1000);
  const Matrix<T> expected_bits = kRun(p);
  using ByColumns = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic>;
  const ByColumns q = p.q, k = p.k, v = p.v;
  ByColumns out(70, 21);
  bidirectional(Inputs<T>{.q = q, .k = k, .v = v}, p.query_blocks, p.key_blocks, p.mixing(),
                Operator{Identity{}, Identity{}, NoNormalizer{}}, out);
  EXPECT_TRUE(same_bits(expected_bits, Matrix<T>(out)));
}

TEST(TiledHead, MaskedTokensReachNoOutput) {
  Index masked = 0;
  for (std::uint64_t seed = 0; seed < 600; ++seed) {
    auto p = tiled_problem(seed);
    if (p.key_mask.size() == 0 && p.query_mask.size() == 0) continue;
    ++masked;
    const Matrix<T> clean = kRun(p);
    const T nan(NAN);
    for (Index t = 0; t < p.key_mask.cols(); ++t) {
      if (p.key_mask(0, t)) continue;
      p.k.row(t).setConstant(nan);
      p.v.row(t).setConstant(t % 2 == 0 ? nan : T(INFINITY));
      if (p.has_own_normalizer()) p.normalizer_k.row(t).setConstant(nan);
    }
    for (Index t = 0; t < p.query_mask.cols(); ++t) {
      if (p.query_mask(0, t)) continue;
      p.q.row(t).setConstant(nan);
      if (p.has_own_normalizer()) p.normalizer_q.row(t).setConstant(nan);
    }
    EXPECT_TRUE(same_bits(clean, kRun(p))) << p.text();
    if (kEmulated && p.k.rows() > 0 && p.q.rows() > 0) {
      EXPECT_TRUE(multiplies_tiles([&] { kRun(p); })) << p.text();
    }
  }
  EXPECT_GT(masked, 100);
}

TEST(TiledHead, InfinityAndNanOfKeysAndValuesGiveTheBitsOfTheFloatForm) {
  if constexpr (!kEmulated) GTEST_SKIP() << "the float form cannot be asked for";
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    auto p = self_attention(seed, 60, 7, 18, 20, seed % 4 == 0 ? 1 : 1000);
    Random rng(seed);
    Matrix<T>& x = rng.chance(0.5) ? p.k : p.v;
    x(rng.integer(0, 59), rng.integer(0, 17)) = rng.chance(0.5) ? T(NAN) : T(-INFINITY);
    EXPECT_TRUE(same_bits(float_form(p), kRun(p))) << p.text();
    p = self_attention(seed, 60, 7, 18, 20, 1000);
    p.coefficients(rng.integer(0, 8), rng.integer(0, 8)) = rng.chance(0.5) ? NAN : INFINITY;
    EXPECT_TRUE(same_bits(float_form(p), kRun(p))) << p.text();
  }
}

TEST(TiledHead, InfinityNanAndOverflowOfQueriesReachWhatTheyReachInTheFloatForm) {
  if constexpr (!kEmulated) GTEST_SKIP() << "the float form cannot be asked for";
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    auto p = self_attention(seed, 50, 7, 18, 20, 1000);
    Random rng(seed);
    if (seed % 3 == 0) {  // mixtures overflow, summaries do not; without cancellation
      p.k = p.k.cwiseAbs();
      p.v = p.v.cwiseAbs();
      p.q = p.q.cwiseAbs();
      p.v *= T(0x1p125f);
      p.coefficients = p.coefficients.cwiseAbs() * 100;
    } else {
      p.q(rng.integer(0, 49), rng.integer(0, 17)) = rng.chance(0.3)   ? T(NAN)
                                                    : rng.chance(0.5) ? T(INFINITY)
                                                                      : T(-INFINITY);
    }
    const Matrix<T> a = float_form(p), b = kRun(p);
    EXPECT_TRUE(multiplies_tiles([&] { kRun(p); }));
    for (Index t = 0; t < a.rows(); ++t) {
      for (Index e = 0; e < a.cols(); ++e) {
        const float x = static_cast<float>(a(t, e)), y = static_cast<float>(b(t, e));
        if (std::isfinite(x)) {
          EXPECT_TRUE(std::isfinite(y)) << p.text();
        } else {
          EXPECT_TRUE(x == y || (std::isnan(x) && std::isnan(y))) << x << " " << y << p.text();
        }
      }
    }
  }
}

TEST(TiledHead, ASystemThatRefusesTheTilesGetsTheFloatForm) {
  if constexpr (!kEmulated) GTEST_SKIP() << "the system cannot be told to refuse";
  Tally tally;
  const auto p = self_attention(1, 100, 9, 20, 24, 1000);
  EXPECT_TRUE(multiplies_tiles([&] { kRun(p); }));
  EmulatedTiles::refused = true;
  EXPECT_FALSE(multiplies_tiles([&] { compare(p, expected(p, kChain(p)), kRun(p), "", tally); }));
  EmulatedTiles::refused = false;
}

TEST(TiledHead, NarrowHeadsAndOtherTypesAreTheFloatForm) {
  EXPECT_FALSE(multiplies_tiles([] { kRun(self_attention(1, 30, 9, 15, 40, 1000)); }));
  EXPECT_FALSE(multiplies_tiles([] { kRun(self_attention(1, 30, 9, 40, 15, 1000)); }));
  const Matrix<float> x = Matrix<float>::Random(40, 32);
  const Matrix<Eigen::half> y = x.cast<Eigen::half>();
  EXPECT_FALSE(multiplies_tiles([&] {
    bidirectional(x, x, x, Contiguous(40, 8), locality<float>(5));
    bidirectional(y, y, y, Contiguous(40, 8), locality<float>(5));
  }));
}

TEST(TiledHead, LinearAttentionUsesTheTilesToo) {
  const auto p = self_attention(3, 100, 100, 20, 24, 1000);
  Matrix<T> out(100, 24);
  const auto call = [&] {
    linear_bidirectional(p.inputs(), Operator{Identity{}, Identity{}, NoNormalizer{}}, out);
  };
  EXPECT_EQ(multiplies_tiles(call), kEmulated);
}

TEST(TiledHead, FeatureMapsMayUseTilesThemselves) {
  const auto p = self_attention(3, 40, 9, 20, 24, 1000);
  const Matrix<T> expected_bits = kRun(p);
  const auto uses_tiles = [](float x) {
    const detail::TileScope own;
    return x;
  };
  const Elementwise map(uses_tiles);
  Matrix<T> out(40, 24);
  bidirectional(p.inputs(), p.query_blocks, p.key_blocks, p.mixing(),
                Operator{map, map, NoNormalizer{}}, out);
  EXPECT_TRUE(same_bits(expected_bits, out));
}

TEST(TiledHead, NoTokensAndNoKeys) {
  const Matrix<T> none(0, 20), three = Matrix<T>::Constant(3, 20, T(1));
  const auto mixing = locality<float>(1);
  EXPECT_EQ(bidirectional(none, none, none, Contiguous(0, 4), mixing).rows(), 0);
  Matrix<T> out = unwritten<T>(3, 20);
  bidirectional(Inputs<T>{.q = three, .k = none, .v = none}, Contiguous(3, 3), Contiguous(0, 4),
                mixing, Operator{Relu{}, Relu{}, NoNormalizer{}}, out);
  EXPECT_TRUE((out.cast<float>().array() == 0).all());
}

}  // namespace
}  // namespace mhla::test

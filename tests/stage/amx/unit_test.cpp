#include "mhla/stage/amx/unit.hpp"

#include <gtest/gtest.h>

#include "mhla/attention/bidirectional.hpp"
#include "support/amx_case.hpp"
#include "support/reference.hpp"

namespace mhla::test {
namespace {

using T = Eigen::bfloat16;
using detail::EmulatedTiles;

class AmxUnit : public AmxTest {};

Matrix<T> run(const Problem<T>& p, const ExecutorRef& executor = {}) {
  Matrix<T> out = unwritten<T>(p.q.rows(), p.v.cols());
  GuardedWorkspace workspace(
      bidirectional_workspace_bytes(p.inputs(), p.blocks(), p.op(), executor));
  bidirectional(p.inputs(), p.blocks(), p.mixing(), p.op(), out,
                {.workspace = workspace.get(), .executor = executor});
  EXPECT_TRUE(workspace.intact()) << p.text();
  return out;
}

/// Returns the output on the vector unit, as on a system that refuses the tiles.
Matrix<T> run_on_vectors(const Problem<T>& p) {
  EmulatedTiles::refused = true;
  const Matrix<T> out = run(p);
  EmulatedTiles::refused = false;
  return out;
}

/// True if f multiplies tiles on this thread. Emulation only.
template <class F>
bool multiplies_tiles(F&& f) {
  constexpr detail::Bf16x2 kMark = 0x12345678;
  EmulatedTiles& tiles = EmulatedTiles::of_thread();
  tiles.tile[4][3][2] = tiles.tile[6][3][2] = kMark;
  f();
  return tiles.tile[4][3][2] != kMark || tiles.tile[6][3][2] != kMark;
}
bool takes_unit(const Problem<T>& p) {
  return multiplies_tiles([&] { run(p); });
}

/// A random problem wide enough for the unit.
Problem<T> wide_problem(std::uint64_t seed) {
  Problem<T> p = random_problem<T>(seed, false);
  Random rng(seed + 77);
  const Index d = rng.integer(detail::kLeastAmxWidth, 40),
              e = rng.integer(detail::kLeastAmxWidth, 40);
  p.query_map = random_map<float>(rng, rng.integer(0, kSameWidthMaps - 1), d);
  p.key_map =
      rng.chance(0.5) ? p.query_map : random_map<float>(rng, rng.integer(0, kSameWidthMaps - 1), d);
  const bool tame = p.query_map.exponential() || p.key_map.exponential();
  const double decades = tame ? 0.5 : rng.uniform(0, 3);
  p.q = random_values<T>(rng, p.q.rows(), d, decades);
  p.k = random_values<T>(rng, p.k.rows(), d, decades);
  p.v = random_values<T>(rng, p.v.rows(), e, decades);
  if (p.has_separate_normalizer()) {
    p.normalizer_q = random_values<T>(rng, p.q.rows(), d, decades);
    p.normalizer_k = random_values<T>(rng, p.k.rows(), d, decades);
  }
  return p;
}

/// N tokens in blocks of w, with a band, or a dense matrix where the band covers it.
Problem<T> self_attention(std::uint64_t seed, Index n, Index w, Index d, Index e,
                          Index band = 1000) {
  Problem<T> p;
  Random rng(seed);
  p.seed = seed;
  p.q = rng.matrix<T>(n, d);
  p.k = rng.matrix<T>(n, d);
  p.v = rng.matrix<T>(n, e);
  p.query_blocks = p.key_blocks = AnyPartition::of(Contiguous(n, w));
  const Index m = p.query_blocks.blocks();
  p.coefficients = rng.matrix<float>(m, m);
  p.lower = p.upper = band;
  p.normalizer = WeightSums::kNone;
  return p;
}

void expect_definition(const Problem<T>& p, Tally& tally) {
  // Tokens of a block, blocks, features and eps; the products of the unit add more.
  const Index chain =
      largest_block(p.key_blocks) + p.key_blocks.blocks() + p.query_map.features(p.q.cols()) + 1;
  compare(p, expected(p, chain), run(p), "amx", tally);
}

TEST_F(AmxUnit, BidirectionalFormIsTheDefinitionWithinItsError) {
  Tally tally;
  for (std::uint64_t seed = 0; seed < 40 && !HasFatalFailure(); ++seed) {
    expect_definition(wide_problem(5'000'000 + seed), tally);
  }
  EXPECT_LT(tally.ill, tally.outputs / 20);
}

TEST_F(AmxUnit, ManyBlocksLongBlocksAndBandsAreTheDefinition) {
  Tally tally;
  expect_definition(self_attention(1, 130, 3, 33, 17), tally);    // 44 blocks: groups, steps
  expect_definition(self_attention(2, 400, 300, 17, 33), tally);  // a block of two panels
  expect_definition(self_attention(3, 100, 1, 16, 16, 2), tally);
  auto far_below = self_attention(6, 120, 3, 16, 16, 0);  // rows that read no block
  far_below.query_blocks = AnyPartition::of(Contiguous(120, 2));
  far_below.coefficients = Random(1).matrix<float>(60, 40);
  expect_definition(far_below, tally);
  auto grid = self_attention(7, 8 * 9 * 4, 72, 24, 40);
  grid.query_blocks = grid.key_blocks = AnyPartition::of(Grid({8, 9, 4}, {3, 4, 2}));
  grid.coefficients = Random(2).matrix<float>(18, 18);
  expect_definition(grid, tally);
  auto no_keys = self_attention(8, 30, 7, 20, 18);
  no_keys.key_blocks = AnyPartition::of(Contiguous(0, 7));
  no_keys.k.resize(0, 20);
  no_keys.v.resize(0, 18);
  no_keys.coefficients.resize(5, 1);
  no_keys.coefficients.setOnes();
  expect_definition(no_keys, tally);
  EXPECT_EQ(tally.ill, 0);
}

/// Two values that differ only in sign, and two features that differ by 2^-12. The remainder of the
/// sum is far below the resolution of bfloat16 factors.
TEST_F(AmxUnit, SumsThatCancelAreAsExactAsPairs) {
  auto p = self_attention(1, 2, 2, 16, 16);
  p.q.setConstant(T(1));
  p.k.setZero();
  p.k.col(0).setConstant(T(1));
  p.k(0, 1) = T(0x1p-12f);
  Matrix<float> first_two = Matrix<float>::Zero(16, 16);  // phi(k) = k_0 + k_1, 16 times
  first_two.leftCols(2).setOnes();
  p.key_map = {T2R<float>(first_two)};
  p.v.row(0).setConstant(T(1));
  p.v.row(1).setConstant(T(-1));
  p.coefficients.setConstant(1 + 0x1p-10f);
  const Matrix<float> out = run(p).cast<float>();
  for (Index i = 0; i < out.size(); ++i) EXPECT_NEAR(out.data()[i], 0x1p-8, 0x1p-16);
}

TEST_F(AmxUnit, BitsDependNeitherOnThreadsNorOnStridesNorOnTheBatch) {
  ThreadPool two(2), eight(8);
  for (std::uint64_t seed = 0; seed < 8; ++seed) {
    const auto p = seed % 8 != 0 ? wide_problem(seed) : self_attention(seed, 80, 2, 20, 40, 5);
    const Matrix<T> alone = run(p);
    EXPECT_TRUE(same_bits(alone, run(p, two))) << p.text();
    EXPECT_TRUE(same_bits(alone, run(p, eight))) << p.text();
  }
  const auto p = self_attention(9, 40, 10, 20, 18);
  const Matrix<T> alone = run(p);
  using ByColumns = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic>;
  const ByColumns columns[] = {p.q, p.k, p.v};
  ByColumns scattered(40, 18);
  bidirectional(Inputs<T>{.q = columns[0], .k = columns[1], .v = columns[2]}, p.blocks(),
                p.mixing(), p.op(), scattered);
  EXPECT_TRUE(same_bits(alone, Matrix<T>(scattered)));

  // Two items with two heads each: the second head of the second item is p, all others are
  // infinite.
  const Index n = 40, h = 2;
  const auto placed = [&](const Matrix<T>& x) {
    Matrix<T> all = Matrix<T>::Constant(2 * n * h, x.cols(), T(INFINITY));
    for (Index t = 0; t < n; ++t) all.row((n + t) * h + 1) = x.row(t);
    return all;
  };
  const Matrix<T> q = placed(p.q), k = placed(p.k), v = placed(p.v);
  Matrix<T> out = unwritten<T>(2 * n * h, 18);
  const auto view = [&](auto& x) { return bnhd(x.data(), 2, n, h, x.cols()); };
  bidirectional(BatchInputs<T>{.q = view(q), .k = view(k), .v = view(v)}, p.blocks(), p.mixing(),
                p.op(), view(out));
  for (Index t = 0; t < n; ++t) {
    EXPECT_TRUE(same_bits<T>(alone.row(t), out.row((n + t) * h + 1)));
  }
}

TEST_F(AmxUnit, IsTakenForWideBfloat16HeadsThatKeepNothing) {
  if constexpr (!kEmulated) GTEST_SKIP() << "tiles in use cannot be seen";
  EXPECT_TRUE(takes_unit(self_attention(1, 30, 9, 16, 16)));
  EXPECT_FALSE(takes_unit(self_attention(1, 30, 9, 15, 40)));
  EXPECT_FALSE(takes_unit(self_attention(1, 30, 9, 40, 15)));
  EXPECT_FALSE(multiplies_tiles([] { run_on_vectors(self_attention(1, 30, 9, 16, 16)); }));

  EXPECT_FALSE(detail::kMayUseAmx<float> || detail::kMayUseAmx<double>);
  EXPECT_FALSE(detail::kMayUseAmx<Eigen::half>);

  const auto p = self_attention(3, 100, 9, 20, 24);
  std::vector<std::byte> kept(bidirectional_kept_bytes(p.inputs(), p.blocks(), p.op()));
  Matrix<T> keeping(100, 24);
  EXPECT_FALSE(multiplies_tiles(
      [&] { bidirectional(p.inputs(), p.blocks(), p.mixing(), p.op(), keeping, {.kept = kept}); }));
  EXPECT_TRUE(same_bits(keeping, run_on_vectors(p)));
}

TEST_F(AmxUnit, IsNotTakenWhereAKeyAValueOrACoefficientIsNotFinite) {
  if constexpr (!kEmulated) GTEST_SKIP() << "tiles in use cannot be seen";
  for (const float bad : {INFINITY, -INFINITY, NAN}) {
    for (int place = 0; place < 3; ++place) {
      auto p = self_attention(4, 60, 7, 18, 20, place == 2 ? 1 : 1000);
      if (place == 0) p.k(59, 17) = T(bad);
      if (place == 1) p.v(0, 19) = T(bad);
      if (place == 2) p.coefficients(8, 7) = bad;
      EXPECT_FALSE(takes_unit(p)) << place;
      EXPECT_TRUE(same_bits(run(p), run_on_vectors(p))) << place;
    }
  }
  auto outside = self_attention(5, 60, 7, 18, 20, 1);
  outside.coefficients(0, 8) = NAN;  // outside the band
  EXPECT_TRUE(takes_unit(outside));
}

TEST_F(AmxUnit, MaskedTokensReachNoOutput) {
  auto p = self_attention(6, 90, 11, 18, 20);
  Random rng(6);
  p.key_mask = p.query_mask = Matrix<bool>::Constant(1, 90, true);
  for (Index t = 0; t < 90; ++t) {
    p.key_mask(0, t) = rng.chance(0.7);
    p.query_mask(0, t) = rng.chance(0.7);
  }
  const Matrix<T> clean = run(p);
  for (Index t = 0; t < 90; ++t) {
    if (!p.key_mask(0, t)) {
      p.k.row(t).setConstant(T(NAN));
      p.v.row(t).setConstant(T(INFINITY));
    }
    if (!p.query_mask(0, t)) p.q.row(t).setConstant(T(NAN));
  }
  EXPECT_TRUE(same_bits(clean, run(p)));
  EXPECT_TRUE(!kEmulated || takes_unit(p));
}

/// Queries are not finite, or mixtures overflow although summaries do not.
TEST_F(AmxUnit, InfinityNanAndOverflowReachWhatTheyReachOnTheVectorUnit) {
  if constexpr (!kEmulated) GTEST_SKIP() << "the vector unit cannot be asked for";
  for (std::uint64_t seed = 0; seed < 15; ++seed) {
    auto p = self_attention(seed, 50, 7, 18, 20);
    Random rng(seed);
    if (seed % 3 == 0) {  // without cancellation
      for (Matrix<T>* x : {&p.q, &p.k, &p.v}) *x = x->cwiseAbs().eval();
      p.v *= T(0x1p125f);
      p.coefficients = p.coefficients.cwiseAbs() * 100;
    } else {
      constexpr float kBad[] = {NAN, INFINITY, -INFINITY};
      p.q(rng.integer(0, 49), rng.integer(0, 17)) = T(kBad[rng.integer(0, 2)]);
    }
    const Matrix<float> right = run_on_vectors(p).cast<float>(), got = run(p).cast<float>();
    EXPECT_TRUE(takes_unit(p));
    for (Index i = 0; i < got.size(); ++i) {
      const float x = right.data()[i], y = got.data()[i];
      EXPECT_TRUE(std::isfinite(x) ? std::isfinite(y) : x == y || (std::isnan(x) && std::isnan(y)))
          << x << " and " << y << " " << p.text();
    }
  }
}

}  // namespace
}  // namespace mhla::test

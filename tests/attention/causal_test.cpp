#include "mhla/attention/causal.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "mhla/policy/locality.hpp"
#include "support/message_of.hpp"
#include "support/reference.hpp"

namespace mhla::test {
namespace {

/// Longest chain of roundings: a block's tokens into its summary, the blocks, the features, the
/// own block's weight and tokens, its sum and eps.
constexpr auto kChain = [](const auto& p) {
  return 2 * largest_block(p.key_blocks) + p.key_blocks.blocks() +
         p.query_map.features(std::max(p.q.cols(), p.normalizer_q.cols())) + 3;
};

/// Longer problems: blocks of 1 to 300 tokens, of which few or none may be kept, and not the same
/// as keys and as queries.
template <class T>
Problem<T> long_problem(std::uint64_t seed) {
  using A = accumulator_t<T>;
  Random rng(seed);
  Problem<T> p;
  p.seed = seed;
  p.causal = true;
  std::vector<Index> sizes;
  Index n = 0;
  for (; n < 150; n += sizes.back()) sizes.push_back(rng.integer(1, rng.chance(0.5) ? 20 : 300));
  p.query_blocks = p.key_blocks = AnyPartition::of(BlockSizes(sizes));
  p.query_map = p.key_map = {EluPlusOne{}};
  const Index d = rng.integer(1, 12), e = rng.integer(0, 20), m = std::ssize(sizes);
  p.q = rng.matrix<T>(n, d);
  p.k = rng.matrix<T>(n, d);
  p.v = rng.matrix<T>(n, e);
  p.normalizer = rng.chance(0.2) ? NaiveNormalizer::kNone : NaiveNormalizer::kKeySum;
  if (p.normalizer == NaiveNormalizer::kKeySum && rng.chance(0.4)) {
    const Index own = rng.integer(1, 20);
    p.normalizer_q = rng.matrix<T>(n, own);
    p.normalizer_k = rng.matrix<T>(n, own);
  }
  p.coefficients = rng.matrix<A>(m, m, 0.1, 1);
  p.lower = rng.chance(0.5) ? rng.integer(0, 3) : m;
  p.upper = m;
  p.eps = 1e-3;
  for (Matrix<bool>* mask : {&p.query_mask, &p.key_mask}) {
    if (rng.chance(0.3)) continue;
    mask->resize(1, n);
    Index t = 0;
    for (const Index size : sizes) {
      constexpr double kKept[] = {0, 0.1, 0.7, 1};
      const double kept = kKept[rng.integer(0, 3)];
      for (const Index end = t + size; t < end; ++t) (*mask)(0, t) = rng.chance(kept);
    }
  }
  return p;
}

/// A long problem now and then.
Problem<float> any_problem(std::uint64_t seed) {
  return seed % 8 == 0 ? long_problem<float>(seed) : random_problem<float>(seed, true);
}

constexpr auto kRunWith = [](const auto& p, auto&& executor) {
  using T = typename std::remove_cvref_t<decltype(p.q)>::Scalar;
  Matrix<T> out = unwritten<T>(p.q.rows(), p.v.cols());
  p.with_operator([&]<CausalOperator Op>(const Op& op) {
    const auto in = p.inputs();
    GuardedWorkspace workspace(causal_workspace_bytes(in, p.query_blocks, op, executor));
    causal(in, p.query_blocks, p.mixing(), op, out, workspace.get(), executor);
    EXPECT_TRUE(workspace.intact()) << p.text();
  });
  return out;
};
constexpr auto kRun = [](const auto& p) { return kRunWith(p, Sequential{}); };

TEST(Causal, FloatEqualsNaiveOnTwentyThousandShapes) {
  expect_equal_to_naive<float>("causal", true, 1'000'000, 20'000, kRun, kChain);
}
TEST(Causal, DoubleEqualsNaiveOnTwentyThousandShapes) {
  expect_equal_to_naive<double>("causal", true, 2'000'000, 20'000, kRun, kChain);
}
TEST(Causal, HalfEqualsNaive) {
  expect_equal_to_naive<Eigen::half>("causal", true, 3'000'000, 4'000, kRun, kChain);
}
TEST(Causal, Bfloat16EqualsNaive) {
  expect_equal_to_naive<Eigen::bfloat16>("causal", true, 4'000'000, 4'000, kRun, kChain);
}

template <class T>
void expect_long_equal_to_naive(std::uint64_t first_seed, Index problems) {
  Tally tally;
  for (Index i = 0; i < problems && !testing::Test::HasFatalFailure(); ++i) {
    const auto p = long_problem<T>(first_seed + static_cast<std::uint64_t>(i));
    compare(p, expected(p, kChain(p)), kRun(p), "causal", tally);
  }
  std::cout << "causal: worst error " << tally.worst << " of the bound in " << tally.outputs
            << " outputs of long blocks\n";
  EXPECT_EQ(tally.ill, 0);
}

TEST(Causal, FloatEqualsNaiveOnLongBlocks) { expect_long_equal_to_naive<float>(5'000'000, 400); }
TEST(Causal, DoubleEqualsNaiveOnLongBlocks) { expect_long_equal_to_naive<double>(6'000'000, 150); }
TEST(Causal, HalfEqualsNaiveOnLongBlocks) {
  expect_long_equal_to_naive<Eigen::half>(7'000'000, 100);
}

TEST(Causal, EveryBlockLengthUpToThreeHundred) {
  Tally tally;
  auto p = long_problem<float>(1);
  Random rng(1);
  const Index n = 310;
  p.q = rng.matrix<float>(n, 3);
  p.k = rng.matrix<float>(n, 3);
  p.v = rng.matrix<float>(n, 2);
  p.normalizer_q = p.normalizer_k = {};
  p.query_mask = p.key_mask = {};
  p.coefficients = rng.matrix<float>(n, n, 0.1, 1);
  p.lower = p.upper = n;
  for (Index w = 1; w <= 300; w += w < 70 || w > 120 ? 7 : 1) {
    p.query_blocks = p.key_blocks = AnyPartition::of(Contiguous(n, w));
    compare(p, expected(p, kChain(p)), kRun(p), "causal", tally);
  }
}

TEST(Causal, BitsDoNotDependOnTheNumberOfThreads) {
  ThreadPool two(2), five(5), eight(8);
  for (std::uint64_t seed = 0; seed < 400; ++seed) {
    const auto p = any_problem(seed);
    const Matrix<float> alone = kRun(p);
    for (ThreadPool* pool : {&two, &five, &eight}) {
      EXPECT_TRUE(same_bits(alone, kRunWith(p, *pool))) << pool->workers() << " " << p.text();
    }
  }
}

TEST(Causal, LaterTokensLeaveEarlierOutputsBitwiseUnchanged) {
  for (std::uint64_t seed = 0; seed < 600; ++seed) {
    auto p = any_problem(seed);
    const Index n = p.q.rows();
    if (n < 2) continue;
    const Matrix<float> before = kRun(p);
    Random rng(seed);
    for (const float poison : {NAN, INFINITY, 1e30f}) {
      auto q = p;
      const Index first = rng.integer(1, n - 1);
      q.q.bottomRows(n - first).setConstant(poison);
      q.k.bottomRows(n - first).setConstant(poison);
      q.v.bottomRows(n - first).setConstant(poison);
      if (q.has_own_normalizer()) {
        q.normalizer_q.bottomRows(n - first).setConstant(poison);
        q.normalizer_k.bottomRows(n - first).setConstant(poison);
      }
      EXPECT_TRUE(
          same_bits(Matrix<float>(before.topRows(first)), Matrix<float>(kRun(q).topRows(first))))
          << first << " " << p.text();
    }
  }
}

TEST(Causal, EveryPositionOfALongSequenceIsCausal) {
  Random rng(1);
  const Index n = 257;
  const Matrix<float> q = rng.matrix<float>(n, 5), k = rng.matrix<float>(n, 5),
                      v = rng.matrix<float>(n, 3);
  const Contiguous blocks(n, 20);
  const auto mixing = uniform_causal<float>(13);
  const Matrix<float> whole = causal(q, k, v, blocks, mixing);
  for (Index t = 1; t < n; ++t) {
    Matrix<float> late_k = k, late_v = v;
    late_k.bottomRows(n - t).setConstant(NAN);
    late_v.bottomRows(n - t).setConstant(NAN);
    const Matrix<float> o = causal(q, late_k, late_v, blocks, mixing);
    ASSERT_TRUE(same_bits(Matrix<float>(whole.topRows(t)), Matrix<float>(o.topRows(t)))) << t;
  }
}

TEST(Causal, MaskedTokensReachNoOutput) {
  for (std::uint64_t seed = 0; seed < 2000; ++seed) {
    auto p = any_problem(seed);
    if (p.key_mask.size() == 0 && p.query_mask.size() == 0) continue;
    const Matrix<float> clean = kRun(p);
    for (Index t = 0; t < p.key_mask.cols(); ++t) {
      if (p.key_mask(0, t)) continue;
      p.k.row(t).setConstant(NAN);
      p.v.row(t).setConstant(INFINITY);
      if (p.has_own_normalizer()) p.normalizer_k.row(t).setConstant(NAN);
    }
    for (Index t = 0; t < p.query_mask.cols(); ++t) {
      if (p.query_mask(0, t)) continue;
      p.q.row(t).setConstant(NAN);
      if (p.has_own_normalizer()) p.normalizer_q.row(t).setConstant(NAN);
    }
    EXPECT_TRUE(same_bits(clean, kRun(p))) << p.text();
  }
}

TEST(Causal, PaddedOutTokensLeaveTheRestAsIfTheyWereNotThere) {
  Random rng(9);
  for (int repeat = 0; repeat < 200; ++repeat) {
    // Blocks of given sizes, some of whose tokens are masked, against the same blocks without them.
    std::vector<Index> sizes, kept_sizes;
    Matrix<bool> mask(1, 40);
    Index token = 0;
    while (token < 40) {
      const Index size = rng.integer(1, 40 - token);
      Index kept = 0;
      for (Index t = token; t < token + size; ++t) kept += (mask(0, t) = rng.chance(0.6)) ? 1 : 0;
      sizes.push_back(size);
      kept_sizes.push_back(kept);
      token += size;
    }
    const Matrix<float> q = rng.matrix<float>(40, 4), k = rng.matrix<float>(40, 4),
                        v = rng.matrix<float>(40, 3);
    const auto without = [&mask](const Matrix<float>& m) {
      Matrix<float> rows(mask.count(), m.cols());
      Index row = 0;
      for (Index t = 0; t < 40; ++t) {
        if (mask(0, t)) rows.row(row++) = m.row(t);
      }
      return rows;
    };
    const auto mixing = uniform_causal<float>(40);
    const Mask view{mask.data(), 40, 1};
    Matrix<float> padded = unwritten<float>(40, 3);
    causal(Inputs<float>{.q = q, .k = k, .v = v, .query_mask = view, .key_mask = view},
           BlockSizes(sizes), mixing, Operator{}, padded);
    const Matrix<float> alone =
        causal(without(q), without(k), without(v), BlockSizes(kept_sizes), mixing);
    EXPECT_TRUE(same_bits(without(padded), alone));
    for (Index t = 0; t < 40; ++t) {
      if (!mask(0, t)) {
        EXPECT_TRUE((padded.row(t).array() == 0).all());
      }
    }
  }
}

TEST(Causal, OneBlockOfAllTokensAndBlocksOfOneTokenAgree) {
  Random rng(2);
  const Index n = 33;
  const Matrix<double> q = rng.matrix<double>(n, 6), k = rng.matrix<double>(n, 6),
                       v = rng.matrix<double>(n, 4);
  const MixingMatrix<double> ones(Matrix<double>::Ones(n, n));
  const Matrix<double> whole = causal(q, k, v, Contiguous(n, n), ones);
  const Matrix<double> single = causal(q, k, v, Contiguous(n, 1), ones);
  // All terms of the denominators are positive, and |o| <= 1.
  EXPECT_LE((whole - single).cwiseAbs().maxCoeff(), 4 * gamma(2 * n + n + 6 + 5, 0x1p-53));
}

TEST(Causal, RejectsWhatDoesNotFitAndTouchesNothing) {
  const Matrix<float> q = Matrix<float>::Ones(8, 4), k = Matrix<float>::Ones(9, 4);
  Matrix<float> out = unwritten<float>(8, 4);
  const Inputs<float> good{.q = q, .k = q, .v = q};
  EXPECT_EQ(message_of<shape_error>(
                [&] { causal(good, Contiguous(8, 2), locality<float>(3), Operator{}, out); }),
            "mhla::causal: mixing has shape [3, 3], expected at least [4, 4] for the blocks of the "
            "sequence");
  EXPECT_EQ(message_of<shape_error>([&] {
              causal(Inputs<float>{.q = q, .k = k, .v = k}, Contiguous(8, 2), locality<float>(4),
                     Operator{}, out);
            }),
            "mhla::causal: k has shape [9, 4], expected [8, any]");
  EXPECT_EQ(message_of<option_error>([&] {
              causal(good, Grid(GridShape(2, 4), GridShape(2, 2)), locality<float>(2), Operator{},
                     out);
            }),
            "mhla::causal: blocks has a block 0 out of token order, expected blocks of consecutive "
            "tokens, one after another");
  EXPECT_TRUE(out.array().isNaN().all());
}

}  // namespace
}  // namespace mhla::test

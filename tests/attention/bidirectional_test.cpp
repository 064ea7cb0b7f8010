#include "mhla/attention/bidirectional.hpp"

#include <gtest/gtest.h>

#include "mhla/policy/locality.hpp"
#include "support/bidirectional_run.hpp"
#include "support/message_of.hpp"
#include "support/reference.hpp"

namespace mhla::test {
namespace {

TEST(Bidirectional, FloatEqualsNaiveOnTwentyThousandShapes) {
  expect_equal_to_naive<float>("bidirectional", false, 1'000'000, 20'000, kRun, kChain);
}
TEST(Bidirectional, DoubleEqualsNaiveOnTwentyThousandShapes) {
  expect_equal_to_naive<double>("bidirectional", false, 2'000'000, 20'000, kRun, kChain);
}
TEST(Bidirectional, HalfEqualsNaive) {
  expect_equal_to_naive<Eigen::half>("bidirectional", false, 3'000'000, 4'000, kRun, kChain);
}
TEST(Bidirectional, Bfloat16EqualsNaive) {
  expect_equal_to_naive<Eigen::bfloat16>("bidirectional", false, 4'000'000, 4'000, kRun, kChain);
}

TEST(Bidirectional, BitsDoNotDependOnTheNumberOfThreads) {
  ThreadPool two(2), three(3), eight(8);
  for (std::uint64_t seed = 0; seed < 400; ++seed) {
    const auto p = random_problem<float>(seed, false);
    const Matrix<float> alone = kRun(p);
    for (ThreadPool* pool : {&two, &three, &eight}) {
      EXPECT_TRUE(same_bits(alone, kRunWith(p, *pool))) << pool->workers() << " " << p.text();
    }
  }
}

TEST(Bidirectional, EveryRunGivesTheSameBits) {
  ThreadPool pool(4);
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    const auto p = random_problem<float>(seed, false);
    const Matrix<float> first = kRunWith(p, pool);
    for (int repeat = 0; repeat < 20; ++repeat) {
      ASSERT_TRUE(same_bits(first, kRunWith(p, pool))) << p.text();
    }
  }
}

TEST(Bidirectional, BitsDoNotDependOnAlignment) {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    const auto p = random_problem<float>(seed, false);
    const Matrix<float> expected_bits = kRun(p);
    p.with_operator([&](const auto& op) {
      for (Index offset : {1, 3, 7, 15}) {
        // Rows of q, k and v with a gap of `offset` floats, beginning `offset` floats later.
        const auto displaced = [offset](const Matrix<float>& m) {
          Matrix<float> wide = Matrix<float>::Constant(m.rows() + 1, m.cols() + offset, NAN);
          wide.bottomRightCorner(m.rows(), m.cols()) = m;
          return wide;
        };
        const Matrix<float> q = displaced(p.q), k = displaced(p.k), v = displaced(p.v);
        auto in = p.inputs();
        in.q = q.bottomRightCorner(p.q.rows(), p.q.cols());
        in.k = k.bottomRightCorner(p.k.rows(), p.k.cols());
        in.v = v.bottomRightCorner(p.v.rows(), p.v.cols());
        Matrix<float> out = unwritten<float>(p.q.rows() + 1, p.v.cols() + offset);
        bidirectional(in, p.query_blocks, p.key_blocks, p.mixing(), op,
                      out.bottomRightCorner(p.q.rows(), p.v.cols()));
        EXPECT_TRUE(
            same_bits(expected_bits, Matrix<float>(out.bottomRightCorner(p.q.rows(), p.v.cols()))))
            << offset << " " << p.text();
      }
    });
  }
}

TEST(Bidirectional, ColumnMajorAndBroadcastViewsGiveTheSameBits) {
  Random rng(7);
  const Index n = 45, d = 5, e = 6;
  const Matrix<float> row = rng.matrix<float>(1, d), v = rng.matrix<float>(n, e);
  const Matrix<float> q = row.replicate(n, 1);
  const Eigen::MatrixXf v_by_columns = v;
  const Contiguous blocks(n, 10);
  const auto mixing = locality<float>(blocks.blocks());
  Matrix<float> plain(n, e), strided(n, e);
  bidirectional(Inputs<float>{.q = q, .k = q, .v = v}, blocks, blocks, mixing, Operator{}, plain);
  const MatrixView<const float> broadcast(row.data(), n, d, 0);
  bidirectional(Inputs<float>{.q = broadcast, .k = broadcast, .v = v_by_columns}, blocks, blocks,
                mixing, Operator{}, strided);
  EXPECT_TRUE(same_bits(plain, strided));
}

TEST(Bidirectional, MaskedTokensReachNoOutput) {
  for (std::uint64_t seed = 0; seed < 2000; ++seed) {
    auto p = random_problem<float>(seed, false);
    if (p.key_mask.size() == 0 && p.query_mask.size() == 0) continue;
    const Matrix<float> clean = kRun(p);
    for (Index t = 0; t < p.key_mask.cols(); ++t) {
      if (p.key_mask(0, t)) continue;
      p.k.row(t).setConstant(NAN);
      p.v.row(t).setConstant(t % 2 == 0 ? NAN : INFINITY);
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

TEST(Bidirectional, WeightsSumToOneWithKeySum) {
  Random rng(3);
  const Contiguous blocks(60, 7);
  const Matrix<double> q = rng.matrix<double>(60, 8), k = rng.matrix<double>(60, 8);
  const Matrix<double> ones = Matrix<double>::Ones(60, 2);
  const auto mixing = locality<double>(blocks.blocks());
  const Matrix<double> o = bidirectional(q, k, ones, blocks, mixing);
  // Numerator and denominator are sums of the same positive terms: two chains and a division.
  const double bound = 2 * gamma(7 + 9 + 8 + 3, 0x1p-53);
  EXPECT_LE((o.array() - 1).abs().maxCoeff(), bound);
  const Matrix<double> released =
      bidirectional(q.topRows(56).eval(), k.topRows(56).eval(), ones.topRows(56).eval(),
                    Contiguous(56, 7), locality<double>(8), Operator{Relu{}, Relu{}, CrossQuery{}});
  EXPECT_GT((released.array() - 1).abs().maxCoeff(), 0.01);  // no normalisation, as documented
}

TEST(Bidirectional, IdentityMixingIsAttentionInsideBlocks) {
  Random rng(4);
  const Matrix<float> q = rng.matrix<float>(48, 6), k = rng.matrix<float>(48, 6),
                      v = rng.matrix<float>(48, 5);
  const MixingMatrix<float> identity(Matrix<float>::Identity(3, 3));
  const MixingMatrix<float> one(Matrix<float>::Ones(1, 1));
  const Matrix<float> o = bidirectional(q, k, v, Contiguous(48, 16), identity);
  for (Index b = 0; b < 3; ++b) {
    const auto part = [b](const Matrix<float>& m) { return m.middleRows(16 * b, 16).eval(); };
    EXPECT_TRUE(
        same_bits(part(o), bidirectional(part(q), part(k), part(v), Contiguous(16, 16), one)));
  }
}

TEST(Bidirectional, ScalingValuesByAPowerOfTwoScalesOutputsBitwise) {
  for (std::uint64_t seed = 0; seed < 500; ++seed) {
    auto p = random_problem<float>(seed, false);
    const Matrix<float> before = kRun(p);
    p.v *= 8;
    EXPECT_TRUE(same_bits(Matrix<float>(before * 8), kRun(p))) << p.text();
  }
}

TEST(Bidirectional, PermutingBlocksWithTheMixingMatrixPermutesOutputs) {
  Random rng(5);
  const Index m = 6, w = 5;
  const Matrix<double> x = rng.matrix<double>(m * w, 4), mixing = rng.matrix<double>(m, m, 0, 1);
  const Index order[m] = {3, 0, 5, 1, 4, 2};
  Matrix<double> y(m * w, 4), permuted(m, m);
  for (Index i = 0; i < m; ++i) {
    y.middleRows(i * w, w) = x.middleRows(order[i] * w, w);
    for (Index b = 0; b < m; ++b) permuted(i, b) = mixing(order[i], order[b]);
  }
  const Contiguous blocks(m * w, w);
  const Matrix<double> o = bidirectional(x, x, x, blocks, MixingMatrix<double>(mixing));
  const Matrix<double> p = bidirectional(y, y, y, blocks, MixingMatrix<double>(permuted));
  const double bound = 4 * gamma(m + w + 4 + 3, 0x1p-53) * 4;  // |o| <= 1, condition below 4
  for (Index i = 0; i < m; ++i) {
    EXPECT_LE((p.middleRows(i * w, w) - o.middleRows(order[i] * w, w)).cwiseAbs().maxCoeff(),
              bound);
  }
}

TEST(Bidirectional, NoTokensAndNoKeys) {
  const Matrix<float> none(0, 3), three = Matrix<float>::Ones(3, 3);
  const auto mixing = locality<float>(1);
  EXPECT_EQ(bidirectional(none, none, none, Contiguous(0, 4), mixing).rows(), 0);
  Matrix<float> out = unwritten<float>(3, 3);
  bidirectional(Inputs<float>{.q = three, .k = none, .v = none}, Contiguous(3, 3), Contiguous(0, 4),
                mixing, Operator{Relu{}, Relu{}, NoNormalizer{}}, out);
  EXPECT_TRUE((out.array() == 0).all());
  bidirectional(Inputs<float>{.q = three, .k = none, .v = none}, Contiguous(3, 3), Contiguous(0, 4),
                mixing, Operator{}, out);
  EXPECT_TRUE(out.array().isNaN().all());  // 0 / 0
}

TEST(Bidirectional, RejectsWhatDoesNotFitAndTouchesNothing) {
  const Matrix<float> q = Matrix<float>::Ones(8, 4), v = Matrix<float>::Ones(8, 3);
  const Matrix<float> short_v = v.topRows(7), wide_k = Matrix<float>::Ones(8, 5);
  const Contiguous blocks(8, 4), other(9, 4);
  const auto mixing = locality<float>(2), wrong = locality<float>(3);
  Matrix<float> out = unwritten<float>(8, 3), small(7, 3);
  const Inputs<float> good{.q = q, .k = q, .v = v};
  const auto call = [&](Inputs<float> in, const auto& qb, const auto& kb, const auto& m,
                        MatrixView<float> o, Workspace ws = {}) {
    return [=, &m] { bidirectional(in, qb, kb, m, Operator{}, o, ws); };
  };
  EXPECT_EQ(
      message_of<shape_error>(call({.q = q, .k = q, .v = short_v}, blocks, blocks, mixing, out)),
      "mhla::bidirectional: v has shape [7, 3], expected [8, any]");
  EXPECT_EQ(
      message_of<shape_error>(call({.q = q, .k = wide_k, .v = v}, blocks, blocks, mixing, out)),
      "mhla::bidirectional: k has width 5, 5 after the feature map, expected 4 features "
      "(those of q)");
  EXPECT_EQ(message_of<shape_error>(call(good, blocks, blocks, mixing, small)),
            "mhla::bidirectional: out has shape [7, 3], expected [8, 3]");
  EXPECT_EQ(message_of<shape_error>(call(good, blocks, other, mixing, out)),
            "mhla::bidirectional: key_blocks covers 9 of 9 tokens, expected 8 tokens, all of them");
  EXPECT_EQ(message_of<shape_error>(call(good, blocks, blocks, wrong, out)),
            "mhla::bidirectional: mixing has shape [3, 3], expected [2, 2] (query blocks, key "
            "blocks)");
  std::byte few[16];
  const std::string too_small =
      message_of<option_error>(call(good, blocks, blocks, mixing, out, few));
  EXPECT_NE(too_small.find("workspace has 16 bytes, expected at least "), std::string::npos)
      << too_small;
  Inputs<float> null = good;
  null.k.data = nullptr;
  EXPECT_EQ(message_of<option_error>(call(null, blocks, blocks, mixing, out)),
            "mhla::bidirectional: k is null with shape [8, 4], expected a pointer to data");
  const bool keep[5] = {};
  Inputs<float> masked = good;
  masked.key_mask = {keep, 5};
  EXPECT_EQ(message_of<shape_error>(call(masked, blocks, blocks, mixing, out)),
            "mhla::bidirectional: key_mask has 5 entries, expected 8 (one for each token)");
  Inputs<float> half_normalizer = good;
  half_normalizer.normalizer_q = q;
  EXPECT_EQ(message_of<option_error>(call(half_normalizer, blocks, blocks, mixing, out)),
            "mhla::bidirectional: normalizer_k is absent, expected both normalizer_q and "
            "normalizer_k, or none");
  EXPECT_EQ(message_of<option_error>([&] {
              bidirectional(good, BlockSizes({3, 5}), BlockSizes({3, 5}), mixing,
                            Operator{Relu{}, Relu{}, CrossQuery{}}, out);
            }),
            "mhla::bidirectional: normalizer is CrossQuery with blocks of 3 and 5 tokens, expected "
            "query blocks of one size");
  AnyPartition gap;
  gap.resize(1);
  gap.add(0, {0, 4});
  EXPECT_EQ(
      message_of<shape_error>(call(good, gap, gap, locality<float>(1), out)),
      "mhla::bidirectional: query_blocks covers 4 of 4 tokens, expected 8 tokens, all of them");
  EXPECT_TRUE(out.array().isNaN().all());
}

}  // namespace
}  // namespace mhla::test

#include "mhla/fit/fit_mixing.hpp"

#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "mhla/attention/bidirectional.hpp"
#include "mhla/attention/causal.hpp"
#include "mhla/attention/diagnose.hpp"
#include "mhla/attention/softmax.hpp"
#include "mhla/fit/change_bound.hpp"
#include "mhla/fit/fit_decay.hpp"
#include "mhla/fit/resize.hpp"
#include "mhla/policy/locality.hpp"
#include "mhla/policy/mixing_constraints.hpp"
#include "support/message_of.hpp"
#include "support/random.hpp"

namespace mhla::test {
namespace {

/// Self-attention whose tokens resemble their neighbours.
struct Walk {
  Matrix<double> x, v;
  Walk() : x(192, 8), v(192, 6) {
    Random rng(1);
    for (Index t = 0; t < x.rows(); ++t) {
      for (Index j = 0; j < 8; ++j) x(t, j) = (t > 0 ? 0.9 * x(t - 1, j) : 0) + rng.normal();
      for (Index j = 0; j < 6; ++j) v(t, j) = (t > 0 ? 0.9 * v(t - 1, j) : 0) + rng.normal();
    }
  }
  Inputs<double> in() const { return inputs(x, x, v); }
};

double error(const Matrix<double>& out, const Matrix<double>& target) {
  return (out - target).norm() / target.norm();
}

TEST(FitMixing, ComesNearerToSoftmaxThanItsStartAndSaysHowNear) {
  const Walk walk;
  const Contiguous blocks(192, 12);
  const Operator op{Relu{}};
  const MixingMatrix<double> start = locality<double>(16);
  const Matrix<double> both = softmax_bidirectional(walk.in()), past = softmax_causal(walk.in());
  const auto fitted = fit_mixing(walk.in(), blocks, op, both, start);
  EXPECT_NEAR(fitted.before.total, error(bidirectional(walk.in(), blocks, start, op), both), 1e-9);
  EXPECT_NEAR(fitted.after.total, error(bidirectional(walk.in(), blocks, fitted.mixing, op), both),
              1e-9);
  EXPECT_LT(fitted.after.total, 0.65 * fitted.before.total);

  const auto causal_fit =
      fit_mixing(walk.in(), blocks, op, past, start, {}, {.order = Order::kCausal});
  EXPECT_NEAR(causal_fit.after.total, error(causal(walk.in(), blocks, causal_fit.mixing, op), past),
              1e-9);
  EXPECT_LT(causal_fit.after.total, 0.7 * causal_fit.before.total);
}

TEST(FitMixing, MoreRoundsMakeNoRowWorse) {
  const Walk walk;
  const Contiguous blocks(192, 12);
  const Matrix<double> target = softmax_bidirectional(walk.in());
  std::vector<double> last(16, 1e9);
  for (const Index rounds : {1, 2, 5}) {
    const auto fitted = fit_mixing(walk.in(), blocks, Operator{Relu{}}, target,
                                   locality<double>(16), {}, {.rounds = rounds});
    for (std::size_t i = 0; i < 16; ++i) {
      EXPECT_LE(fitted.after.of_block[i], last[i] + 1e-12) << rounds;
      last[i] = fitted.after.of_block[i];
    }
  }
}

/// A tiny problem of positive queries, keys and coefficients.
struct Tiny {
  Matrix<double> q, k, v, target;
  Contiguous blocks;
  MixingMatrix<double> start;
  explicit Tiny(Random& rng)
      : blocks(rng.integer(2, 12), rng.integer(1, 4)),
        start(rng.matrix<double>(blocks.blocks(), blocks.blocks(), 0.1, 1)) {
    const Index n = blocks.tokens(), d = rng.integer(1, 4), e = rng.integer(1, 4);
    q = rng.matrix<double>(n, d, 0, 1), k = rng.matrix<double>(n, d, 0, 1);
    v = rng.matrix<double>(n, e), target = rng.matrix<double>(n, e);
  }
  FittedMixing<double> fit(const FitOptions<double>& options = {}, Index rounds = 3) const {
    return fit_mixing(inputs(q, k, v), blocks, Operator{Relu{}}, target, start, options,
                      {.rounds = rounds});
  }
};

TEST(FitMixing, IsNoWorseThanTheStart) {
  Random rng(6);
  int kept = 0;
  for (int problem = 0; problem < 2000; ++problem) {
    Tiny tiny(rng);
    if (problem % 2 == 1) normalize_rows(tiny.start.view());
    const FittedMixing<double> fitted = tiny.fit({.sum_to_one = problem % 2 == 1});
    ASSERT_EQ(fitted.before.left_out + fitted.after.left_out, 0) << problem;
    ASSERT_LE(fitted.after.total, fitted.before.total) << problem;
    for (std::size_t i = 0; i < fitted.before.of_block.size(); ++i) {
      ASSERT_LE(fitted.after.of_block[i], fitted.before.of_block[i]) << problem;
      kept += fitted.after.of_block[i] == fitted.before.of_block[i];
    }
  }
  EXPECT_GT(kept, 20);
}

TEST(FitMixing, RowsOfTheStartThatDoNotFulfilTheOptionsAreNoCandidates) {
  Random rng(7);
  for (int problem = 0; problem < 500; ++problem) {
    Tiny tiny(rng);
    const Index blocks = tiny.start.rows();
    if (blocks == 1) continue;
    const MixingMatrix<double> prior = locality<double>(blocks);
    const Matrix<double> few = tiny.fit({.nonzeros = 1}).mixing.dense(),
                         sums = tiny.fit({.sum_to_one = true}).mixing.dense();
    for (Index i = 0; i < blocks; ++i) {
      ASSERT_LE((few.row(i).array() != 0).count(), 1) << problem;
      ASSERT_NEAR(sums.row(i).sum(), 1, 1e-12) << problem;
    }
    normalize_rows(tiny.start.view());
    const Matrix<double> pulled =
        tiny.fit({.ridge = 1e9, .prior = prior, .sum_to_one = true}).mixing.dense();
    ASSERT_LT((pulled - prior.dense()).cwiseAbs().maxCoeff(), 1e-3) << problem;
    tiny.start.at(0, 0) = -1e-6;
    ASSERT_GE(tiny.fit().mixing.dense().minCoeff(), 0) << problem;
  }
}

TEST(FitMixing, IsInfinitelyFarFromTargetsOfZero) {
  const Walk walk;
  const Matrix<double> zero = Matrix<double>::Zero(walk.v.rows(), walk.v.cols());
  const auto fitted =
      fit_mixing(walk.in(), Contiguous(192, 12), Operator{Relu{}}, zero, locality<double>(16));
  EXPECT_EQ(fitted.before.total, std::numeric_limits<double>::infinity());
  EXPECT_EQ(fitted.after.of_block[3], std::numeric_limits<double>::infinity());
  EXPECT_NE(fitted.mixing.view()(3, 3), locality<double>(16).view()(3, 3));  // one round, not none
}

/// Every function of this folder takes the matrix of one head.
TEST(FitMixing, RefusesSeveralMatrices) {
  const Matrix<double> x = Random(1).matrix<double>(16, 3);
  const Contiguous blocks(16, 4);
  const MixingMatrix<double> one = uniform_causal<double>(4), two = per_head(one, 2);
  const auto in = inputs(x, x, x);
  const auto text = [](auto&& call) { return message_of<shape_error>(call); };
  EXPECT_EQ(text([&] { fit_mixing(in, blocks, Operator{EluPlusOne{}}, x, two); }),
            "mhla::MixingFit: start has 2 matrices, expected one, such as matrix(0)");
  const std::string rest = " has 2 matrices, expected one, such as matrix(0)";
  MixingFit<double> fit(one);
  fit.add(in, blocks, Operator{EluPlusOne{}}, x);
  EXPECT_EQ(text([&] { fit.residual(two); }), "mhla::MixingFit::residual: m" + rest);
  EXPECT_EQ(text([&] { fit.solve({.ridge = 1, .prior = two}); }),
            "mhla::MixingFit::solve: prior" + rest);
  EXPECT_EQ(text([&] { fit_decay(two.view()); }), "mhla::fit_decay: m" + rest);
  EXPECT_EQ(text([&] { resize(two, {4}, {8}); }), "mhla::resize: m" + rest);
  EXPECT_EQ(text([&] { mixing_change_bound(in, blocks, two, one, Operator{EluPlusOne{}}); }),
            "mhla::mixing_change_bound: mixing has 2 matrices, expected 1, for one head");
  EXPECT_EQ(text([&] { mixing_change_bound(in, blocks, one, two, Operator{EluPlusOne{}}); }),
            "mhla::mixing_change_bound: replacement" + rest);
  EXPECT_EQ(text([&] { diagnose(in, blocks, two); }),
            "mhla::bidirectional: mixing has 2 matrices, expected 1, for one head");
}

TEST(FitMixing, RefusesNoRound) {
  const Walk walk;
  EXPECT_EQ(message_of<option_error>([&] {
              fit_mixing(walk.in(), Contiguous(192, 12), Operator{Relu{}}, walk.v,
                         locality<double>(16), {}, {.rounds = 0});
            }),
            "mhla::fit_mixing: rounds is 0, expected at least 1");
}

}  // namespace
}  // namespace mhla::test

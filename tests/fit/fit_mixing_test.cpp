#include "mhla/fit/fit_mixing.hpp"

#include <gtest/gtest.h>

#include <limits>

#include "mhla/attention/bidirectional.hpp"
#include "mhla/attention/causal.hpp"
#include "mhla/attention/softmax.hpp"
#include "mhla/policy/locality.hpp"
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

TEST(FitMixing, IsInfinitelyFarFromTargetsOfZero) {
  const Walk walk;
  const Matrix<double> zero = Matrix<double>::Zero(walk.v.rows(), walk.v.cols());
  const auto fitted =
      fit_mixing(walk.in(), Contiguous(192, 12), Operator{Relu{}}, zero, locality<double>(16));
  EXPECT_EQ(fitted.before.total, std::numeric_limits<double>::infinity());
  EXPECT_EQ(fitted.after.of_block[3], std::numeric_limits<double>::infinity());
  EXPECT_NE(fitted.mixing.view()(3, 3), locality<double>(16).view()(3, 3));  // one round, not none
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

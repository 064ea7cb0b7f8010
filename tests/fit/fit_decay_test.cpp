#include "mhla/fit/fit_decay.hpp"

#include <gtest/gtest.h>

#include <cmath>

#include "mhla/attention/causal.hpp"
#include "mhla/attention/causal_decay.hpp"
#include "mhla/attention/softmax.hpp"
#include "mhla/policy/locality.hpp"
#include "support/message_of.hpp"
#include "support/random.hpp"

namespace mhla::test {
namespace {

double largest_difference(const DecayMixing<double>& a, const MixingMatrix<double>& b) {
  return (decay_matrix(a, b.rows()).dense() - b.dense()).cwiseAbs().maxCoeff();
}

TEST(FitDecay, FindsTheTermsOfAMatrix) {
  const MixingMatrix<double> one = decay_matrix(DecayMixing<double>({0.7}, {0.8}), 32);
  EXPECT_EQ(fit_decay(one, 1).view().terms(), 1);
  EXPECT_LT(largest_difference(fit_decay(one, 1), one), 0.01);
  const MixingMatrix<double> two = decay_matrix(DecayMixing<double>({0.7, 0.2}, {0.3, 0.98}), 64);
  EXPECT_LT(largest_difference(fit_decay(two, 2), two), 0.02);
  EXPECT_GT(largest_difference(fit_decay(two, 1), two), 0.05);
  const MixingMatrix<double> ends = decay_matrix(DecayMixing<double>({0.7, 0.2}, {0, 1}), 16);
  EXPECT_LT(largest_difference(fit_decay(ends, 2), ends), 1e-12);
}

TEST(FitDecay, NothingNonnegativeForANegativeMatrix) {
  const Matrix<double> negative = -Matrix<double>::Ones(4, 4);
  const DecayMixing<double> none = fit_decay(MixingMatrix<double>(negative));
  EXPECT_EQ(decay_matrix(none, 4).dense(), (Matrix<double>::Zero(4, 4)));
}

/// A causal sequence of one head.
struct CausalTokens {
  Matrix<double> q, k, v;
  CausalTokens() {
    Random rng(1);
    q = rng.matrix<double>(256, 8), k = rng.matrix<double>(256, 8), v = rng.matrix<double>(256, 6);
  }
  Inputs<double> in() const { return inputs(q, k, v); }
};

TEST(FitDecay, FindsTheTermsBehindOutputs) {
  const CausalTokens tokens;
  const Contiguous blocks(256, 8);
  const DecayMixing<double> made({0.5, 0.1}, {0.6, 0.97});
  for (const bool divides : {true, false}) {
    const auto check = [&](const auto& op) {
      MixingFit<double> fit(lower_triangle(locality<double>(32)), Order::kCausal);
      fit.add(tokens.in(), blocks, op, causal(tokens.in(), blocks, made, op));
      const MixingMatrix<double> m = decay_matrix(fit_decay(fit, 2), 32);
      EXPECT_LT(fit.residual(m).total, 0.03);
      EXPECT_GT(fit.residual(decay_matrix(fit_decay(fit, 1), 32)).total, 2 * fit.residual(m).total);
    };
    divides ? check(Operator{Relu{}}) : check(Operator{Relu{}, Relu{}, NoNormalizer{}});
  }
}

TEST(FitDecay, MoreTermsAreNotWorseThanFewAndNoneIsBetterThanAnyMatrix) {
  const CausalTokens tokens;
  const Operator op{Relu{}, Relu{}, NoNormalizer{}};
  MixingFit<double> fit(lower_triangle(locality<double>(32)), Order::kCausal);
  fit.add(tokens.in(), Contiguous(256, 8), op, softmax_causal(tokens.in()));
  double last = 1e9;
  for (const Index terms : {1, 2, 4}) {
    const double residual = fit.residual(decay_matrix(fit_decay(fit, terms), 32)).total;
    EXPECT_LE(residual, last * (1 + 1e-3)) << terms;
    last = residual;
  }
  EXPECT_LT(fit.residual(fit.solve()).total, last);
}

TEST(FitDecay, RefusesWhatIsNoCausalMatrix) {
  const MixingFit<double> fit(locality<double>(4)), causal(locality<double>(4), Order::kCausal);
  EXPECT_EQ(message_of<option_error>([&] { fit_decay(fit); }),
            "mhla::fit_decay: fit is bidirectional, expected a causal one");
  EXPECT_EQ(message_of<option_error>([&] { fit_decay(causal, 0); }),
            "mhla::fit_decay: terms is 0, expected at least 1");
  const MixingMatrix<double> wide(Matrix<double>::Ones(2, 3));
  EXPECT_EQ(message_of<shape_error>([&] { fit_decay(wide); }),
            "mhla::fit_decay: m has shape [2, 3], expected [2, 2] (query blocks, key blocks)");
  const MixingMatrix<double> endless(Matrix<double>::Constant(2, 2, std::nan("")));
  EXPECT_EQ(message_of<option_error>([&] { fit_decay(endless); }),
            "mhla::fit_decay: m has a coefficient that is not finite, expected finite ones");
  Matrix<double> above = Matrix<double>::Ones(2, 2);
  above(0, 1) = std::nan("");  // not read
  EXPECT_NO_THROW(fit_decay(MixingMatrix<double>(above)));
}

}  // namespace
}  // namespace mhla::test

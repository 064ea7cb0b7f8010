#include "mhla/fit/mixing_fit.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "mhla/attention/linear.hpp"
#include "mhla/attention/softmax.hpp"
#include "mhla/policy/locality.hpp"
#include "mhla/policy/mixing_constraints.hpp"
#include "support/message_of.hpp"
#include "support/random.hpp"

namespace mhla::test {
namespace {

using Fit = MixingFit<double>;

/// One head of positive queries and keys, and values.
struct Head {
  Matrix<double> q, k, v;
  Inputs<double> in() const { return inputs(q, k, v); }
  Head(std::uint64_t seed, Index n, Index d, Index e) {
    Random rng(seed);
    q = rng.matrix<double>(n, d), k = rng.matrix<double>(n, d), v = rng.matrix<double>(n, e);
  }
};

TEST(MixingFit, ResidualsAreOfMatricesOfThePattern) {
  const Head head(10, 24, 4, 4);
  Fit fit(MixingMatrix<double>(Pattern(4, {{0}, {1, 3}, {2}, {3}})));
  fit.add(head.in(), Contiguous(24, 6), Operator{Relu{}, Relu{}, NoNormalizer{}}, head.v);
  EXPECT_NO_THROW(fit.residual(fit.solve()));
  EXPECT_EQ(message_of<option_error>([&] { fit.residual(MixingMatrix<double>(Pattern(4, 4))); }),
            "no exception");
  EXPECT_EQ(message_of<option_error>([&] { fit.residual(locality<double>(4)); }),
            "mhla::MixingFit::residual: m has a coefficient at [0, 1], expected those that the "
            "start has, of which there are sums");
}

TEST(MixingFit, FindsTheMatrixThatMadeTheTarget) {
  const Head head(1, 128, 8, 16);
  const Contiguous blocks(128, 16);
  const Operator op{Relu{}};
  Random rng(2);
  Matrix<double> made = rng.matrix<double>(8, 8, -0.5, 1).cwiseMax(0.0);
  made.diagonal().setOnes();
  MixingMatrix<double> m(made);
  Fit fit(locality<double>(8));
  fit.add(head.in(), blocks, op, bidirectional(head.in(), blocks, m, op));
  MixingMatrix<double> fitted = fit.solve();
  EXPECT_LT(fit.residual(fitted).total, 1e-7);
  normalize_rows(m.view());
  normalize_rows(fitted.view());
  EXPECT_LT((fitted.dense() - m.dense()).cwiseAbs().maxCoeff(), 1e-9);
}

TEST(MixingFit, LosesNothingOfLinearAttention) {
  const Head head(3, 120, 6, 10);
  const Contiguous blocks(120, 11);
  for (const bool divides : {true, false}) {
    const auto losses = [&](const auto& op) {
      Fit both(locality<double>(11)), causal(lower_triangle(locality<double>(11)), Order::kCausal);
      both.add(head.in(), blocks, op, linear_bidirectional(head.in(), op));
      causal.add(head.in(), blocks, op, linear_causal(head.in(), op));
      EXPECT_LT(both.residual(both.solve()).total, 1e-7);
      EXPECT_LT(causal.residual(causal.solve()).total, 1e-7);
      EXPECT_GT(both.residual(both.start()).total, 0.1);
    };
    divides ? losses(Operator{Relu{}}) : losses(Operator{Relu{}, Relu{}, NoNormalizer{}});
  }
}

TEST(MixingFit, KeepsBandNonzerosAndSum) {
  const Head head(4, 96, 8, 12);
  const Contiguous blocks(96, 8);
  const Operator op{Relu{}, Relu{}, NoNormalizer{}};
  const Matrix<double> target = softmax_bidirectional(head.in());
  const MixingMatrix<double> start =
      MixingMatrix<double>::banded(locality<double>(12).dense(), 2, 3);
  Fit fit(start);
  fit.add(head.in(), blocks, op, target);
  const MixingMatrix<double> any = fit.solve(), few = fit.solve({.nonzeros = 2}),
                             sums = fit.solve({.sum_to_one = true});
  EXPECT_EQ(any.pattern(), start.pattern());
  const auto total = [&](const MixingMatrix<double>& m) { return fit.residual(m).total; };
  EXPECT_LT(total(any), total(few));
  EXPECT_LT(total(any), total(sums));
  for (Index i = 0; i < 12; ++i) {
    EXPECT_LE((few.dense().row(i).array() > 0).count(), 2) << i;
    EXPECT_NEAR(sums.dense().row(i).sum(), 1, 1e-12) << i;
  }
  EXPECT_GT((any.dense().array() > 0).count(), 24);
}

TEST(MixingFit, SumsToOneScaleRowsWhereANormaliserDivides) {
  const Head head(4, 64, 8, 8);
  std::vector<unsigned char> keep(64, 1);
  std::fill(keep.end() - 16, keep.end(), 0);  // two blocks without keys, which nothing should read
  auto in = head.in();
  in.query_mask = in.key_mask = keep;
  for (const double ridge : {0.0, 0.1}) {
    Fit fit(locality<double>(8));
    fit.add(in, Contiguous(64, 8), Operator{Relu{}}, softmax_bidirectional(in));
    const MixingMatrix<double> prior = locality<double>(8);
    const Matrix<double> any = fit.solve({.ridge = ridge, .prior = prior}).dense(),
                         sums = fit.solve({.ridge = ridge, .prior = prior, .sum_to_one = true})
                                    .dense();
    for (Index i = 0; i < 6; ++i) {
      EXPECT_NEAR(sums.row(i).sum(), 1, 1e-12) << i;
      if (ridge > 0) continue;
      const auto row = any.row(i);
      EXPECT_LE((sums.row(i) - row / row.sum()).cwiseAbs().maxCoeff(), 1e-12) << i;
      EXPECT_EQ(sums.row(i).tail(2).maxCoeff(), 0) << i;
    }
  }
}

TEST(MixingFit, RidgePullsToThePrior) {
  const Head head(5, 64, 4, 6);
  const Contiguous blocks(64, 8);
  const MixingMatrix<double> prior = locality<double>(8);
  Fit fit{MixingMatrix<double>(Matrix<double>::Constant(8, 8, 0.125))};
  fit.add(head.in(), blocks, Operator{Relu{}}, softmax_bidirectional(head.in()));
  const auto distance = [&](double ridge) {
    return (fit.solve({.ridge = ridge, .prior = prior, .sum_to_one = true}).dense() - prior.dense())
        .norm();
  };
  EXPECT_LT(distance(1e6), 1e-4);
  EXPECT_GT(distance(0), 2 * distance(1));
  Fit band(MixingMatrix<double>::banded(Matrix<double>::Constant(8, 8, 0.3), 1, 1));
  band.add(head.in(), blocks, Operator{Relu{}}, softmax_bidirectional(head.in()));
  const MixingMatrix<double> pulled =
      band.solve({.ridge = 1e6, .prior = prior, .sum_to_one = true});
  for (Index i = 1; i < 7; ++i) {
    const double sum = prior(i, i - 1) + prior(i, i) + prior(i, i + 1);
    EXPECT_NEAR(pulled(i, i), prior(i, i) / sum, 1e-4) << i;
    EXPECT_NEAR(pulled(i, i + 1), prior(i, i + 1) / sum, 1e-4) << i;
  }
  Fit free(prior);
  free.add(head.in(), blocks, Operator{Relu{}, Relu{}, NoNormalizer{}}, head.v);
  EXPECT_LT(free.solve({.ridge = 1e9}).dense().maxCoeff(), 1e-6);
}

TEST(MixingFit, RowsOfBlocksWithoutQueriesKeepTheStart) {
  const Head head(6, 32, 4, 4);
  const MixingMatrix<double> start = locality<double>(6);
  Fit fit(start);
  bool keep[32] = {};
  for (Index t = 8; t < 32; ++t) keep[t] = true;
  Inputs<double> in = head.in();
  in.query_mask = Mask(keep, 32);
  fit.add(in, ContiguousBlocks{8}, Operator{Relu{}}, softmax_bidirectional(head.in()));
  const Matrix<double> m = fit.solve().dense();
  for (const Index i : {Index{0}, Index{4}, Index{5}}) EXPECT_EQ(m.row(i), start.dense().row(i));
  for (const Index i : {1, 2, 3}) EXPECT_NE(m.row(i), start.dense().row(i));
}

/// A batch of 2 sequences with 3 heads.
struct Batch {
  Tensor<float> q, k, v, target;
  Batch() : q({2, 40, 3, 5}), k(q), v({2, 40, 3, 7}), target(v) {
    Random rng(7);
    for (Tensor<float>* t : {&q, &k, &v, &target}) {
      for (float& x : t->data()) x = static_cast<float>(rng.uniform(-1, 1));
    }
  }
  BatchInputs<float> in() const { return inputs(q, k, v); }
};

TEST(MixingFit, TakesExamplesOfDifferentNormalizers) {
  const Head divided(8, 48, 4, 6), plain(9, 48, 4, 6);
  const Contiguous blocks(48, 8);
  const Operator key_sum{Relu{}};
  const Operator none{Relu{}, Relu{}, NoNormalizer{}};
  const Operator crossing{Relu{}, Relu{}, CrossQuery{}};
  Fit one(locality<double>(6)), other(locality<double>(6));
  one.add(divided.in(), blocks, key_sum, divided.v);
  one.add(plain.in(), blocks, none, plain.v);
  other.add(plain.in(), blocks, none, plain.v);
  other.add(divided.in(), blocks, key_sum, divided.v);
  const Matrix<double> m = one.solve().dense();
  EXPECT_LT((m - other.solve().dense()).cwiseAbs().maxCoeff(), 1e-9);
  for (Index i = 0; i < 6; ++i) {  // the mean denominator equals that of the start
    const auto& sums = one.sums(i);
    EXPECT_NEAR(m.row(i).dot(sums.sums.row(0)), sums.sum, 1e-9 * sums.sum) << i;
  }
  Fit crossed(locality<double>(6));
  crossed.add(plain.in(), blocks, crossing, plain.v);
  crossed.add(plain.in(), blocks, none, plain.v);
  const std::vector<Index> pairs{0, 0, 1, 1, 2, 2};
  EXPECT_THROW(crossed.coarser(pairs), option_error);
  EXPECT_NO_THROW(one.coarser(pairs));
}

TEST(MixingFit, ThreadsAndBatchesChangeNoBit) {
  const Batch batch;
  const Contiguous blocks(40, 6);
  const Operator op{EluPlusOne{}};
  ThreadPool pool(3);
  MixingFit<float> one(locality(7)), many(locality(7)), apart(locality(7));
  one.add(batch.in(), blocks, op, batch.target);
  many.add(batch.in(), blocks, op, batch.target, pool);
  const BatchInputs<float> in = batch.in();
  for (Index s = 0; s < 2; ++s) {
    for (Index h = 0; h < 3; ++h) {
      apart.add(Inputs<float>{.q = in.q.head(s, h, 0, 40),
                              .k = in.k.head(s, h, 0, 40),
                              .v = in.v.head(s, h, 0, 40)},
                blocks, op, TensorView<const float>(batch.target).head(s, h, 0, 40));
    }
  }
  const Matrix<float> m = one.solve().dense();
  EXPECT_EQ(m, many.solve({}, pool).dense());
  EXPECT_EQ(m, apart.solve().dense());
  EXPECT_EQ(one.residual(one.start()).of_block, apart.residual(apart.start()).of_block);
}

TEST(MixingFit, RefusesWhatDoesNotFitAndAddsNothing) {
  const Head head(10, 24, 4, 4);
  const Contiguous blocks(24, 6);
  Matrix<double> target = softmax_bidirectional(head.in());
  const Operator op{Relu{}};
  Fit fit(locality<double>(4)), causal(locality<double>(4), Order::kCausal);
  fit.add(head.in(), blocks, op, target);
  const FitResidual before = fit.residual(fit.start());
  const auto shape = [](auto&& call) { return message_of<shape_error>(call); };
  const auto option = [](auto&& call) { return message_of<option_error>(call); };
  EXPECT_EQ(shape([&] { fit.add(head.in(), blocks, op, target.topRows(23).eval()); }),
            "mhla::MixingFit::add: target has shape [23, 4], expected [24, 4]");
  EXPECT_EQ(shape([&] { fit.add(head.in(), Contiguous(24, 5), op, target); }),
            "mhla::MixingFit::add: mixing has shape [4, 4], expected [5, 5] (query blocks, key "
            "blocks)");
  EXPECT_EQ(option([&] {
              causal.add(head.in(), CrossBlocks{blocks, blocks}, op, target);
            }),
            "mhla::MixingFit::add: blocks are those of cross-attention, expected one partition");
  target(7, 1) = std::nan("");
  EXPECT_EQ(option([&] { fit.add(head.in(), blocks, op, target); }),
            "mhla::MixingFit::add: example gives numbers that are not finite, in query block 1, "
            "expected finite inputs and targets");
  Matrix<double> q = head.q;
  q(13, 2) = std::nan("");
  EXPECT_EQ(option([&] { fit.add(inputs(q, head.k, head.v), blocks, op, head.v); }),
            "mhla::MixingFit::add: example gives numbers that are not finite, in query block 2, "
            "expected finite inputs and targets");
  EXPECT_EQ(fit.residual(fit.start()).of_block, before.of_block);
  for (const double ridge : {-1.0, std::nan("")}) {
    EXPECT_EQ(option([&] { fit.solve({.ridge = ridge}); }),
              "mhla::MixingFit::solve: options have a ridge of " + std::to_string(ridge) +
                  " and nonzeros 0, expected finite numbers >= 0");
  }
  EXPECT_EQ(option([&] { fit.solve({.nonzeros = -1}); }),
            "mhla::MixingFit::solve: options have a ridge of 0.000000 and nonzeros -1, expected "
            "finite numbers >= 0");
  EXPECT_EQ(option([&] { fit.solve({.ridge = std::numeric_limits<double>::infinity()}); }),
            "mhla::MixingFit::solve: options have a ridge of inf and nonzeros 0, expected finite "
            "numbers >= 0");
  const MixingMatrix<double> small = locality<double>(3);
  EXPECT_EQ(shape([&] { fit.solve({.prior = small}); }),
            "mhla::MixingFit::solve: prior has shape [3, 3], expected [4, 4] (query blocks, key "
            "blocks)");
  MixingMatrix<double> endless = locality<double>(4);
  endless.at(2, 1) = std::numeric_limits<double>::infinity();
  EXPECT_EQ(option([&] { fit.solve({.ridge = 1, .prior = endless}); }),
            "mhla::MixingFit::solve: prior has a coefficient that is not finite, expected finite "
            "ones");
  EXPECT_EQ(shape([&] { fit.residual(small); }),
            "mhla::MixingFit::residual: m has shape [3, 3], expected [4, 4] (query blocks, "
            "key blocks)");
}

}  // namespace
}  // namespace mhla::test

#include "mhla/fit/suggest.hpp"

#include <gtest/gtest.h>

#include "mhla/attention/linear.hpp"
#include "mhla/attention/softmax.hpp"
#include "mhla/policy/locality.hpp"
#include "support/message_of.hpp"
#include "support/random.hpp"

namespace mhla::test {
namespace {

TEST(SuggestFromData, GivesTheCurveOfEveryHalving) {
  Random rng(1);
  const auto q = rng.matrix<double>(12 * 20, 6), v = rng.matrix<double>(12 * 20, 8);
  const auto in = inputs(q, q, v);
  const Operator op{Relu{}};
  const Matrix<double> target = softmax_bidirectional(in);
  const Grid blocks({12, 20}, {4, 4});
  MixingFit<double> fit(locality<double>(blocks));
  fit.add(in, blocks, op, target);
  const std::vector<BlockCountResidual> worth = suggest_from_data(fit, blocks.block_grid());
  ASSERT_EQ(worth.size(), 4u);
  const GridShape grids[] = {{3, 5}, {2, 3}, {1, 2}, {1, 1}};
  for (std::size_t k = 0; k < 4; ++k) {
    EXPECT_EQ(worth[k].queries, grids[k]);
    EXPECT_EQ(worth[k].keys, grids[k]);
    if (k > 0) {
      EXPECT_LT(worth[k - 1].residual, worth[k].residual);
    }
  }
  EXPECT_EQ(worth[0].residual, fit.residual(fit.solve()).total);
  // One block leaves no choice: the residual of linear attention, weighted by the start.
  MixingFit<double> one(locality<double>(1));
  one.add(in, Contiguous(240, 240), op, target);
  EXPECT_NEAR(one.residual(one.start()).total,
              (linear_bidirectional(in, op) - target).norm() / target.norm(), 1e-12);
  EXPECT_NEAR(worth[3].residual, one.residual(one.start()).total, 0.02);
}

TEST(SuggestFromData, CrossAttentionHalvesBothSides) {
  Random rng(2);
  const auto q = rng.matrix<double>(30, 6), k = rng.matrix<double>(48, 6),
             v = rng.matrix<double>(48, 4);
  const auto in = inputs(q, k, v);
  const Operator op{Relu{}, Relu{}, NoNormalizer{}};
  MixingFit<double> fit(MixingMatrix<double>(Matrix<double>::Constant(3, 8, 0.1)));
  fit.add(in, CrossBlocks{Contiguous(30, 10), Contiguous(48, 6)}, op, softmax_bidirectional(in));
  const std::vector<BlockCountResidual> worth = suggest_from_data(fit, 3, 8);
  ASSERT_EQ(worth.size(), 4u);
  EXPECT_EQ(worth[1].queries, GridShape(2));
  EXPECT_EQ(worth[1].keys, GridShape(4));
  EXPECT_EQ(worth[3].queries, GridShape(1));
}

TEST(SuggestFromData, PriorsOfFewerBlocksAreMeans) {
  Random rng(3);
  const auto x = rng.matrix<double>(64, 6), v = rng.matrix<double>(64, 4);
  const auto in = inputs(x, x, v);
  const Operator op{Relu{}, Relu{}, NoNormalizer{}};
  MixingFit<double> fit(locality<double>(8));
  fit.add(in, Contiguous(64, 8), op, softmax_bidirectional(in));
  const MixingMatrix<double> prior(rng.matrix<double>(8, 8).cwiseAbs());
  const auto worth = suggest_from_data(fit, 8, {.ridge = 0.5, .prior = prior});
  ASSERT_EQ(worth.size(), 4u);
  Matrix<double> means(4, 4);
  for (Index i = 0; i < 4; ++i) {
    for (Index b = 0; b < 4; ++b) means(i, b) = prior.dense().block(2 * i, 2 * b, 2, 2).mean();
  }
  const std::vector<Index> pairs{0, 0, 1, 1, 2, 2, 3, 3};
  const auto half = fit.coarser(pairs);
  const MixingMatrix<double> coarse(means);
  EXPECT_NEAR(worth[1].residual, half.residual(half.solve({.ridge = 0.5, .prior = coarse})).total,
              1e-12);
}

TEST(SuggestFromData, RefusesAnotherNumberOfBlocks) {
  const MixingFit<double> fit(locality<double>(4));
  EXPECT_EQ(message_of<shape_error>([&] { suggest_from_data(fit, GridShape(2, 3)); }),
            "mhla::suggest_from_data: fit has shape [4, 4], expected [6, 6] (query blocks, key "
            "blocks)");
  EXPECT_EQ(message_of<option_error>([&] { suggest_from_data(fit, 0); }),
            "mhla::suggest_from_data: queries is [1, 1, 0], expected sizes >= 1");
}

}  // namespace
}  // namespace mhla::test

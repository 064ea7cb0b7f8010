// MixingFit::coarser.

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "mhla/attention/softmax.hpp"
#include "mhla/fit/mixing_fit.hpp"
#include "mhla/policy/grid_partition.hpp"
#include "mhla/policy/locality.hpp"
#include "support/message_of.hpp"
#include "support/random.hpp"

namespace mhla::test {
namespace {

using Fit = MixingFit<double>;

/// Self-attention of one head, with the outputs of softmax attention as targets.
struct SoftmaxHead {
  Matrix<double> q, k, v, target;
  explicit SoftmaxHead(Index n) {
    Random rng(8);
    q = rng.matrix<double>(n, 6), k = rng.matrix<double>(n, 6), v = rng.matrix<double>(n, 8);
    target = softmax_bidirectional(in());
  }
  Inputs<double> in() const { return inputs(q, k, v); }
};

// The sums of coarser blocks are those of a fit with these blocks.
TEST(Coarser, IsTheFitOfCoarserBlocks) {
  const SoftmaxHead head(96);
  const auto compare = [&](const auto& fine, const auto& coarse, const auto& op, Order order,
                           std::vector<Index> queries, std::vector<Index> keys) {
    const Index mq = queries.back() + 1, mk = keys.back() + 1;
    const auto matrix = [&](Index rows, Index cols) {
      return MixingMatrix<double>(Matrix<double>::Constant(rows, cols, 0.25));
    };
    Fit from(matrix(static_cast<Index>(queries.size()), static_cast<Index>(keys.size())), order);
    Fit direct(matrix(mq, mk), order);
    from.add(head.in(), fine, op, head.target);
    direct.add(head.in(), coarse, op, head.target);
    const Fit merged = from.coarser(queries, keys);
    EXPECT_EQ(merged.start().rows(), mq);
    Random rng(9);
    const MixingMatrix<double> m(rng.matrix<double>(mq, mk, 0, 1));
    for (const auto* any : {&m, &direct.start()}) {
      const auto a = merged.residual(*any), b = direct.residual(*any);
      for (std::size_t i = 0; i < a.of_block.size(); ++i) {
        EXPECT_NEAR(a.of_block[i], b.of_block[i], 1e-9);
      }
      EXPECT_NEAR(a.total, b.total, 1e-9);
    }
    const Matrix<double> apart = merged.solve().dense() - direct.solve().dense();
    const bool causal = order == Order::kCausal;  // fits nothing above the diagonal
    EXPECT_LT((causal ? Matrix<double>(apart.triangularView<Eigen::Lower>()) : apart).norm(), 1e-7);
  };
  const Operator plain{Relu{}};
  const Operator none{Relu{}, Relu{}, NoNormalizer{}};
  const std::vector<Index> pairs{0, 0, 1, 1, 2, 2}, uneven{0, 0, 0, 0, 1, 2};
  compare(Contiguous(96, 16), Contiguous(96, 32), plain, Order::kBidirectional, pairs, pairs);
  compare(Contiguous(96, 16), Contiguous(96, 32), plain, Order::kCausal, pairs, pairs);
  compare(Contiguous(96, 16), BlockSizes({64, 16, 16}), none, Order::kCausal, uneven, uneven);
  compare(CrossBlocks{Contiguous(96, 16), Contiguous(96, 16)},
          CrossBlocks{Contiguous(96, 32), BlockSizes({64, 16, 16})}, none, Order::kBidirectional,
          pairs, uneven);
  compare(Grid({8, 12}, {2, 6}), Grid({8, 12}, {4, 12}), plain, Order::kBidirectional,
          {0, 0, 0, 0, 1, 1, 1, 1}, {0, 0, 0, 0, 1, 1, 1, 1});
}

TEST(Coarser, RefusesGroupsThatAreNone) {
  const auto coarser = [](const Fit& fit, std::vector<Index> queries, std::vector<Index> keys) {
    return message_of<error>([&] { fit.coarser(queries, keys); });
  };
  const Fit fit(locality<double>(4)), causal(locality<double>(4), Order::kCausal);
  const std::vector<Index> good{0, 0, 1, 1};
  EXPECT_EQ(coarser(fit, {0, 0, 1}, good),
            "mhla::MixingFit::coarser: queries has 3 entries, expected 4, a group for each block");
  EXPECT_EQ(coarser(fit, good, {0, 2, 2, 0}),
            "mhla::MixingFit::coarser: keys has no block in group 1, expected groups from 0 on, "
            "each with a block");
  EXPECT_EQ(coarser(fit, good, {0, -1, 0, 0}),
            "mhla::MixingFit::coarser: keys has a group -1, expected groups from 0 on, each with a "
            "block");
  const std::string ordered =
      "mhla::MixingFit::coarser: groups are not ascending, or not the same of queries and keys, "
      "expected blocks of consecutive tokens, as causality requires";
  EXPECT_EQ(coarser(causal, {1, 0, 0, 1}, {1, 0, 0, 1}), ordered);
  EXPECT_EQ(coarser(causal, good, {0, 1, 1, 1}), ordered);
  EXPECT_EQ(coarser(Fit(MixingMatrix<double>::banded(4, 4, 1, 1)), good, good),
            "mhla::MixingFit::coarser: fit starts from a band or lists of blocks, expected all "
            "coefficients");
  const SoftmaxHead head(24);
  Fit crossed(locality<double>(4));
  crossed.add(head.in(), Contiguous(24, 6), Operator{Relu{}, Relu{}, CrossQuery{}}, head.target);
  EXPECT_EQ(coarser(crossed, good, good),
            "mhla::MixingFit::coarser: fit has examples with CrossQuery, expected another "
            "normaliser");
}

}  // namespace
}  // namespace mhla::test

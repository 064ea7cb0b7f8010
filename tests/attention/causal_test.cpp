#include "mhla/attention/causal.hpp"

#include "contract/forward.hpp"
#include "mhla/policy/grid_partition.hpp"
#include "mhla/policy/locality.hpp"
#include "support/forward_forms.hpp"

namespace mhla::test {
namespace {

TEST_FORM(Causal, forward::Causal, float, double);

/// One head with the paper's maps that reads all earlier blocks with equal weights.
Problem<float> problem_of(Index n, const AnyPartition& blocks) {
  Random rng(static_cast<std::uint64_t>(n));
  Problem<float> p;
  p.causal = true;
  p.q = rng.matrix<float>(n, 5);
  p.k = rng.matrix<float>(n, 5);
  p.v = rng.matrix<float>(n, 3);
  p.query_map = p.key_map = {Relu{}};
  p.query_blocks = p.key_blocks = blocks;
  p.lower = p.upper = std::max<Index>(1, blocks.blocks());
  p.coefficients = uniform_causal<float>(p.lower).dense();
  return p;
}

Matrix<float> run(const Problem<float>& p) {
  return causal(p.inputs(), p.query_blocks, p.mixing(), p.op());
}

TEST(Causal, OnlyTheLowerTriangleOfTheLeadingPartOfTheMixingMatrixIsRead) {
  auto p = problem_of(30, AnyPartition::of(Contiguous(30, 5)));
  const Matrix<float> expected = run(p);
  p.coefficients.conservativeResize(9, 9);
  p.lower = p.upper = 9;
  for (Index i = 0; i < 9; ++i) {
    for (Index b = i < 6 ? i + 1 : 0; b < 9; ++b) p.coefficients(i, b) = NAN;
  }
  EXPECT_TRUE(same_bits(expected, run(p)));
}

TEST(Causal, EveryBlockLengthEqualsNaiveAttention) {
  Tally tally;
  for (Index w = 1; w <= 150; ++w) {
    const auto p = problem_of(150, AnyPartition::of(Contiguous(150, w)));
    compare(p, expected_of<forward::Causal>(p), run(p), "causal", tally);
  }
  EXPECT_EQ(tally.ill, 0);
}

TEST(Causal, PaddedOutTokensLeaveTheRestAsIfTheyWereNotThere) {
  Random rng(9);
  for (int repeat = 0; repeat < 100; ++repeat) {
    // Blocks of given sizes with some masked tokens, against the same blocks without these tokens.
    const Index n = repeat % 2 == 0 ? 40 : 300;
    std::vector<Index> sizes, kept_sizes;
    Matrix<bool> mask(1, n);
    for (Index token = 0; token < n; token += sizes.back()) {
      sizes.push_back(rng.integer(1, n - token));
      for (Index t = token; t < token + sizes.back(); ++t) mask(0, t) = rng.chance(0.6);
      kept_sizes.push_back(mask.middleCols(token, sizes.back()).count());
    }
    auto padded = problem_of(n, AnyPartition::of(BlockSizes(sizes)));
    auto alone = padded;
    alone.query_blocks = alone.key_blocks = AnyPartition::of(BlockSizes(kept_sizes));
    padded.query_mask = padded.key_mask = mask;
    const auto without = [&mask](const Matrix<float>& m) {
      Matrix<float> rows(mask.count(), m.cols());
      for (Index t = 0, row = 0; t < m.rows(); ++t) {
        if (mask(0, t)) rows.row(row++) = m.row(t);
      }
      return rows;
    };
    for (Matrix<float>* x : {&alone.q, &alone.k, &alone.v}) *x = without(*x);
    const Matrix<float> out = run(padded);
    EXPECT_TRUE(same_bits(without(out), run(alone)));
    for (Index t = 0; t < n; ++t) EXPECT_TRUE(mask(0, t) || out.row(t).isZero(0));
  }
}

TEST(Causal, BlocksOutOfTokenOrderAreRefused) {
  const Grid columns(GridShape(2, 4), GridShape(2, 2));
  EXPECT_EQ(message_of<option_error>([&] { run(problem_of(8, AnyPartition::of(columns))); }),
            "mhla::causal: blocks has a block 0 out of token order, expected blocks of consecutive "
            "tokens, one after another");
}

}  // namespace
}  // namespace mhla::test

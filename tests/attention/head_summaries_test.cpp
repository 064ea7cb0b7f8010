#include "mhla/attention/head_summaries.hpp"

#include <gtest/gtest.h>

#include "mhla/stage/partition.hpp"
#include "support/reference.hpp"

namespace mhla::test {
namespace {

/// z_b of every block, as the form sees them.   // [M, D or Dz]
template <class Op>
Matrix<double> key_sums(const Inputs<double>& in, const Contiguous& blocks, const Op& op) {
  const detail::HeadSizes sizes = detail::head_sizes(in, op);
  std::vector<std::byte> memory(1 << 16);
  detail::Arena arena(memory.data());
  const detail::HeadSummaries<double, Op> summaries("f", arena, sizes, blocks.blocks());
  detail::KeyScratch<double> scratch("f", arena, 8, 8, in.v.cols);
  Matrix<double> sums(blocks.blocks(), detail::key_sum_features(sizes));
  for (Index b = 0; b < blocks.blocks(); ++b) {
    summaries.summarize_block(in, blocks, b, op, scratch);
    for (Index j = 0; j < sums.cols(); ++j) sums(b, j) = summaries.key_sum(b)[j];
  }
  return sums;
}

Matrix<double> block_sums(const Matrix<double>& k, Index w) {
  Matrix<double> sums(k.rows() / w, k.cols());
  for (Index b = 0; b < sums.rows(); ++b) sums.row(b) = k.middleRows(b * w, w).colwise().sum();
  return sums;
}

TEST(HeadSummaries, KeySumsAreThoseOfTheNumeratorOrOfKeysOfTheirOwn) {
  Random rng(1);
  const Matrix<double> k = rng.matrix<double>(12, 5), own = rng.matrix<double>(12, 3);
  const Contiguous blocks(12, 4);
  const Operator op{Identity{}};
  Inputs<double> in{.q = k, .k = k, .v = k};
  const double bound = gamma(4, 0x1p-53) * 4;  // four terms of at most 1
  EXPECT_LE((key_sums(in, blocks, op) - block_sums(k, 4)).cwiseAbs().maxCoeff(), bound);
  in.normalizer_q = own;
  in.normalizer_k = own;
  EXPECT_LE((key_sums(in, blocks, op) - block_sums(own, 4)).cwiseAbs().maxCoeff(), bound);
}

}  // namespace
}  // namespace mhla::test

#include "mhla/attention/head_summaries.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "mhla/policy/partition.hpp"
#include "support/outputs.hpp"
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

/// Values of the summaries, z_b and what lies behind them in memory.
template <class T>
struct Places {
  std::vector<std::byte> memory;
  detail::Arena arena;
  detail::HeadSizes sizes;
  detail::HeadSummaries<T, Operator<Identity>> summaries;

  Places(const Inputs<T>& in, Index blocks)
      : memory(1 << 17, std::byte{0xFF}),
        arena(memory.data()),
        sizes(detail::head_sizes(in, Operator{Identity{}})),
        summaries("f", arena, sizes, blocks) {}

  /// Elements of S_b, all NaN or none.
  bool written(Index b) const {
    Index nans = 0;
    for (Index d = 0; d < sizes.features; ++d) {
      for (Index e = 0; e < sizes.values; ++e) nans += std::isnan(summaries.block(b).row(d)[e]);
    }
    for (Index j = 0; j < detail::key_sum_features(sizes); ++j) {
      nans += std::isnan(summaries.key_sum(b)[j]);
    }
    EXPECT_TRUE(nans == 0 || nans == sizes.features * sizes.values + key_sum_features(sizes));
    return nans == 0;
  }
};

TEST(HeadSummaries, ABlockIsSummarizedInTheGivenPlaceAlone) {
  Random rng(2);
  const Matrix<double> k = rng.matrix<double>(20, 5), v = rng.matrix<double>(20, 7),
                       own = rng.matrix<double>(20, 3);
  const Contiguous blocks(20, 4);
  const Operator op{Identity{}};
  Inputs<double> in{.q = k, .k = k, .v = v};
  for (const bool own_keys : {false, true}) {
    if (own_keys) in.normalizer_q = in.normalizer_k = own;
    Memory memory(100000);
    const detail::KeyScratch<double> scratch("f", memory.arena, 8, 8, 8);
    const Places<double> at_home(in, 5), elsewhere(in, 3);
    at_home.summaries.summarize_block(in, blocks, 4, op, scratch);
    elsewhere.summaries.summarize_block(in, blocks, 4, op, scratch, 1);
    for (Index b = 0; b < 5; ++b) EXPECT_EQ(at_home.written(b), b == 4);
    for (Index b = 0; b < 3; ++b) EXPECT_EQ(elsewhere.written(b), b == 1);
    const auto same = [](const double* x, const double* y, Index count) {
      return std::equal(x, x + count, y);
    };
    EXPECT_TRUE(same(at_home.summaries.key_sum(4), elsewhere.summaries.key_sum(1),
                     detail::key_sum_features(at_home.sizes)));
    for (Index d = 0; d < 5; ++d) {
      EXPECT_TRUE(same(at_home.summaries.block(4).row(d), elsewhere.summaries.block(1).row(d), 7));
    }
  }
}

TEST(HeadSummaries, ValuesAndKeySumsAreThoseOfAllBlocks) {
  Random rng(3);
  const Matrix<double> k = rng.matrix<double>(20, 11), own = rng.matrix<double>(20, 3);
  Inputs<double> in{.q = k, .k = k, .v = k};
  for (const Index features : {11, 3}) {
    if (features == 3) in.normalizer_q = in.normalizer_k = own;
    const Places<double> x(in, 5);
    const detail::Summaries<double>& all = x.summaries.values();
    EXPECT_EQ(all.blocks, 5);
    EXPECT_EQ(all.features, 11);
    EXPECT_EQ(all.values, 11);
    for (Index b = 0; b < 5; ++b) {
      EXPECT_EQ(x.summaries.key_sums().row(b), x.summaries.key_sum(b));
      EXPECT_EQ(x.summaries.key_sum(b), x.summaries.key_sum(0) + b * features);
      for (Index d = 0; d < 11; ++d) EXPECT_EQ(all.block(b).row(d), x.summaries.block(b).row(d));
    }
  }
}

TEST(HeadSummaries, BytesAreWhatTheyTake) {
  Random rng(4);
  const Matrix<float> k = rng.matrix<float>(20, 11);
  const Inputs<float> in{.q = k, .k = k, .v = k};
  const Operator op{Identity{}};
  const std::size_t bytes = detail::head_summaries_bytes("f", in, 5, op);
  GuardedWorkspace lent(bytes);
  detail::Arena arena(lent.get().data());
  const detail::HeadSummaries<float, Operator<Identity>> summaries("f", arena,
                                                                   detail::head_sizes(in, op), 5);
  for (Index b = 0; b < 5; ++b) {
    for (Index d = 0; d < 11; ++d) std::fill_n(summaries.block(b).row(d), 11, 1.f);
    std::fill_n(summaries.key_sum(b), 11, 1.f);
  }
  EXPECT_TRUE(lent.intact());
  // S [D,M,E] and z [M,D], at most two cache lines more for each row of a slab.
  EXPECT_GE(bytes, sizeof(float) * 5 * (11 * 11 + 11));
  EXPECT_LE(bytes, sizeof(float) * 5 * (16 * 11 + 11) + 64 * (2 * 5 * 4 + 3));
}

}  // namespace
}  // namespace mhla::test

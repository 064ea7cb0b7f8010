#include "mhla/attention/head_summaries.hpp"

#include <gtest/gtest.h>

#include "mhla/policy/partition.hpp"
#include "support/any_map.hpp"
#include "support/outputs.hpp"

namespace mhla::test {
namespace {

/// Row b: the summary of block b, then its key sum.
Matrix<double> definition(const Matrix<double>& k, const Matrix<double>& v,
                          const Matrix<double>& sum_keys, Index w) {
  Matrix<double> all(k.rows() / w, k.cols() * v.cols() + sum_keys.cols());
  for (Index b = 0; b < all.rows(); ++b) {
    const Matrix<double> s = k.middleRows(b * w, w).transpose() * v.middleRows(b * w, w);
    all.row(b).head(s.size()) = Eigen::Map<const Eigen::RowVectorXd>(s.data(), s.size());
    all.row(b).tail(sum_keys.cols()) = sum_keys.middleRows(b * w, w).colwise().sum();
  }
  return all;
}

TEST(HeadSummaries, BlocksAreSummarizedInTheirPlacesOrAloneInTheFirst) {
  Random rng(1);
  const Index n = 20, w = 4, d = 11, e = 7;
  const auto k = rng.matrix<double>(n, d), v = rng.matrix<double>(n, e),
             own = rng.matrix<double>(n, 3);
  const Contiguous blocks(n, w);
  const Operator op{Identity{}};
  auto in = inputs(k, k, v);
  for (const bool own_keys : {false, true}) {
    if (own_keys) in.normalizer_q = in.normalizer_k = own;
    const Matrix<double> expected = definition(k, v, own_keys ? own : k, w);
    const auto sizes = detail::head_sizes(in, op);
    GuardedWorkspace lent(detail::counted_bytes([&](detail::Arena& arena) {
      return detail::HeadSummaries<double>("f", arena, sizes, n / w);
    }));
    detail::Arena arena(lent.get().data());
    const detail::HeadSummaries<double> summaries("f", arena, sizes, n / w);
    Memory memory(100000);
    const detail::KeyScratch<double> scratch("f", memory.arena, d, d, e);
    // The largest difference of place b from block `of` of the definition; NaN if unwritten.
    const auto error = [&](Index b, Index of) {
      double worst = 0;
      for (Index i = 0; i < d * e; ++i) {
        const Index slab = i / (detail::kTile.slab * e);
        const double s = summaries.values().block(b).row(slab)[i - slab * detail::kTile.slab * e];
        worst = s == s ? std::max(worst, std::abs(s - expected(of, i))) : s;
      }
      for (Index i = d * e; i < expected.cols(); ++i) {
        worst = std::max(worst, std::abs(summaries.key_sum(b)[i - d * e] - expected(of, i)));
        EXPECT_EQ(summaries.key_sums().row(b), summaries.key_sum(b));
      }
      return worst;
    };
    const double bound = gamma(w, 0x1p-53) * w;  // products of numbers of at most 1
    for (Index b = 0; b < n / w; ++b) summaries.summarize(in, blocks, b, op, scratch);
    for (Index b = 0; b < n / w; ++b) EXPECT_LE(error(b, b), bound) << b;
    summaries.summarize_alone(in, blocks, 3, op, scratch);
    EXPECT_LE(error(0, 3), bound);
    EXPECT_LE(error(1, 1), bound);
    EXPECT_TRUE(lent.intact());
  }
}

}  // namespace
}  // namespace mhla::test

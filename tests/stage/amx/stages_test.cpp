// The stages that run on AMX, against the definitions of every unit.

#include <gtest/gtest.h>

#include "mhla/stage/amx/unit.hpp"
#include "support/amx_case.hpp"

namespace mhla::test {
namespace {

class AmxStages : public AmxTest {};

TEST_F(AmxStages, SummariesAreSumsOverTheKeptTokensOfTheirBlocks) {
  for_cases(15, expect_summaries<AmxCase>);
}

TEST_F(AmxStages, MixturesAreWeightedSumsOfSummaries) { for_cases(20, expect_mixtures<AmxCase>); }

TEST_F(AmxStages, OutputsAreMixturesReadByQueriesOverTheirDenominators) {
  for_cases(60, expect_read_out<AmxCase>);
}

/// Mixtures of all rows of m, with a flag per mixture that is true if it is finite.
struct Mixed {
  Matrix<float> numbers;  // [Mq, D*E]
  std::vector<bool> finite;
};
Mixed mixed(const Matrix<float>& x, Index d, Index e, const MixingMatrix<float>& m, Index begin,
            Index end) {
  Memory memory(std::size_t{1} << 24);
  const detail::AmxSummaries s("f", memory.arena, x.rows(), d, e);
  AmxCase::store(x, s);
  const Index count = end - begin;
  const detail::Coefficients<float> scratch("f", memory.arena, count, x.rows());
  const detail::AmxMixtures mixtures("f", memory.arena, AmxCase::group(count), s);
  mix(detail::MixingGroup<float>(m, begin, end, detail::Reach::kAll, x.rows(), scratch), s,
      mixtures);
  Mixed result{Matrix<float>(count, d * e), {}};
  for (Index g = 0; g < count; ++g) {
    result.numbers.row(g) = AmxCase::stored(mixtures, g);
    result.finite.push_back(mixtures.finite[g] != 0);
  }
  return result;
}

TEST_F(AmxStages, BitsOfAMixtureDoNotDependOnItsGroup) {
  Random rng(5);
  const Matrix<float> x = rng.matrix<float>(150, 17 * 18);
  for (const Index band : {3, 150}) {
    const auto m = MixingMatrix<float>::banded(rng.matrix<float>(150, 150), band, band);
    const Matrix<float> all = mixed(x, 17, 18, m, 0, 150).numbers;
    for (const Index begin : {0, 48, 75, 149}) {
      const Index end = std::min<Index>(begin + 20, 150);
      EXPECT_TRUE(same_bits<float>(mixed(x, 17, 18, m, begin, end).numbers,
                                   all.middleRows(begin, end - begin)));
    }
  }
}

TEST_F(AmxStages, MixturesThatOverflowAreNoticedRowByRow) {
  Random rng(1);
  const Matrix<float> x = 0x1p126f * rng.matrix<float>(5, 16 * 16);
  Matrix<float> c = Matrix<float>::Constant(20, 5, 0.01f);
  c(17, 3) = 100;
  const std::vector<bool> finite = mixed(x, 16, 16, MixingMatrix<float>(c), 0, 20).finite;
  for (std::size_t g = 0; g < 20; ++g) EXPECT_EQ(finite[g], g != 17);
}

/// Outputs of queries of one mixture, all denominators 1.
Matrix<float> read(const Matrix<float>& q, const Matrix<float>& x) {
  Memory memory(std::size_t{1} << 21);
  const detail::AmxSummaries s("f", memory.arena, 1, x.rows(), x.cols());
  const detail::AmxMixtures mixtures("f", memory.arena, 16, s);
  AmxCase::store(x, mixtures, 2);
  const Guarded<float> outputs(detail::round_up(q.rows(), 16), s.sizes.padded_values());
  detail::read_mixture(Guarded<float>(q), q.rows(), mixtures, 2, outputs);
  return outputs.numbers().topLeftCorner(q.rows(), x.cols());
}

TEST_F(AmxStages, AQueryThatIsNotFiniteReachesItsOwnRowOnlyAsInFp32) {
  Random rng(2);
  const Matrix<float> x = rng.matrix<float>(20, 19), q = rng.matrix<float>(30, 20);
  Matrix<float> expected = read(q, x);
  for (const float bad : {INFINITY, -INFINITY, NAN}) {
    Matrix<float> poisoned = q;
    poisoned(7, 17) = bad;
    Matrix<float> out = read(poisoned, x);
    for (Index e = 0; e < 19; ++e) {
      EXPECT_TRUE(std::isnan(bad) ? std::isnan(out(7, e)) : out(7, e) == bad * x(17, e)) << bad;
    }
    out.row(7) = expected.row(7);
    EXPECT_TRUE(same_bits(out, expected));
  }
}

TEST_F(AmxStages, AMixtureThatIsNotFiniteReachesWhatItReachesInFp32) {
  Random rng(3);
  Matrix<float> x = rng.matrix<float>(40, 19);
  const Matrix<float> q = rng.matrix<float>(30, 40, 0.5, 1);
  x(33, 4) = INFINITY;
  x(3, 5) = -INFINITY;
  x(20, 18) = NAN;
  const Matrix<float> out = read(q, x);
  for (Index t = 0; t < 30; ++t) {
    EXPECT_EQ(out(t, 4), INFINITY);
    EXPECT_EQ(out(t, 5), -INFINITY);
    EXPECT_TRUE(std::isnan(out(t, 18)));
    EXPECT_NEAR(out(t, 6), q.row(t).dot(x.col(6)), 1e-3);
  }
}

}  // namespace
}  // namespace mhla::test

// Tests of the scores of queries: the definition in double, bytes moved, and memory that must stay
// untouched.
//
// Bound. phi(q) and z are taken as rounded by the kernel. A sum of D products is off by gamma_D
// (output_bound.hpp).

#include "mhla/cuda/kernel/scores_sm80.cuh"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <string>

#include "emulator/device.hpp"
#include "support/cuda/kernel_run.hpp"
#include "support/cuda/output_bound.hpp"

namespace cuda_test {
namespace {

using namespace mhla::cuda;  // NOLINT

template <class T, int D>
struct Scores {
  using Kernel = ScoresSm80<T, D>;

  Case c;
  Tensor<T> q;
  Array<float> z, scores;
  emulator::Report report;

  explicit Scores(const Case& given)
      : c(given), q(c.queries<T>(D)), z(c.items() * D), scores(c.items() * c.blocks.slots()) {
    Random random(c.seed + 3);
    q.fill([&] { return random.uniform(-2, 2); });
    for (std::int64_t i = 0; i < z.size(); ++i) z[i] = static_cast<float>(random.uniform(-5, 5));
  }

  static std::string name() { return kernel_name<T>(D, D); }

  bool launch(std::uint64_t schedule) {
    const ScoreParameters stage{q.input(), c.blocks, c.heads, c.query_map, z.data(), scores.data()};
    emulator::Device device(schedule);
    device.track("q", q.raw(), q.bytes(), emulator::Access::kRead);
    device.track("z", z.data(), z.bytes(), emulator::Access::kRead);
    device.track("scores", scores.data(), scores.bytes(), emulator::Access::kWrite);
    const auto launch = launched<Kernel>(device, stage, c);
    if (launch) report = *launch;
    return launch.has_value();
  }

  void expect_traffic() const {
    EXPECT_EQ(report.bytes_read("q"), q.row_bytes());
    EXPECT_EQ(report.bytes_read("z"), z.bytes() * (Kernel::kThreads / 4));  // L1
    EXPECT_EQ(report.bytes_written("scores"), scores.bytes());
  }

  void check() const {
    for (std::int64_t i = 0; i < scores.size(); ++i) {
      const std::int64_t item = i / c.blocks.slots();
      const auto at = c.blocks.origin(static_cast<std::int32_t>(item % c.blocks.blocks()));
      const auto slot = static_cast<std::int32_t>(i % c.blocks.slots());
      const std::int32_t t = c.blocks.token(at, slot);
      const auto pair = static_cast<int>(item / c.blocks.blocks());
      BoundedSum sum;  // an empty slot adds nothing
      for (int d = 0; t >= 0 && d < D; ++d) {
        sum.add(rounded_phi(c.query_map, q.at(pair / c.heads, t, pair % c.heads, d)) *
                z.value(item * D + d));
      }
      const Bounded score = sum.in_any_order();
      ASSERT_NEAR(scores.value(i), score.value, score.error)
          << "block " << item << ", slot " << slot;
    }
  }
};

TEST(ScoresSm80, ScoresQueriesOfSequences) {
  std::uint64_t seed = 0;
  for (const int length : {1, 16, 31, 32, 49, 64, 210, 256, 1000}) {
    for (const int tokens : {length, 2 * length + length / 2 + 1}) {
      expect_right<Scores<bfloat16, 64>>({.blocks = sequence(tokens, length),
                                          .query_map = FeatureMap::relu(0.25f),
                                          .heads = 2,
                                          .layout = static_cast<int>(seed % 3),
                                          .seed = seed});
      ++seed;
    }
  }
}

TEST(ScoresSm80, GivesEmptySlotsTheScoreZero) {
  for (const int layout : {0, 1, 2}) {
    expect_right<Scores<half, 72>>({.blocks = {5, 7, 9, 2, 4, 5},
                                    .query_map = FeatureMap::elu_plus_one(),
                                    .batch = 2,
                                    .heads = 3,
                                    .layout = layout,
                                    .seed = 1});
  }
}

TEST(ScoresSm80, KnowsAllWidthsTypesAndMaps) {
  std::uint64_t seed = 0;
  for (const FeatureMap& map :
       {FeatureMap::identity(), FeatureMap::relu(0.25f), FeatureMap::elu_plus_one()}) {
    const Case c{.blocks = {1, 14, 15, 1, 7, 7},
                 .query_map = map,
                 .heads = 2,
                 .layout = static_cast<int>(seed % 3),
                 .seed = seed};
    expect_right<Scores<bfloat16, 64>>(c);
    expect_right<Scores<half, 64>>(c);
    expect_right<Scores<bfloat16, 72>>(c);
    expect_right<Scores<half, 72>>(c);
    expect_right<Scores<bfloat16, 128>>(c);
    expect_right<Scores<half, 128>>(c);
    ++seed;
  }
}

TEST(ScoresSm80, KeepsWhatIsNotANumberInItsSlot) {
  Scores<bfloat16, 72> scores({.blocks = sequence(100, 40)});
  scores.q.at(0, 57, 0, 71) = bfloat16{0x7FC0};
  ASSERT_TRUE(scores.launch(0));
  for (std::int64_t i = 0; i < 100; ++i) {
    ASSERT_EQ(std::isnan(scores.scores.value(i)), i == 57) << i;
  }
}

}  // namespace
}  // namespace cuda_test

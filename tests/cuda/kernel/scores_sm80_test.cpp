// Scores of queries against the definition in double, what the kernel moves, what it must not
// touch.
//
// Bound. phi in float and rounded to T is known exactly for the identity and relu; e^x is off by
// less than half a distance of numbers of T, so that its rounding may end one number away: within
// e (|phi^| + eta) of phi^, e = 2 u, with u the unit roundoff and eta the least normal number of T,
// phi^ the rounded feature. A sum of D products and of zeros is off by gamma_(D + 4):
//
//     |s^ - s| <= (e + gamma_(D + 4) (1 + e)) sum (|phi^| + eta) |z|

#include "mhla/cuda/kernel/scores_sm80.cuh"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>

#include "emulator/device.hpp"
#include "support/cuda/problem.hpp"

namespace {

using namespace mhla::cuda;  // NOLINT
using cuda_test::Array;
using cuda_test::Layout;
using cuda_test::Random;
using cuda_test::Tensor;

struct Case {
  TokenBlocks blocks;
  int batch = 1, heads = 1, layout = 0;
  FeatureMap map = FeatureMap::identity();
  std::uint64_t seed = 0;

  std::string text() const {
    return std::to_string(blocks.frames()) + "x" + std::to_string(blocks.rows()) + "x" +
           std::to_string(blocks.columns()) + " tokens in " +
           std::to_string(blocks.block_frames()) + "x" + std::to_string(blocks.block_rows()) + "x" +
           std::to_string(blocks.block_columns()) + ", layout " + std::to_string(layout) +
           ", seed " + std::to_string(seed);
  }
};

TokenBlocks sequence(int tokens, int length) { return {1, 1, tokens, 1, 1, length}; }

/// phi of a number of T, rounded.
template <class T>
double rounded_phi(const FeatureMap& map, double x) {
  if (map.exponential && x <= 0) return cuda_test::round_to<T>(std::exp(x));
  const auto own = static_cast<float>(x);
  const float phi = map.exponential ? own + 1 : std::max(own, map.floor) + map.eps;
  return cuda_test::round_to<T>(static_cast<double>(phi));
}

template <class T, int D>
struct Scores {
  using Kernel = ScoresSm80<T, D>;

  explicit Scores(const Case& given)
      : c(given),
        pairs(c.batch * c.heads),
        items(std::int64_t{pairs} * c.blocks.blocks()),
        q(c.batch, c.blocks.tokens(), c.heads, D,
          Layout::any(c.layout, c.blocks.tokens(), c.heads, D)),
        z(items * D),
        scores(items * c.blocks.slots()) {
    Random random(c.seed + 3);
    q.fill([&] { return random.uniform(-2, 2); });
    for (std::int64_t i = 0; i < z.size(); ++i) z[i] = static_cast<float>(random.uniform(-5, 5));
  }

  void launch() {
    const ScoreParameters params{q.input(), c.blocks, c.heads, c.map, z.data(), scores.data()};
    emulator::Device device(c.seed);
    device.track("q", q.raw(), q.bytes(), emulator::Access::kRead);
    device.track("z", z.data(), z.bytes(), emulator::Access::kRead);
    device.track("scores", scores.data(), scores.bytes(), emulator::Access::kWrite);
    const Grid grid = Kernel::grid(params, pairs);
    const emulator::Report r = device.launch<Kernel>({grid.x, grid.y, grid.z}, params);
    EXPECT_EQ(r.bytes_read("q"), q.row_bytes());
    EXPECT_EQ(r.bytes_read("z"), z.bytes() * (Kernel::kThreads / 4));  // from the first cache
    EXPECT_EQ(r.bytes_written("scores"), scores.bytes());
  }

  void check() const {
    for (std::int64_t item = 0; item < items; ++item) {
      const BlockOrigin at = c.blocks.origin(static_cast<std::int32_t>(item % c.blocks.blocks()));
      for (std::int32_t slot = 0; slot < c.blocks.slots(); ++slot) {
        const std::int32_t token = c.blocks.token(at, slot);
        const double score = scores.value(item * c.blocks.slots() + slot);
        if (token < 0) {
          ASSERT_EQ(score, 0) << "block " << item << ", slot " << slot;
        } else {
          ASSERT_NO_FATAL_FAILURE(check(item, token, score))
              << "block " << item << ", slot " << slot;
        }
      }
    }
  }

  void check(std::int64_t item, std::int32_t token, double score) const {
    const double eta = std::ldexp(1.0, cuda_test::Format<T>::kLowest);
    const double off = c.map.exponential ? 2 * cuda_test::kRoundoff<T> : 0;
    const auto pair = static_cast<int>(item / c.blocks.blocks());
    double s = 0, a = 0;
    for (int d = 0; d < D; ++d) {
      const double phi = rounded_phi<T>(c.map, q.value(pair / c.heads, token, pair % c.heads, d));
      s += phi * z.value(item * D + d);
      a += (std::abs(phi) + eta) * std::abs(z.value(item * D + d));
    }
    ASSERT_NEAR(score, s, (off + cuda_test::gamma(D + 4) * (1 + off)) * a);
  }

  Case c;
  int pairs;
  std::int64_t items;
  Tensor<T> q;
  Array<float> z, scores;
};

template <class T, int D>
void expect_right(const Case& c) {
  SCOPED_TRACE(c.text());
  Scores<T, D> scores(c);
  try {
    scores.launch();
  } catch (const emulator::Fault& fault) {
    FAIL() << fault.what();
  }
  scores.check();
}

TEST(ScoresSm80, ScoresQueriesOfSequences) {
  std::uint64_t seed = 0;
  for (const int length : {1, 16, 31, 32, 49, 64, 210, 256, 1000}) {
    for (const int tokens : {length, 2 * length + length / 2 + 1}) {
      expect_right<bfloat16, 64>({.blocks = sequence(tokens, length),
                                  .heads = 2,
                                  .layout = static_cast<int>(seed % 3),
                                  .map = FeatureMap::relu(0.25f),
                                  .seed = seed});
      ++seed;
    }
  }
}

TEST(ScoresSm80, GivesEmptySlotsTheScoreZero) {
  for (const int layout : {0, 1, 2}) {
    expect_right<half, 72>({.blocks = TokenBlocks(5, 7, 9, 2, 4, 5),
                            .batch = 2,
                            .heads = 3,
                            .layout = layout,
                            .map = FeatureMap::elu_plus_one(),
                            .seed = 1});
  }
}

TEST(ScoresSm80, KnowsAllWidthsTypesAndMaps) {
  std::uint64_t seed = 0;
  for (const FeatureMap& map :
       {FeatureMap::identity(), FeatureMap::relu(0.25f), FeatureMap::elu_plus_one()}) {
    const Case c{.blocks = TokenBlocks(1, 14, 15, 1, 7, 7),
                 .heads = 2,
                 .layout = static_cast<int>(seed % 3),
                 .map = map,
                 .seed = seed};
    expect_right<bfloat16, 64>(c);
    expect_right<half, 64>(c);
    expect_right<bfloat16, 72>(c);
    expect_right<half, 72>(c);
    expect_right<bfloat16, 128>(c);
    expect_right<half, 128>(c);
    ++seed;
  }
}

TEST(ScoresSm80, KeepsWhatIsNotANumberInItsSlot) {
  Scores<bfloat16, 72> scores({.blocks = sequence(100, 40), .map = FeatureMap::relu()});
  scores.q.at(0, 57, 0, 71) = bfloat16{0x7FC0};
  scores.launch();
  for (std::int64_t i = 0; i < 100; ++i) {
    ASSERT_EQ(std::isnan(scores.scores.value(i)), i == 57) << i;
  }
}

}  // namespace

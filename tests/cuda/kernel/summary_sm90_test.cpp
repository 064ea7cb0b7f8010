#include "mhla/cuda/kernel/summary_sm90.cuh"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "emulator/device.hpp"
#include "support/cuda/output_bound.hpp"
#include "support/cuda/problem.hpp"

namespace cuda_test {
namespace {

using namespace mhla::cuda;

struct Case {
  TokenBlocks blocks;
  int batch, heads, layout;
  FeatureMap map;
  int multiprocessors = 3;
};

std::string text(const Case& c) {
  return std::to_string(c.blocks.frames()) + "x" + std::to_string(c.blocks.rows()) + "x" +
         std::to_string(c.blocks.columns()) + " tokens in " +
         std::to_string(c.blocks.block_frames()) + "x" + std::to_string(c.blocks.block_rows()) +
         "x" + std::to_string(c.blocks.block_columns()) + ", layout " + std::to_string(c.layout);
}

/// Inputs, and what the kernel made of them.
template <class T, int D, int E, Precision P>
struct Summaries {
  using Kernel = SummarySm90<T, D, E, P>;

  Summaries(const Case& given, std::uint64_t seed)
      : c(given),
        k(c.batch, c.blocks.tokens(), c.heads, D,
          Layout::any(c.layout, c.blocks.tokens(), c.heads, D)),
        v(c.batch, c.blocks.tokens(), c.heads, E,
          Layout::any(c.layout, c.blocks.tokens(), c.heads, E)),
        high(pairs() * c.blocks.blocks() * D * E),
        low(pairs() * c.blocks.blocks() * D * E),
        z(pairs() * c.blocks.blocks() * D) {
    Random rng(seed + 100);
    k.fill([&] { return rng.uniform(-2, 2); });
    v.fill([&] { return rng.uniform(-1, 1); });
  }

  std::int64_t pairs() const { return c.batch * c.heads; }

  /// Whether the kernel can do it, and if so does it.
  bool launch(std::uint64_t seed, bool key_sum = true) {
    const SummaryParameters stage{
        k.input(),
        v.input(),
        c.blocks,
        c.heads,
        c.map,
        {high.raw(), P == Precision::kPair ? low.raw() : nullptr, key_sum ? z.data() : nullptr}};
    typename Kernel::Params params{};
    TensorBox boxes[2];
    const auto count = static_cast<std::int32_t>(pairs());
    if (!Kernel::prepare(stage, count, c.multiprocessors, params, boxes)) return false;
    for (int i = 0; i < 2; ++i) params.maps[i] = emulator::tensor_map(boxes[i]);
    emulator::Device device(seed);
    device.track("k", k.raw(), k.bytes(), emulator::Access::kRead);
    device.track("v", v.raw(), v.bytes(), emulator::Access::kRead);
    device.track("high", high.raw(), high.bytes(), emulator::Access::kWrite);
    if (P == Precision::kPair) {
      device.track("low", low.raw(), low.bytes(), emulator::Access::kWrite);
    }
    if (key_sum) device.track("z", z.raw(), z.bytes(), emulator::Access::kWrite);
    const Grid grid = Kernel::grid(params, count);
    const emulator::Report r = device.launch<Kernel>({grid.x, grid.y, grid.z}, params);
    EXPECT_EQ(r.bytes_read("k"), k.row_bytes());
    EXPECT_EQ(r.bytes_read("v"), v.row_bytes());
    EXPECT_EQ(r.bytes_written("high"), high.bytes());
    if (P == Precision::kPair) {
      EXPECT_EQ(r.bytes_written("low"), low.bytes());
    }
    if (key_sum) {
      EXPECT_EQ(r.bytes_written("z"), z.bytes());
    }
    EXPECT_EQ(r.bank_conflicts, 0u);
    return true;
  }

  /// Features are what they are, rounded, and products of two numbers of T are floats, so that
  ///
  ///     |S^ - S| <= gamma(W') sum |phi(k)| |v|,
  ///
  /// W' the slots of a block filled up to steps of 16, before it is rounded to T: by u |S^| + eta;
  /// z is the same with v = 1 and not rounded. As a pair the second part is what the first leaves,
  /// at most u |S^|, rounded.
  void check() const {
    const double u = kRoundoff<T>, eta = kUnderflow<T>;
    const double growth = gamma(c.blocks.slots() + 15 * c.blocks.slots() / 16 + 15);
    for (std::int64_t item = 0; item < pairs() * c.blocks.blocks(); ++item) {
      const auto pair = static_cast<int>(item / c.blocks.blocks());
      const BlockOrigin at = c.blocks.origin(static_cast<std::int32_t>(item % c.blocks.blocks()));
      std::vector<double> s(std::size_t{D} * (E + 1)), a(std::size_t{D} * (E + 1));
      for (std::int32_t slot = 0; slot < c.blocks.slots(); ++slot) {
        const int t = c.blocks.token(at, slot);
        if (t < 0) continue;
        for (int d = 0; d < D; ++d) {
          const double f = rounded_phi(c.map, k.at(pair / c.heads, t, pair % c.heads, d));
          for (int e = 0; e <= E; ++e) {
            const double x = e == E ? 1 : v.value(pair / c.heads, t, pair % c.heads, e);
            const auto i = static_cast<std::size_t>(d * (E + 1) + e);
            s[i] += f * x;
            a[i] += std::abs(f * x);
          }
        }
      }
      for (int d = 0; d < D; ++d) {
        for (int e = 0; e <= E; ++e) {
          const auto i = static_cast<std::size_t>(d * (E + 1) + e);
          const double bound = growth * a[i];
          const double magnitude = std::abs(s[i]) + bound;
          if (e == E) {
            ASSERT_LE(std::abs(z.value(item * D + d) - s[i]), bound) << "z " << item << " " << d;
          } else {
            const std::int64_t j = (item * D + d) * E + e;
            if (P == Precision::kPair) {
              ASSERT_LE(std::abs(high.value(j) + low.value(j) - s[i]),
                        bound + u * u * magnitude + 2 * eta + magnitude * 0x1p-24)
                  << item << " " << d << " " << e;
            }
            ASSERT_LE(std::abs(high.value(j) - s[i]), bound + u * magnitude + eta)
                << item << " " << d << " " << e;
          }
        }
      }
    }
  }

  Case c;
  Tensor<T> k, v;
  Array<T> high, low;
  Array<float> z;
};

template <class T, int D, int E, Precision P>
void expect_right(const Case& c, std::uint64_t seed) {
  SCOPED_TRACE(text(c) + ", seed " + std::to_string(seed));
  Summaries<T, D, E, P> run(c, seed);
  try {
    ASSERT_TRUE(run.launch(seed));
  } catch (const emulator::Fault& fault) {
    FAIL() << fault.what();
  }
  run.check();
}

TokenBlocks sequence(int tokens, int length) { return {1, 1, tokens, 1, 1, length}; }

TEST(SummarySm90, BlocksOfSequences) {
  std::uint64_t seed = 0;
  for (const int length : {1, 16, 17, 49, 64, 210, 256}) {
    for (const int tokens : {length, 2 * length + length / 2 + 1}) {
      const auto kind = static_cast<int>(seed % 3);
      expect_right<bfloat16, 64, 64, Precision::kSingle>(
          {sequence(tokens, length), 1, 2, kind, FeatureMap::relu()}, seed++);
    }
  }
}

TEST(SummarySm90, BlocksOfSeveralBoxes) {
  expect_right<bfloat16, 64, 64, Precision::kSingle>(
      {sequence(1777, 1000), 1, 1, 0, FeatureMap::elu_plus_one()}, 1);
  expect_right<bfloat16, 64, 64, Precision::kSingle>(
      {TokenBlocks(1, 40, 33, 1, 20, 30), 1, 2, 1, FeatureMap::relu(0.5f)}, 2);
  expect_right<bfloat16, 128, 256, Precision::kSingle>(
      {TokenBlocks(5, 6, 10, 5, 6, 10), 1, 2, 0, FeatureMap::identity()}, 3);
}

TEST(SummarySm90, BlocksOfGridsWithEmptySlotsAtTheEdges) {
  for (const int kind : {0, 1, 2}) {
    const auto seed = static_cast<std::uint64_t>(kind);
    expect_right<bfloat16, 64, 64, Precision::kSingle>(
        {TokenBlocks(1, 14, 15, 1, 7, 7), 2, 3, kind, FeatureMap::relu(0.5f)}, seed);
    expect_right<bfloat16, 64, 64, Precision::kSingle>(
        {TokenBlocks(5, 7, 9, 2, 4, 5), 2, 2, kind, FeatureMap::elu_plus_one()}, seed);
  }
}

TEST(SummarySm90, AllWidthsTypesAndMaps) {
  for (const FeatureMap& map :
       {FeatureMap::identity(), FeatureMap::relu(0.25f), FeatureMap::elu_plus_one()}) {
    const Case c{TokenBlocks(3, 5, 8, 3, 4, 3), 1, 2, 0, map, 2};
    expect_right<half, 64, 64, Precision::kPair>(c, 3);
    expect_right<bfloat16, 128, 128, Precision::kSingle>(c, 4);
    expect_right<half, 128, 256, Precision::kSingle>(c, 5);
  }
  const Case c{sequence(500, 210), 1, 1, 2, FeatureMap::relu(), 1};
  expect_right<bfloat16, 128, 128, Precision::kPair>(c, 6);
  expect_right<bfloat16, 128, 256, Precision::kPair>(c, 7);
}

TEST(SummarySm90, OrderDoesNotMatter) {
  const Case c{sequence(700, 64), 1, 2, 0, FeatureMap::elu_plus_one(), 1};
  Summaries<bfloat16, 64, 64, Precision::kSingle> first(c, 9);
  ASSERT_TRUE(first.launch(0));
  for (std::uint64_t seed = 1; seed < 6; ++seed) {
    Summaries<bfloat16, 64, 64, Precision::kSingle> other(c, 9);
    ASSERT_TRUE(other.launch(seed));
    EXPECT_EQ(std::memcmp(first.high.raw(), other.high.raw(), first.high.bytes()), 0);
    EXPECT_EQ(std::memcmp(first.z.raw(), other.z.raw(), first.z.bytes()), 0);
  }
}

TEST(SummarySm90, OtherBlocksAndPaddingNeverEnter) {
  const Case c{TokenBlocks(1, 9, 9, 1, 4, 5), 1, 1, 2, FeatureMap::relu(0.5f)};
  Summaries<bfloat16, 64, 64, Precision::kSingle> run(c, 11);
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const auto poison = [&](int, int t, int, int) { return c.blocks.block_of(t) == 2; };
  run.k.each([&](int b, int t, int h, int d) {
    if (poison(b, t, h, d)) run.k.at(b, t, h, d) = from_double<bfloat16>(nan);
  });
  run.v.each([&](int b, int t, int h, int d) {
    if (poison(b, t, h, d)) run.v.at(b, t, h, d) = from_double<bfloat16>(nan);
  });
  ASSERT_TRUE(run.launch(1));
  for (std::int64_t i = 0; i < run.high.size(); ++i) {
    ASSERT_EQ(std::isnan(run.high.value(i)), i / (64 * 64) == 2) << i;
  }
  for (std::int64_t i = 0; i < run.z.size(); ++i) {
    ASSERT_EQ(std::isnan(run.z.value(i)), i / 64 == 2) << i;
  }
}

TEST(SummarySm90, KeySumsAreOptional) {
  Summaries<bfloat16, 64, 64, Precision::kSingle> run(
      {sequence(100, 32), 1, 1, 0, FeatureMap::relu()}, 1);
  EXPECT_TRUE(run.launch(0, false));
}

TEST(SummarySm90, RefusesWhatTheCopyEngineCannotExpress) {
  Summaries<bfloat16, 64, 64, Precision::kSingle> run(
      {sequence(514, 257), 1, 1, 0, FeatureMap::relu()}, 1);
  EXPECT_FALSE(run.launch(0));
}

}  // namespace
}  // namespace cuda_test

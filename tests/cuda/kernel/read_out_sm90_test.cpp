#include "mhla/cuda/kernel/read_out_sm90.cuh"

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
  Denominator denominator = Denominator::kKeySum;
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
struct Outputs {
  using Kernel = ReadOutSm90<T, D, E, P>;

  Outputs(const Case& given, std::uint64_t seed)
      : c(given),
        q(c.batch, c.blocks.tokens(), c.heads, D,
          Layout::any(c.layout, c.blocks.tokens(), c.heads, D)),
        o(c.batch, c.blocks.tokens(), c.heads, E,
          Layout::any((c.layout + 1) % 3, c.blocks.tokens(), c.heads, E)),
        high(items() * D * E),
        low(items() * D * E),
        z(items() * D),
        scores(items() * c.blocks.slots()),
        mixing(std::int64_t{c.blocks.blocks()} * (c.blocks.blocks() + 3)) {
    Random rng(seed + 200);
    q.fill([&] { return rng.uniform(-2, 2); });
    for (std::int64_t i = 0; i < high.size(); ++i) {
      const double x = rng.uniform(-3, 3);
      high[i] = from_double<T>(x);
      low[i] = from_double<T>(x - high.value(i));
    }
    for (std::int64_t i = 0; i < z.size(); ++i) z[i] = static_cast<float>(rng.uniform(0.5, 2));
    for (std::int64_t i = 0; i < scores.size(); ++i) {
      const auto slot = static_cast<std::int32_t>(i % c.blocks.slots());
      const auto block = static_cast<std::int32_t>(i / c.blocks.slots() % c.blocks.blocks());
      if (c.blocks.token(c.blocks.origin(block), slot) < 0) continue;  // NaN as nobody writes it
      scores[i] = static_cast<float>(rng.uniform(1, 9));
    }
    for (int i = 0; i < c.blocks.blocks(); ++i) {
      for (int b = 0; b < c.blocks.blocks(); ++b) {
        mixing[std::int64_t{i} * (c.blocks.blocks() + 3) + b] =
            static_cast<float>(rng.uniform(0.1, 1));
      }
    }
  }

  std::int64_t pairs() const { return c.batch * c.heads; }
  Normalization normalization() const { return {c.denominator, 0.5f, 0.25f}; }
  std::int64_t items() const { return pairs() * c.blocks.blocks(); }

  /// Whether the kernel can do it, and if so does it.
  bool launch(std::uint64_t seed) {
    const bool key_sum = c.denominator == Denominator::kKeySum;
    const bool cross = c.denominator == Denominator::kCrossQuery;
    const ReadOutParameters stage{
        q.input(),
        o.output(),
        c.blocks,
        c.heads,
        c.map,
        {high.raw(), P == Precision::kPair ? low.raw() : nullptr, key_sum ? z.data() : nullptr},
        normalization(),
        cross ? scores.data() : nullptr,
        {cross ? mixing.data() : nullptr, c.blocks.blocks() + 3}};
    typename Kernel::Params params{};
    TensorBox boxes[4];
    const auto count = static_cast<std::int32_t>(pairs());
    if (!Kernel::prepare(stage, count, c.multiprocessors, params, boxes)) return false;
    for (int i = 0; i < 4; ++i) {
      if (boxes[i].base != nullptr) params.maps[i] = emulator::tensor_map(boxes[i]);
    }
    emulator::Device device(seed);
    device.track("q", q.raw(), q.bytes(), emulator::Access::kRead);
    device.track("o", o.raw(), o.bytes(), emulator::Access::kWrite);
    device.track("high", high.raw(), high.bytes(), emulator::Access::kRead);
    if (P == Precision::kPair) {
      device.track("low", low.raw(), low.bytes(), emulator::Access::kRead);
    }
    if (key_sum) device.track("z", z.raw(), z.bytes(), emulator::Access::kRead);
    if (cross) {
      device.track("scores", scores.raw(), scores.bytes(), emulator::Access::kRead);
      device.track("mixing", mixing.raw(), mixing.bytes(), emulator::Access::kRead);
    }
    const Grid grid = Kernel::grid(params, count);
    const emulator::Report r = device.launch<Kernel>({grid.x, grid.y, grid.z}, params);
    EXPECT_EQ(r.bytes_read("q"), q.row_bytes());
    EXPECT_EQ(r.bytes_read("high"), high.bytes());
    if (P == Precision::kPair) {
      EXPECT_EQ(r.bytes_read("low"), low.bytes());
    }
    if (key_sum) {
      EXPECT_EQ(r.bytes_read("z"), z.bytes());
    }
    if (cross) {
      EXPECT_LE(r.bytes_read("scores"), scores.bytes() * static_cast<unsigned>(c.blocks.blocks()));
    }
    EXPECT_EQ(r.bytes_written("o"), o.row_bytes());
    EXPECT_EQ(r.bank_conflicts, 0u);
    return true;
  }

  /// Features, S~ and scores are what they are, rounded, and products of numbers of T are floats: a
  /// numerator is off by its additions alone, D for each part of S~, a denominator by D products
  /// and additions, or M. Outputs then: output_bound.hpp. Returns the worst error as a part of its
  /// bound.
  double check() const {
    constexpr int kParts = P == Precision::kPair ? 2 : 1;
    const int blocks = c.blocks.blocks();
    Comparison comparison(text(c));
    for (std::int64_t item = 0; item < items(); ++item) {
      const auto pair = static_cast<int>(item / blocks);
      const int b = pair / c.heads, h = pair % c.heads;
      const auto block = static_cast<std::int32_t>(item % blocks);
      for (std::int32_t slot = 0; slot < c.blocks.slots(); ++slot) {
        const int t = c.blocks.token(c.blocks.origin(block), slot);
        if (t < 0) continue;
        std::vector<double> f(D);
        BoundedSum d;
        for (int i = 0; i < D; ++i) {
          f[static_cast<std::size_t>(i)] = rounded_phi(c.map, q.at(b, t, h, i));
          if (c.denominator == Denominator::kKeySum) {
            d.add(f[static_cast<std::size_t>(i)] * z.value(item * D + i));
          }
        }
        for (int j = 0; c.denominator == Denominator::kCrossQuery && j < blocks; ++j) {
          d.add(mixing.value(std::int64_t{block} * (blocks + 3) + j) *
                scores.value((std::int64_t{pair} * blocks + j) * c.blocks.slots() + slot));
        }
        for (int e = 0; e < E; ++e) {
          BoundedSum n;
          for (int i = 0; i < D; ++i) {
            const std::int64_t j = (item * D + i) * E + e;
            n.add(f[static_cast<std::size_t>(i)] * high.value(j));
            if (kParts == 2) n.add(f[static_cast<std::size_t>(i)] * low.value(j));
          }
          comparison.compare(
              o.value(b, t, h, e),
              output<T>(n.after(kParts * D), d.after(std::max(D, blocks) + 4), normalization()), b,
              t, h, e);
        }
      }
    }
    EXPECT_TRUE(o.padding_is_untouched());
    return comparison.worst();
  }

  Case c;
  Tensor<T> q, o;
  Array<T> high, low;
  Array<float> z, scores, mixing;
};

template <class T, int D, int E, Precision P>
void expect_right(const Case& c, std::uint64_t seed) {
  SCOPED_TRACE(text(c) + ", seed " + std::to_string(seed));
  Outputs<T, D, E, P> outputs(c, seed);
  try {
    ASSERT_TRUE(outputs.launch(seed));
  } catch (const emulator::Fault& fault) {
    FAIL() << fault.what();
  }
  outputs.check();
}

TokenBlocks sequence(int tokens, int length) { return {1, 1, tokens, 1, 1, length}; }

TEST(ReadOutSm90, BlocksOfSequences) {
  std::uint64_t seed = 0;
  for (const int length : {1, 16, 17, 49, 64, 210, 256}) {
    for (const int tokens : {length, 2 * length + length / 2 + 1}) {
      const auto kind = static_cast<int>(seed % 3);
      expect_right<bfloat16, 64, 64, Precision::kSingle>(
          {sequence(tokens, length), 1, 2, kind, FeatureMap::relu(0.125f)}, seed++);
    }
  }
}

TEST(ReadOutSm90, BlocksOfSeveralBoxes) {
  expect_right<bfloat16, 64, 64, Precision::kSingle>(
      {sequence(1777, 1000), 1, 1, 0, FeatureMap::elu_plus_one()}, 1);
  expect_right<bfloat16, 128, 128, Precision::kSingle>(
      {TokenBlocks(1, 40, 33, 1, 20, 30), 1, 1, 1, FeatureMap::relu(0.5f)}, 2);
  expect_right<bfloat16, 128, 256, Precision::kSingle>(
      {TokenBlocks(5, 6, 10, 5, 6, 10), 1, 1, 0, FeatureMap::identity(), Denominator::kNone}, 3);
}

TEST(ReadOutSm90, BlocksOfGridsWithEmptySlotsAtTheEdges) {
  for (const int kind : {0, 1, 2}) {
    const auto seed = static_cast<std::uint64_t>(kind);
    expect_right<bfloat16, 64, 64, Precision::kSingle>(
        {TokenBlocks(1, 14, 15, 1, 7, 7), 2, 3, kind, FeatureMap::relu(0.5f)}, seed);
    expect_right<bfloat16, 64, 64, Precision::kSingle>(
        {TokenBlocks(5, 7, 9, 2, 4, 5), 2, 2, kind, FeatureMap::elu_plus_one()}, seed);
  }
}

TEST(ReadOutSm90, AllWidthsTypesMapsAndDenominators) {
  struct {
    FeatureMap map;
    Denominator denominator;
  } const kinds[] = {{FeatureMap::identity(), Denominator::kNone},
                     {FeatureMap::relu(0.25f), Denominator::kKeySum},
                     {FeatureMap::elu_plus_one(), Denominator::kCrossQuery}};
  for (const auto& kind : kinds) {
    const Case c{TokenBlocks(3, 8, 6, 3, 4, 3), 1, 2, 0, kind.map, kind.denominator, 2};
    expect_right<half, 64, 64, Precision::kPair>(c, 3);
    expect_right<bfloat16, 128, 128, Precision::kSingle>(c, 4);
    expect_right<half, 128, 256, Precision::kSingle>(c, 5);
  }
  const Case c{sequence(500, 210), 1, 1, 2, FeatureMap::relu(0.125f), Denominator::kKeySum, 1};
  expect_right<bfloat16, 128, 128, Precision::kPair>(c, 6);
  expect_right<bfloat16, 128, 256, Precision::kPair>(c, 7);
}

TEST(ReadOutSm90, OrderDoesNotMatter) {
  const Case c{sequence(700, 64), 1, 2, 0, FeatureMap::elu_plus_one(), Denominator::kKeySum, 1};
  Outputs<bfloat16, 128, 128, Precision::kSingle> first(c, 9);
  ASSERT_TRUE(first.launch(0));
  for (std::uint64_t seed = 1; seed < 6; ++seed) {
    Outputs<bfloat16, 128, 128, Precision::kSingle> other(c, 9);
    ASSERT_TRUE(other.launch(seed));
    EXPECT_EQ(std::memcmp(first.o.raw(), other.o.raw(), first.o.bytes()), 0);
  }
}

TEST(ReadOutSm90, OtherBlocksNeverEnter) {
  const Case c{TokenBlocks(1, 9, 9, 1, 4, 5), 1, 1, 2, FeatureMap::relu(0.5f)};
  Outputs<bfloat16, 64, 64, Precision::kSingle> run(c, 11);
  const bfloat16 nan{0x7FFF};
  const auto poisoned = [&](int t) { return c.blocks.block_of(t) == 2; };
  run.q.each([&](int b, int t, int h, int d) {
    if (poisoned(t)) run.q.at(b, t, h, d) = nan;
  });
  std::fill_n(run.high.data() + 4 * 64 * 64, 64 * 64, nan);
  std::fill_n(run.z.data() + 3 * 64, 64, std::numeric_limits<float>::quiet_NaN());
  ASSERT_TRUE(run.launch(1));
  run.o.each([&](int b, int t, int h, int e) {
    const int block = c.blocks.block_of(t);
    ASSERT_EQ(std::isnan(run.o.value(b, t, h, e)), block >= 2 && block <= 4) << t << " " << e;
  });
}

TEST(ReadOutSm90, RefusesWhatTheCopyEngineCannotExpress) {
  Outputs<bfloat16, 64, 64, Precision::kSingle> run({sequence(514, 257), 1, 1, 0, {}}, 1);
  EXPECT_FALSE(run.launch(0));
}

}  // namespace
}  // namespace cuda_test

// Summaries of blocks against the definition in double, what the kernel moves, what it must not
// touch.
//
// Bounds. phi in float and rounded to T is known exactly for the identity and relu; e^x is off by
// less than half a distance of numbers of T, so that its rounding may end one number away: within
// e |phi^| + e eta of phi^, e = 2 u, with u the unit roundoff and eta the least normal number of T,
// phi^ the rounded feature. Products of two numbers of T are exact floats. For a sum of n slots
//
//     |S^ - S| <= (e + gamma_n (1 + e)) A,   A = sum (|phi^| + eta) |v|      and z with v = 1
//
// before S^ is rounded: by u |S^| + underflow, or, as high + low, by u^2 |S^| and twice that, since
// low is at most u |S^|. Where all numbers are small integers nothing is rounded before.

#include "mhla/cuda/kernel/summary_sm80.cuh"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

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
  bool integers = false;  ///< as data, -2 to 2
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

template <class T, int D, int E, Precision P>
struct Summaries {
  using Kernel = SummarySm80<T, D, E, P>;

  explicit Summaries(const Case& given)
      : c(given),
        pairs(c.batch * c.heads),
        items(std::int64_t{pairs} * c.blocks.blocks()),
        k(tensor(D, c.layout)),
        v(tensor(E, (c.layout + 1) % 3)),
        high(items * D * E),
        low(items * D * E),
        z(items * D) {
    Random random(c.seed + 17);
    const auto draw = [&] {
      return c.integers ? static_cast<double>(random.integer(-2, 2)) : random.uniform(-2, 2);
    };
    k.fill(draw);
    v.fill(draw);
  }

  Tensor<T> tensor(int width, int kind) const {
    const int n = c.blocks.tokens();
    return {c.batch, n, c.heads, width, Layout::any(kind, n, c.heads, width)};
  }

  void launch(bool key_sum = true) {
    constexpr bool kPair = P == Precision::kPair;
    const SummaryParameters params{
        k.input(), v.input(),
        c.blocks,  c.heads,
        c.map,     {high.raw(), kPair ? low.raw() : nullptr, key_sum ? z.data() : nullptr}};
    emulator::Device device(c.seed);
    device.track("k", k.raw(), k.bytes(), emulator::Access::kRead);
    device.track("v", v.raw(), v.bytes(), emulator::Access::kRead);
    device.track("high", high.raw(), high.bytes(), emulator::Access::kWrite);
    if (kPair) device.track("low", low.raw(), low.bytes(), emulator::Access::kWrite);
    if (key_sum) device.track("z", z.data(), z.bytes(), emulator::Access::kWrite);
    const Grid grid = Kernel::grid(params, pairs);
    const emulator::Report r = device.launch<Kernel>({grid.x, grid.y, grid.z}, params);
    EXPECT_EQ(r.bytes_read("k"), k.row_bytes());
    EXPECT_EQ(r.bytes_read("v"), v.row_bytes());
    EXPECT_EQ(r.bytes_written("high"), high.bytes());
    if (kPair) {
      EXPECT_EQ(r.bytes_written("low"), low.bytes());
    }
    if (key_sum) {
      EXPECT_EQ(r.bytes_written("z"), z.bytes());
    }
    EXPECT_EQ(r.bank_conflicts, 0u);
  }

  /// Every S and z.
  void check() const {
    for (std::int64_t item = 0; item < items; ++item) {
      std::vector<double> s(D * (E + 1)), a(D * (E + 1));
      sum(item, s, a);
      for (int d = 0; d < D; ++d) {
        for (int e = 0; e <= E; ++e) {
          const auto i = static_cast<std::size_t>(d * (E + 1) + e);
          ASSERT_NO_FATAL_FAILURE(check(item, d, e, s[i], a[i]))
              << "S_" << item << "[" << d << "," << e << "]";
        }
      }
    }
  }

  /// The sums of an item and those of magnitudes; column E is z.
  void sum(std::int64_t item, std::vector<double>& s, std::vector<double>& a) const {
    const double eta = std::ldexp(1.0, cuda_test::Format<T>::kLowest);
    const auto pair = static_cast<int>(item / c.blocks.blocks());
    const int batch = pair / c.heads, head = pair % c.heads;
    const BlockOrigin at = c.blocks.origin(static_cast<std::int32_t>(item % c.blocks.blocks()));
    std::vector<double> value(E + 1, 1);
    for (std::int32_t slot = 0; slot < c.blocks.slots(); ++slot) {
      const int t = c.blocks.token(at, slot);
      if (t < 0) continue;
      for (int e = 0; e < E; ++e) value[static_cast<std::size_t>(e)] = v.value(batch, t, head, e);
      for (int d = 0; d < D; ++d) {
        const double f = rounded_phi<T>(c.map, k.value(batch, t, head, d));
        const auto row = static_cast<std::size_t>(d * (E + 1));
        for (std::size_t e = 0; e <= E; ++e) {
          s[row + e] += f * value[e];
          a[row + e] += (std::abs(f) + eta) * std::abs(value[e]);
        }
      }
    }
  }

  void check(std::int64_t item, int d, int e, double s, double a) const {
    const double u = cuda_test::kRoundoff<T>, underflow = cuda_test::kUnderflow<T>;
    const double off = c.map.exponential ? 2 * u : 0;
    const double bound =
        c.integers ? 0 : (off + cuda_test::gamma(c.blocks.slots() + 32) * (1 + off)) * a;
    if (e == E) {
      ASSERT_NEAR(z.value(item * D + d), s, bound);
      return;
    }
    const std::int64_t i = (item * D + d) * E + e;
    const double most = std::abs(s) + bound;
    ASSERT_LE(std::abs(high.value(i) - s), bound + u * most + underflow);
    if (c.integers) {
      ASSERT_EQ(high.value(i), cuda_test::round_to<T>(s));
    }
    if (P == Precision::kPair) {
      ASSERT_LE(std::abs(high.value(i) + low.value(i) - s), bound + u * u * most + 2 * underflow);
      if (c.integers) {
        ASSERT_EQ(low.value(i), cuda_test::round_to<T>(s - high.value(i)));
      }
    }
  }

  Case c;
  int pairs;
  std::int64_t items;
  Tensor<T> k, v;
  Array<T> high, low;
  Array<float> z;
};

template <class T, int D, int E, Precision P = Precision::kSingle>
void expect_right(const Case& c) {
  SCOPED_TRACE(c.text());
  Summaries<T, D, E, P> run(c);
  try {
    run.launch();
  } catch (const emulator::Fault& fault) {
    FAIL() << fault.what();
  }
  run.check();
}

TEST(SummarySm80, SumsBlocksOfSequencesOfAnyLength) {
  std::uint64_t seed = 0;
  for (const int length : {1, 16, 31, 49, 64, 97, 210, 256}) {
    for (const int tokens : {length, 2 * length + length / 2 + 1}) {
      expect_right<bfloat16, 64, 64>({.blocks = sequence(tokens, length),
                                      .heads = 2,
                                      .layout = static_cast<int>(seed % 3),
                                      .map = FeatureMap::relu(0.25f),
                                      .seed = seed});
      ++seed;
    }
  }
  expect_right<bfloat16, 128, 128>({.blocks = sequence(1100, 1000), .seed = 3});
}

TEST(SummarySm80, SkipsEmptySlotsAtTheEdgesOfGrids) {
  for (const int layout : {0, 1, 2}) {
    const auto seed = static_cast<std::uint64_t>(layout);
    expect_right<half, 64, 64>({.blocks = TokenBlocks(1, 14, 15, 1, 7, 7),
                                .batch = 2,
                                .heads = 3,
                                .layout = layout,
                                .map = FeatureMap::elu_plus_one(),
                                .seed = seed});
    expect_right<bfloat16, 72, 72>({.blocks = TokenBlocks(5, 7, 9, 2, 4, 5),
                                    .heads = 2,
                                    .layout = layout,
                                    .map = FeatureMap::relu(0.5f),
                                    .seed = seed + 3});
  }
}

template <class T, int D, int E>
void expect_right_for_all_maps() {
  std::uint64_t seed = 0;
  for (const FeatureMap& map :
       {FeatureMap::identity(), FeatureMap::relu(0.25f), FeatureMap::elu_plus_one()}) {
    const Case c{.blocks = TokenBlocks(3, 4, 8, 2, 4, 5),
                 .heads = 2,
                 .layout = static_cast<int>(seed % 3),
                 .map = map,
                 .seed = seed};
    expect_right<T, D, E, Precision::kSingle>(c);
    expect_right<T, D, E, Precision::kPair>(c);
    ++seed;
  }
}

TEST(SummarySm80, KnowsAllWidthsTypesMapsAndPrecisions) {
  expect_right_for_all_maps<bfloat16, 64, 64>();
  expect_right_for_all_maps<half, 64, 64>();
  expect_right_for_all_maps<bfloat16, 72, 72>();
  expect_right_for_all_maps<half, 72, 72>();
  expect_right_for_all_maps<bfloat16, 128, 128>();
  expect_right_for_all_maps<half, 128, 128>();
  expect_right_for_all_maps<bfloat16, 128, 256>();
  expect_right_for_all_maps<half, 128, 256>();
}

TEST(SummarySm80, RoundsSumsOfIntegersOnce) {
  for (std::uint64_t seed = 0; seed < 3; ++seed) {
    const Case c{.blocks = sequence(400, 330), .integers = true, .seed = seed};
    expect_right<bfloat16, 64, 64, Precision::kPair>(c);
    expect_right<half, 72, 72, Precision::kPair>(c);
    expect_right<bfloat16, 128, 128, Precision::kSingle>(c);
    expect_right<bfloat16, 128, 256, Precision::kPair>(c);
  }
}

TEST(SummarySm80, DoesNotDependOnTheOrderOfThreads) {
  Case c{.blocks = sequence(400, 170), .map = FeatureMap::elu_plus_one()};
  Summaries<bfloat16, 128, 128, Precision::kSingle> first(c);
  first.launch();
  for (c.seed = 1; c.seed < 6; ++c.seed) {
    Summaries<bfloat16, 128, 128, Precision::kSingle> other(c);
    std::memcpy(other.k.raw(), first.k.raw(), first.k.bytes());
    std::memcpy(other.v.raw(), first.v.raw(), first.v.bytes());
    other.launch();
    EXPECT_EQ(std::memcmp(first.high.raw(), other.high.raw(), first.high.bytes()), 0);
    EXPECT_EQ(std::memcmp(first.z.raw(), other.z.raw(), first.z.bytes()), 0);
  }
}

TEST(SummarySm80, KeepsWhatIsNotANumberInItsBlock) {
  Summaries<bfloat16, 72, 72, Precision::kSingle> run(
      {.blocks = TokenBlocks(1, 9, 9, 1, 4, 5), .layout = 2, .map = FeatureMap::relu(0.5f)});
  const auto poison = [&](Tensor<bfloat16>& x) {
    x.each([&](int b, int t, int h, int d) {
      if (run.c.blocks.block_of(t) == 2) x.at(b, t, h, d) = bfloat16{0x7FC0};
    });
  };
  poison(run.k);
  poison(run.v);
  run.launch();
  for (std::int64_t i = 0; i < run.high.size(); ++i) {
    ASSERT_EQ(std::isnan(run.high.value(i)), i / (72 * 72) == 2) << i;
  }
  for (std::int64_t i = 0; i < run.z.size(); ++i) {
    ASSERT_EQ(std::isnan(run.z.value(i)), i / 72 == 2) << i;
  }
}

TEST(SummarySm80, LeavesKeySumsOutWhereNobodyReadsThem) {
  Summaries<half, 64, 64, Precision::kSingle> run(
      {.blocks = sequence(100, 32), .map = FeatureMap::relu(), .seed = 1});
  run.launch(false);
  for (std::int64_t i = 0; i < run.z.size(); ++i) ASSERT_TRUE(std::isnan(run.z.value(i)));
  Summaries<half, 64, 64, Precision::kSingle> with(run.c);
  with.launch();
  EXPECT_EQ(std::memcmp(run.high.raw(), with.high.raw(), run.high.bytes()), 0);
}

}  // namespace

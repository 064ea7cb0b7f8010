// Outputs from mixtures against the definition in double, what the kernel reads and writes, and
// what it must not.
//
// Bound. phi(q) and S~ are what they are, rounded, and products of numbers of T are floats. So a
// numerator is off by the additions alone, D of them, 2 D with a low part; phi(q) . z~ by a product
// and at most D + 2 additions, sum_b m_ib s_bw by a product and M additions. Outputs then:
// output_bound.hpp.

#include "mhla/cuda/kernel/read_out_sm80.cuh"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "emulator/device.hpp"
#include "support/cuda/output_bound.hpp"
#include "support/cuda/problem.hpp"

namespace cuda_test {
namespace {

using namespace mhla::cuda;  // NOLINT

struct Case {
  TokenBlocks blocks;
  FeatureMap map = FeatureMap::relu();
  Denominator denominator = Denominator::kKeySum;
  int batch = 1, heads = 1, layout = 0;
  std::uint64_t seed = 1;
};

TokenBlocks run(int tokens, int width) { return {1, 1, tokens, 1, 1, width}; }

template <class T, int D, int E, Precision P>
struct Problem {
  using Kernel = ReadOutSm80<T, D, E, P>;
  Case c;
  int blocks, width, pairs;
  Tensor<T> q, o;
  Array<T> high, low;
  Array<float> key_sum, scores, mixing;
  ReadOutParameters params;
  emulator::Report report;

  explicit Problem(const Case& given)
      : c(given),
        blocks(c.blocks.blocks()),
        width(c.blocks.slots()),
        pairs(c.batch * c.heads),
        q(c.batch, c.blocks.tokens(), c.heads, D,
          Layout::any(c.layout, c.blocks.tokens(), c.heads, D)),
        o(c.batch, c.blocks.tokens(), c.heads, E,
          Layout::any((c.layout + 1) % 3, c.blocks.tokens(), c.heads, E)),
        high(std::int64_t{pairs} * blocks * D * E),
        low(high.size()),
        key_sum(std::int64_t{pairs} * blocks * D),
        scores(std::int64_t{pairs} * blocks * width),
        mixing(std::int64_t{blocks} * (blocks + 3)) {
    Random rng(c.seed);
    const bool positive = c.denominator != Denominator::kNone;  // well-conditioned then
    q.fill([&] { return positive ? rng.uniform(0.1, 2) : rng.normal(); });
    for (std::int64_t i = 0; i < high.size(); ++i) {
      const double x = rng.normal();
      high[i] = from_double<T>(x);
      low[i] = from_double<T>(x - high.value(i));
    }
    for (Array<float>* x : {&key_sum, &scores}) {
      for (std::int64_t i = 0; i < x->size(); ++i) (*x)[i] = static_cast<float>(rng.uniform(1, 9));
    }
    for (int i = 0; i < blocks; ++i) {
      for (int b = 0; b < blocks; ++b) {
        mixing[i * (blocks + 3) + b] = static_cast<float>(rng.uniform());
      }
    }
    params = {q.input(),
              o.output(),
              c.blocks,
              c.heads,
              c.map,
              {high.raw(), low.raw(), key_sum.data()},
              {c.denominator, 0.75f, 1e-3f},
              scores.data(),
              {mixing.data(), blocks + 3}};
  }

  /// Only what the case needs may be read.
  void launch() {
    using emulator::Access;
    emulator::Device device(c.seed % 7);
    device.track("q", q.raw(), q.bytes(), Access::kRead);
    device.track("o", o.raw(), o.bytes(), Access::kWrite);
    device.track("high", high.raw(), high.bytes(), Access::kRead);
    if (P == Precision::kPair) device.track("low", low.raw(), low.bytes(), Access::kRead);
    if (c.denominator == Denominator::kKeySum) {
      device.track("z", key_sum.raw(), key_sum.bytes(), Access::kRead);
    }
    if (c.denominator == Denominator::kCrossQuery) {
      device.track("scores", scores.raw(), scores.bytes(), Access::kRead);
      device.track("m", mixing.raw(), mixing.bytes(), Access::kRead);
    }
    const Grid grid = Kernel::grid(params, pairs);
    report = device.launch<Kernel>({grid.x, grid.y, grid.z}, params);
  }

  Bounded denominator(int b, int t, int h) const {
    const int i = c.blocks.block_of(t), pair = b * c.heads + h;
    BoundedSum sum;
    if (c.denominator == Denominator::kKeySum) {
      for (int d = 0; d < D; ++d) {
        sum.add(rounded_phi(c.map, q.at(b, t, h, d)) *
                key_sum.value((std::int64_t{pair} * blocks + i) * D + d));
      }
      return sum.after(D + 3);
    }
    if (c.denominator == Denominator::kCrossQuery) {
      int slot = 0;
      while (c.blocks.token(c.blocks.origin(i), slot) != t) ++slot;
      for (int j = 0; j < blocks; ++j) {
        sum.add(mixing.value(i * (blocks + 3) + j) *
                scores.value((std::int64_t{pair} * blocks + j) * width + slot));
      }
    }
    return sum.after(blocks + 1);
  }

  double compare() const {
    Comparison comparison(std::to_string(D) + " x " + std::to_string(E) + " of " +
                          Format<T>::kName + ", seed " + std::to_string(c.seed));
    const bool pair_of_parts = P == Precision::kPair;
    std::vector<double> phi(D);
    for (int b = 0; b < c.batch; ++b) {
      for (int t = 0; t < c.blocks.tokens(); ++t) {
        for (int h = 0; h < c.heads; ++h) {
          const Bounded d = denominator(b, t, h);
          const std::int64_t item = std::int64_t{b * c.heads + h} * blocks + c.blocks.block_of(t);
          for (int j = 0; j < D; ++j) {
            phi[static_cast<std::size_t>(j)] = rounded_phi(c.map, q.at(b, t, h, j));
          }
          for (int e = 0; e < E; ++e) {
            BoundedSum n;
            for (int j = 0; j < D; ++j) {
              const std::int64_t at = (item * D + j) * E + e;
              n.add(phi[static_cast<std::size_t>(j)] * high.value(at));
              if (pair_of_parts) n.add(phi[static_cast<std::size_t>(j)] * low.value(at));
            }
            const Bounded wanted =
                output<T>(n.after(pair_of_parts ? 2 * D : D), d, params.normalization);
            comparison.compare(o.value(b, t, h, e), wanted, b, t, h, e);
          }
        }
      }
    }
    EXPECT_TRUE(o.padding_is_untouched());
    return comparison.worst();
  }

  /// Q and O once, S~ and z~ once for 256 slots of a block.
  void expect_few_bytes() const {
    const auto parts = static_cast<std::size_t>(pairs * blocks * ((width + 255) / 256));
    EXPECT_EQ(report.bytes_read("q"), q.row_bytes());
    EXPECT_EQ(report.bytes_written("o"), o.row_bytes());
    EXPECT_EQ(report.bytes_read("high"), parts * D * E * 2);
    if (P == Precision::kPair) {
      EXPECT_EQ(report.bytes_read("low"), parts * D * E * 2);
    }
    if (c.denominator == Denominator::kKeySum) {
      EXPECT_EQ(report.bytes_read("z"), parts * D * 4);
    }
    EXPECT_EQ(report.bank_conflicts, 0u);
  }
};

template <class T, int D, int E, Precision P>
double expect_right(const Case& c) {
  Problem<T, D, E, P> x(c);
  x.launch();
  x.expect_few_bytes();
  return x.compare();
}

/// Both types and precisions, all four combinations for the smallest widths.
template <int D, int E>
void expect_right_for_types(const Case& c) {
  double worst = expect_right<bfloat16, D, E, Precision::kSingle>(c);
  worst = std::max(worst, expect_right<half, D, E, Precision::kPair>(c));
  if constexpr (D == 64) {
    worst = std::max(worst, expect_right<half, D, E, Precision::kSingle>(c));
    worst = std::max(worst, expect_right<bfloat16, D, E, Precision::kPair>(c));
  }
  std::cout << D << " x " << E << ": worst error " << worst << " of the bound\n";
}

TEST(ReadOutSm80, GivesOutputsOfRunsOfTokens) {
  const Case c{run(70, 32), FeatureMap::relu(0.5f), Denominator::kKeySum, 2, 1, 0, 1};
  expect_right_for_types<64, 64>(c);
  expect_right_for_types<72, 72>(c);
  expect_right_for_types<128, 128>(c);
  expect_right_for_types<128, 256>(c);
}

TEST(ReadOutSm80, GivesOutputsOfBlocksOfImagesAndVideosWithEmptySlots) {
  const Case image{{1, 9, 10, 1, 4, 4}, FeatureMap::identity(), Denominator::kNone, 1, 2, 1, 2};
  const Case video{
      {3, 5, 6, 2, 3, 4}, FeatureMap::elu_plus_one(), Denominator::kKeySum, 1, 2, 2, 3};
  for (const Case& c : {image, video}) {
    expect_right_for_types<64, 64>(c);
    expect_right_for_types<72, 72>(c);
  }
  expect_right_for_types<128, 128>(video);
  expect_right_for_types<128, 256>(image);
}

TEST(ReadOutSm80, DividesByMixturesOfOtherQueriesSums) {
  const Case c{{1, 6, 10, 1, 3, 5}, FeatureMap::relu(), Denominator::kCrossQuery, 2, 2, 1, 4};
  expect_right_for_types<64, 64>(c);
  const Case one_block{run(300, 300), FeatureMap::relu(), Denominator::kCrossQuery, 1, 1, 0, 5};
  expect_right_for_types<72, 72>(one_block);
  expect_right_for_types<128, 128>(c);
  expect_right_for_types<128, 256>(c);
}

TEST(ReadOutSm80, TakesBlocksOfAnyLength) {
  std::uint64_t seed = 10;
  for (const int width : {1, 15, 16, 17, 49, 64, 65, 210, 256, 257, 1000}) {
    Case c{run(width == 1 ? 9 : width + width / 2, width)};
    c.seed = ++seed;
    c.layout = width % 3;
    expect_right<bfloat16, 64, 64, Precision::kSingle>(c);
    c.denominator = Denominator::kNone;
    expect_right<half, 128, 128, Precision::kPair>(c);
  }
}

TEST(ReadOutSm80, TokensShareNothingButTheirMixture) {
  const Case c{run(80, 40), FeatureMap::relu(), Denominator::kKeySum, 1, 2, 0, 30};
  using X = Problem<bfloat16, 64, 64, Precision::kSingle>;
  X clean(c), spoilt(c);
  for (int d = 0; d < 64; ++d) spoilt.q.at(0, 21, 1, d) = bfloat16{0x7FC0};
  for (X* x : {&clean, &spoilt}) x->launch();
  clean.o.each([&](int b, int t, int h, int e) {
    if (t == 21 && h == 1) {
      EXPECT_FALSE(std::isfinite(spoilt.o.value(b, t, h, e)));
    } else {
      EXPECT_EQ(spoilt.o.at(b, t, h, e).bits, clean.o.at(b, t, h, e).bits);
    }
  });
}

}  // namespace
}  // namespace cuda_test

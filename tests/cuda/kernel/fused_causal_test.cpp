// Tests of the causal operator of a pair in one thread block: outputs against the definition in
// double, bytes moved, and that no later token enters an output.
//
// Bound. Features are those of the kernel. S_b, a sum of products of numbers of T, is rounded.
// S~_i, a sum in float, is rounded too. For i >= 16, the sum over the first 16 summaries is rounded
// first. In that sum each m is the sum of two numbers of T, off by at most u^2 |m| + u eta.
// output_sums.hpp bounds the sums of mixtures and weights.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "mhla/cuda/kernel/causal_summaries_sm90.cuh"
#include "mhla/cuda/kernel/fused_causal_sm90.cuh"
#include "mhla/cuda/kernel/fused_causal_sm90_config.cuh"
#include "support/cuda/direct_problem.hpp"
#include "support/cuda/output_sums.hpp"

namespace cuda_test {
namespace {

using namespace mhla::cuda;  // NOLINT

constexpr int kWidth = 64;
constexpr int kRegions = FusedCausalSm90Config<kWidth, kWidth>::kRegions;

/// A row-major [64, 64] matrix with bounds, or a vector [64] with bounds.
using Numbers = std::vector<Bounded>;

template <class T>
struct FusedCausalRun : DirectProblem<T, kWidth, kWidth> {
  using Kernel = FusedCausalSm90<T, kWidth, kWidth>;
  using Base = DirectProblem<T, kWidth, kWidth>;
  using Base::c, Base::q, Base::k, Base::v, Base::o, Base::mixing, Base::report;

  explicit FusedCausalRun(const Case& given) : Base(given, true) {}

  bool launch(std::uint64_t schedule) { return this->template launch_as<Kernel>(schedule); }

  void check() const { expect_right_outputs(*this); }

  void check(Comparison& comparison, int b, int h) const {
    const int length = c.blocks.slots();
    std::vector<Numbers> s, z;  // of earlier blocks
    for (int i = 0; i < c.blocks.blocks(); ++i) {
      const Numbers mixture = mixed(i, s, kWidth * kWidth, true), z_i = mixed(i, z, kWidth, false);
      const int begin = i * length, end = std::min(begin + length, c.blocks.tokens());
      std::vector<std::vector<double>> keys;
      for (int t = begin; t < end; ++t) {
        const std::vector<double> query = features(c.query_map, q, b, t, h);
        keys.push_back(features(c.key_map, k, b, t, h));
        OutputSums<T> sums(kWidth);
        for (std::size_t d = 0; i > 0 && d < kWidth; ++d) {
          const double phi = query[d];
          for (int e = 0; e < kWidth; ++e) {
            const Bounded& x = mixture[d * kWidth + static_cast<std::size_t>(e)];
            sums.add_to_numerator(e, phi * x.value, std::abs(phi) * x.error);
          }
          sums.add_to_denominator(phi * z_i[d].value, std::abs(phi) * z_i[d].error);
        }
        for (std::size_t j = 0; j < keys.size(); ++j) {
          sums.add_value(weight<T>(query, keys[j], mixing.value(i, i)), v, b,
                         begin + static_cast<int>(j), h);
        }
        sums.compare(comparison, o, b, t, h, c.normalization());
      }
      s.push_back(summary(keys, b, begin, h));
      z.push_back(key_sum(keys));
    }
  }

 private:
  Numbers summary(const std::vector<std::vector<double>>& keys, int b, int begin, int h) const {
    Numbers s;
    for (std::size_t d = 0; d < kWidth; ++d) {
      for (int e = 0; e < kWidth; ++e) {
        BoundedSum sum;
        for (std::size_t j = 0; j < keys.size(); ++j) {
          sum.add(keys[j][d] * v.value(b, begin + static_cast<int>(j), h, e));
        }
        s.push_back(then_rounded<T>(sum.in_any_order()));
      }
    }
    return s;
  }
  static Numbers key_sum(const std::vector<std::vector<double>>& keys) {
    Numbers z;
    for (std::size_t d = 0; d < kWidth; ++d) {
      BoundedSum sum;
      for (const std::vector<double>& key : keys) sum.add(key[d]);
      z.push_back(sum.in_any_order());
    }
    return z;
  }

  /// Returns sum_b m_ib of[b] over earlier blocks b, optionally rounded as the kernel rounds.
  Numbers mixed(int i, const std::vector<Numbers>& of, std::size_t count, bool rounded) const {
    const double u = kRoundoff<T>, eta = std::ldexp(1.0, Format<T>::kLowest);
    const int first = i < kRegions ? 0 : kRegions;
    Numbers result;
    for (std::size_t n = 0; n < count; ++n) {
      BoundedSum early, sum;
      for (int b = 0; b < i; ++b) {
        const double m = mixing.value(i, b);
        const Bounded& x = of[static_cast<std::size_t>(b)][n];
        const double off = b < first && rounded
                               ? (u * u * std::abs(m) + u * eta) * (std::abs(x.value) + x.error)
                               : 0;
        (b < first ? early : sum).add(m * x.value, std::abs(m) * x.error + off);
      }
      const Bounded part = rounded ? then_rounded<T>(early.in_any_order()) : early.in_any_order();
      if (first > 0) sum.add(part.value, part.error);
      result.push_back(rounded ? then_rounded<T>(sum.in_any_order()) : sum.in_any_order());
    }
    return result;
  }
};

template <class T>
void expect_outputs(Case c) {
  c.seed = static_cast<std::uint64_t>(c.blocks.tokens());
  expect_right<FusedCausalRun<T>>(c);
}

TEST(FusedCausalSm90, GivesOutputsOfAnyNumberOfBlocks) {
  for (const int blocks : {1, 2, 5, 15, 16, 17, 18, 31, 32}) {
    expect_outputs<bfloat16>({.blocks = sequence(8 * blocks, 8)});
  }
  expect_outputs<half>({.blocks = sequence(16 * 20, 16)});
}

TEST(FusedCausalSm90, TakesBlocksOfAnyLengthUpToSixtyFour) {
  for (const int length : {1, 2, 15, 16, 17, 33, 48, 63, 64}) {
    const int tokens = length == 1 ? 4 : 3 * length + length / 2;  // the last block is shorter
    expect_outputs<half>({.blocks = sequence(tokens, length), .layout = length % 3});
  }
  expect_outputs<bfloat16>({.blocks = sequence(64 * 17 + 1, 64)});
}

TEST(FusedCausalSm90, GivesOutputsOfEveryFeatureMapWithAndWithoutDenominators) {
  expect_outputs<bfloat16>({.blocks = sequence(100, 24),
                            .query_map = FeatureMap::elu_plus_one(),
                            .key_map = FeatureMap::elu_plus_one(),
                            .batch = 2,
                            .heads = 2,
                            .layout = 1});
  expect_outputs<half>({.blocks = sequence(19 * 10, 10),
                        .query_map = FeatureMap::identity(),
                        .key_map = FeatureMap::identity(),
                        .denominator = kNone,
                        .heads = 3,
                        .layout = 2});
  expect_outputs<bfloat16>({.blocks = sequence(90, 40),
                            .query_map = FeatureMap::relu(0.5f),
                            .key_map = FeatureMap::relu(0.25f),
                            .batch = 3});
}

TEST(FusedCausalSm90, DoesNotDependOnTheOrderOfThreads) {
  expect_same_in_any_order<FusedCausalRun<bfloat16>>(
      {.blocks = sequence(18 * 24, 24), .key_map = FeatureMap::elu_plus_one(), .heads = 3});
}

// Columns of V contain an infinity or NaN, in blocks whose summaries are kept, replaced and later.
TEST(FusedCausalSm90, LaterValuesNeverEnterWhateverTheyAre) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const double values[] = {kInfinity, std::numeric_limits<double>::quiet_NaN(), -kInfinity};
  constexpr int kTokens = 20 * 20;
  for (const int token : {0, 21, 178, 315, 319, 320, 341, 399}) {
    const Case c{.blocks = sequence(kTokens, 20), .seed = static_cast<std::uint64_t>(token) + 1};
    FusedCausalRun<bfloat16> clean(c), spoilt(c);
    const int column = (37 * token) % kWidth;
    spoilt.v.at(0, token, 0, column) = from_double<bfloat16>(values[token % 3]);
    for (auto* run : {&clean, &spoilt}) ASSERT_TRUE(run->launch(c.seed % 7));
    clean.o.each([&](int b, int t, int h, int e) {
      if (e == column) {
        ASSERT_EQ(std::isfinite(spoilt.o.value(b, t, h, e)), t < token) << token << " " << t;
      }
      if (t / 20 < token / 20 || (e != column && t / 20 != token / 20)) {
        ASSERT_EQ(spoilt.o.at(b, t, h, e).bits, clean.o.at(b, t, h, e).bits) << token << " " << t;
      }
    });
  }
}

TEST(FusedCausalSm90, LaterKeysNeverEnterWhateverTheyAre) {
  for (const int token : {50, 330}) {
    const Case c{.blocks = sequence(20 * 20, 20)};
    FusedCausalRun<half> clean(c), spoilt(c);
    for (int d = 0; d < kWidth; ++d) spoilt.k.at(0, token, 0, d).bits = 0x7FFF;
    for (auto* run : {&clean, &spoilt}) ASSERT_TRUE(run->launch(1));
    clean.o.each([&](int b, int t, int h, int e) {
      if (t >= token) {
        ASSERT_FALSE(std::isfinite(spoilt.o.value(b, t, h, e))) << t;
      } else {
        ASSERT_EQ(spoilt.o.at(b, t, h, e).bits, clean.o.at(b, t, h, e).bits) << t;
      }
    });
  }
}

// One thread block computes all heads, one after another in the same regions.
TEST(FusedCausalSm90, HeadsShareNothing) {
  expect_nan_head_spoils_no_other<FusedCausalRun<bfloat16>>(
      {.blocks = sequence(18 * 10, 10), .heads = 3, .multiprocessors = 1});
}

TEST(FusedCausalSm90, RefusesWhatDoesNotFit) {
  const auto can = [](const TokenBlocks& blocks) {
    FusedCausalRun<bfloat16> run({.blocks = blocks});
    return prepared<FusedCausalSm90<bfloat16, kWidth, kWidth>>(run.stage(), run.c).has_value();
  };
  EXPECT_TRUE(can(sequence(32 * 64, 64)));
  EXPECT_FALSE(can(sequence(32 * 64 + 1, 64)));
  EXPECT_FALSE(can(sequence(130, 65)));
  EXPECT_FALSE(can({1, 8, 8, 1, 4, 4}));
}

}  // namespace
}  // namespace cuda_test

// Outputs straight from the definition against it in double, what the kernel reads and writes, and
// that no later token enters an output of the causal form. What outputs may be off by:
// output_sums.hpp.

#include "mhla/cuda/kernel/quadratic_sm80.cuh"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "mhla/cuda/kernel/quadratic_sm80_config.cuh"
#include "support/cuda/direct_problem.hpp"
#include "support/cuda/output_sums.hpp"

namespace cuda_test {
namespace {

using namespace mhla::cuda;  // NOLINT

template <class T, int D, int E, bool Causal>
struct Quadratic : DirectProblem<T, D, E> {
  using Base = DirectProblem<T, D, E>;
  using Base::c, Base::q, Base::k, Base::v, Base::o, Base::report;

  explicit Quadratic(const Case& given) : Base(given, Causal) {}

  static std::string name() { return Base::name() + (Causal ? ", causal" : ""); }

  bool launch(std::uint64_t schedule) {
    return this->template launch_as<QuadraticSm80<T, D, E, Causal>>(schedule);
  }

  /// Q and O once, K and V once for 128 queries, up to their last if causal.
  void expect_traffic() const {
    std::size_t keys = 0;
    for (int first = 0; first < q.tokens(); first += 128) {
      keys += static_cast<std::size_t>(Causal ? std::min(first + 128, k.tokens()) : k.tokens());
    }
    keys *= static_cast<std::size_t>(c.pairs());
    EXPECT_EQ(report.bytes_read("q"), q.row_bytes());
    EXPECT_EQ(report.bytes_written("o"), o.row_bytes());
    EXPECT_EQ(report.bytes_read("k"), keys * D * 2);
    EXPECT_EQ(report.bytes_read("v"), keys * E * 2);
  }

  void check() const { expect_right_outputs(*this); }

  void check(Comparison& comparison, int b, int h) const {
    std::vector<std::vector<double>> keys;
    for (int j = 0; j < k.tokens(); ++j) keys.push_back(features(c.key_map, k, b, j, h));
    for (int t = 0; t < q.tokens(); ++t) {
      const std::vector<double> query = features(c.query_map, q, b, t, h);
      OutputSums<T> sums(E);
      for (int j = 0; j < (Causal ? t + 1 : k.tokens()); ++j) {
        const double m = this->mixing.value(c.blocks.block_of(t), c.key_blocks.block_of(j));
        sums.add_value(weight<T>(query, keys[static_cast<std::size_t>(j)], m), v, b, j, h);
      }
      sums.compare(comparison, o, b, t, h, c.normalization());
    }
  }
};

template <int D, int E, bool Causal>
void expect_right_for_types(const Case& c) {
  expect_right<Quadratic<bfloat16, D, E, Causal>>(c);
  expect_right<Quadratic<half, D, E, Causal>>(c);
}

TEST(QuadraticSm80, GivesOutputsOfEveryWidth) {
  Case c{.blocks = sequence(140, 33)};
  c.heads = 2;
  c.query_map = FeatureMap::relu(0.5f);
  c.key_map = FeatureMap::relu(0.25f);
  expect_right_for_types<64, 64, false>(c);
  c.layout = 1;
  expect_right_for_types<72, 72, false>(c);
  c.layout = 2;
  c.heads = 1;
  expect_right_for_types<128, 128, false>(c);
  expect_right_for_types<128, 256, false>(c);
}

TEST(QuadraticSm80, GivesCausalOutputsOfEveryWidth) {
  Case c{.blocks = sequence(150, 33)};
  c.seed = 2;
  expect_right_for_types<64, 64, true>(c);
  c.layout = 1;
  expect_right_for_types<72, 72, true>(c);
  c.layout = 2;
  expect_right_for_types<128, 128, true>(c);
  c.denominator = Denominator::kNone;
  c.query_map = FeatureMap::elu_plus_one();
  c.key_map = FeatureMap::identity();
  expect_right_for_types<128, 256, true>(c);
}

TEST(QuadraticSm80, GivesOutputsOfBlocksOfImagesAndVideos) {
  Case image{.blocks = {1, 9, 10, 1, 4, 4}};
  image.query_map = FeatureMap::identity();
  image.key_map = FeatureMap::elu_plus_one();
  image.denominator = Denominator::kNone;
  image.batch = 2;
  Case video{.blocks = {3, 5, 7, 2, 3, 4}};
  video.query_map = FeatureMap::elu_plus_one();
  for (Case c : {image, video}) {
    c.seed = 3;
    expect_right_for_types<64, 64, false>(c);
    expect_right_for_types<72, 72, false>(c);
  }
}

TEST(QuadraticSm80, TakesQueriesAndKeysOfDifferentSequences) {
  for (const auto& [queries, keys] : {std::pair{1, 130}, {130, 1}, {17, 65}, {257, 63}}) {
    Case c{.blocks = sequence(queries, 20), .key_blocks = sequence(keys, 7)};
    c.seed = static_cast<std::uint64_t>(queries);
    expect_right<Quadratic<half, 64, 64, false>>(c);
  }
}

TEST(QuadraticSm80, TakesMixingMatricesThatSharedMemoryDoesNotHold) {
  for (const int tokens : {64, 65, 90}) {  // blocks of one token: 64 x 65 numbers, 65 x 65, 90 x 91
    expect_right<Quadratic<half, 64, 64, false>>({.blocks = sequence(tokens, 1)});
    expect_right<Quadratic<bfloat16, 64, 64, true>>({.blocks = sequence(tokens, 1)});
  }
}

TEST(QuadraticSm80, TakesBlocksOfAnyLength) {
  std::uint64_t seed = 20;
  for (const int width : {1, 2, 16, 49, 64, 128, 200, 300}) {
    for (const int tokens : {1, 16, 100, 300}) {
      if (tokens > 150 * width) continue;
      Case c{.blocks = sequence(tokens, width)};
      c.seed = ++seed;
      expect_right<Quadratic<half, 64, 64, true>>(c);
      if (tokens == 100) expect_right<Quadratic<bfloat16, 64, 64, false>>(c);
    }
  }
}

TEST(QuadraticSm80, SharedMemoryHasNoConflictsWhereBlocksAreLong) {
  Quadratic<bfloat16, 64, 64, false> all({.blocks = sequence(256, 16)});
  Quadratic<half, 128, 128, true> causal({.blocks = sequence(128, 64)});
  Quadratic<half, 72, 72, false> odd({.blocks = sequence(64, 32)});
  ASSERT_TRUE(all.launch(1) && causal.launch(1) && odd.launch(1));
  EXPECT_EQ(all.report.bank_conflicts, 0u);
  EXPECT_EQ(causal.report.bank_conflicts, 0u);
  EXPECT_EQ(odd.report.bank_conflicts, 0u);
}

TEST(QuadraticSm80, LaterTokensNeverEnterWhateverTheyAre) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  for (const int token : {0, 7, 16, 63, 64, 100, 127, 128, 139}) {
    const Case c{.blocks = sequence(140, 50), .seed = static_cast<std::uint64_t>(token) + 1};
    Quadratic<half, 64, 64, true> clean(c), spoilt(c);
    const int column = (37 * token) % 64;
    spoilt.v.at(0, token, 0, column) = from_double<half>(token % 2 == 0 ? kInfinity : -kInfinity);
    spoilt.v.at(0, token, 0, (column + 1) % 64) = half{0x7FFF};
    for (auto* run : {&clean, &spoilt}) ASSERT_TRUE(run->launch(c.seed % 7));
    Comparison comparison("token " + std::to_string(token));
    spoilt.check(comparison, 0, 0);
    for (int t = 0; t < 140; ++t) {
      EXPECT_EQ(std::isfinite(spoilt.o.value(0, t, 0, column)), t < token) << token << " " << t;
    }
    for (int d = 0; d < 64; ++d) spoilt.k.at(0, token, 0, d) = half{0x7FFF};
    ASSERT_TRUE(spoilt.launch(c.seed % 7));
    for (int t = 0; t < 140; ++t) {
      const double o = spoilt.o.value(0, t, 0, (column + 9) % 64);
      if (t >= token) {
        EXPECT_FALSE(std::isfinite(o)) << token << " " << t;
      } else if (t < token / 16 * 16) {
        EXPECT_EQ(o, clean.o.value(0, t, 0, (column + 9) % 64)) << token << " " << t;
      } else {
        EXPECT_TRUE(std::isfinite(o)) << token << " " << t;
      }
    }
  }
}

}  // namespace
}  // namespace cuda_test

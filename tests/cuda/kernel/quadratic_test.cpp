// Tests of the quadratic form: outputs against the definition in double, reads and writes, and that
// no later token enters an output of the causal form.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>

#include "mhla/cuda/kernel/quadratic_sm80.cuh"
#include "mhla/cuda/kernel/quadratic_sm80_config.cuh"
#include "mhla/cuda/kernel/quadratic_sm90.cuh"
#include "mhla/cuda/kernel/quadratic_sm90_config.cuh"
#include "mhla/cuda/kernel/split_keys.cuh"
#include "mhla/cuda/kernel/split_quadratic_sm80.cuh"
#include "support/cuda/quadratic_run.hpp"

namespace cuda_test {
namespace {

using namespace mhla::cuda;  // NOLINT

struct QuadraticOfSm80 {
  static constexpr bool kHas72 = true, kHas256 = true;
  template <class T, int D, int E, bool Causal>
  using Kernel = QuadraticSm80<T, D, E, Causal>;

  /// Every 128 queries read K and V once, up to the last query's token if causal.
  template <class>
  static std::size_t key_reads(const DirectParameters& p, bool causal) {
    const int queries = p.query_blocks.tokens(), keys = p.key_blocks.tokens();
    std::size_t reads = 0;
    for (int first = 0; first < queries; first += 128) {
      reads += static_cast<std::size_t>(causal ? std::min(first + 128, keys) : keys);
    }
    return reads;
  }
};
struct QuadraticOfSm90 {
  static constexpr bool kHas72 = false, kHas256 = true;
  template <class T, int D, int E, bool>
  using Kernel = QuadraticSm90<T, D, E>;

  /// Every strip of queries reads K and V once.
  template <class>
  static std::size_t key_reads(const QuadraticSm90Parameters& p, bool) {
    return static_cast<std::size_t>(p.strips.blocks()) *
           static_cast<std::size_t>(p.stage.key_blocks.tokens());
  }
};
struct QuadraticOfSplitKeys {
  static constexpr bool kHas72 = false, kHas256 = false;
  template <class T, int D, int E, bool>
  using Kernel = SplitQuadraticSm80<T, D>;

  /// Every 16 queries read K and V once. Slots after the last key read the last key again.
  template <class Kernel>
  static std::size_t key_reads(const SplitQuadraticParameters& p, bool) {
    return static_cast<std::size_t>(p.strips.value() * Kernel::kMostKeys);
  }
};

template <class Kernels>
class Quadratic : public QuadraticContract<Kernels> {};
using Quadratics = testing::Types<QuadraticOfSm80, QuadraticOfSm90, QuadraticOfSplitKeys>;
TYPED_TEST_SUITE(Quadratic, Quadratics);

TYPED_TEST(Quadratic, GivesOutputsOfEveryWidth) {
  Case c{.blocks = sequence(140, 33)};
  c.heads = 2;
  c.query_map = FeatureMap::relu(0.5f);
  c.key_map = FeatureMap::relu(0.25f);
  this->template expect_right_for_types<64, 64>(c);
  c.layout = 1;
  if constexpr (TypeParam::kHas72) this->template expect_right_for_types<72, 72>(c);
  c.layout = 2;
  c.heads = 1;
  this->template expect_right_for_types<128, 128>(c);
  if constexpr (TypeParam::kHas256) this->template expect_right_for_types<128, 256>(c);
}

TYPED_TEST(Quadratic, GivesOutputsOfBlocksOfImagesAndVideos) {
  Case image{.blocks = {1, 9, 10, 1, 4, 4}};
  image.query_map = FeatureMap::identity();
  image.key_map = FeatureMap::elu_plus_one();
  image.denominator = Denominator::kNone;
  image.batch = 2;
  Case video{.blocks = {3, 5, 7, 2, 3, 4}};
  video.query_map = FeatureMap::elu_plus_one();
  for (Case c : {image, video}) {
    c.seed = 3;
    this->template expect_right_for_types<64, 64>(c);
    if constexpr (TypeParam::kHas72) this->template expect_right_for_types<72, 72>(c);
  }
}

TYPED_TEST(Quadratic, TakesQueriesAndKeysOfDifferentSequences) {
  for (const auto& [queries, keys] :
       {std::pair{1, 130}, {130, 1}, {17, 65}, {257, 63}, {300, 64}}) {
    Case c{.blocks = sequence(queries, 20), .key_blocks = sequence(keys, 7)};
    c.seed = static_cast<std::uint64_t>(queries);
    expect_right<typename TestFixture::template Outputs<half, 64, 64>>(c);
  }
}

TYPED_TEST(Quadratic, TakesBlocksOfAnyLength) {
  std::uint64_t seed = 20;
  for (const int width : {1, 2, 3, 16, 49, 64, 128, 200}) {
    Case c{.blocks = sequence(100, width), .heads = 2, .seed = ++seed};
    expect_right<typename TestFixture::template Outputs<bfloat16, 64, 64>>(c);
  }
}

TYPED_TEST(Quadratic, SharedMemoryHasNoConflictsWhereBlocksAreLong) {
  const auto expect_none = [](auto&& run) {
    ASSERT_TRUE(run.launch(1));
    EXPECT_EQ(run.report.bank_conflicts, 0u) << run.name();
  };
  expect_none(
      typename TestFixture::template Outputs<bfloat16, 64, 64>({.blocks = sequence(256, 16)}));
  expect_none(
      typename TestFixture::template Outputs<half, 128, 128>({.blocks = sequence(128, 64)}));
  expect_none(
      typename TestFixture::template Outputs<half, 64, 64>({.blocks = {1, 16, 16, 1, 4, 4}}));
}

TYPED_TEST(Quadratic, DoesNotDependOnTheOrderOfThreads) {
  expect_same_in_any_order<typename TestFixture::template Outputs<bfloat16, 64, 64>>(
      {.blocks = sequence(300, 64),
       .key_blocks = sequence(250, 64),
       .key_map = FeatureMap::elu_plus_one(),
       .heads = 2});
}

TYPED_TEST(Quadratic, QueriesAndHeadsShareNothing) {
  const Case c{.blocks = sequence(100, 40), .heads = 2, .multiprocessors = 1, .seed = 30};
  typename TestFixture::template Outputs<bfloat16, 64, 64> clean(c), spoilt(c);
  const bfloat16 nan{0x7FC0};
  for (int d = 0; d < 64; ++d) {
    spoilt.q.at(0, 21, 1, d) = nan;
    for (int t = 0; t < 100; ++t) spoilt.k.at(0, t, 0, d) = spoilt.v.at(0, t, 0, d) = nan;
  }
  for (auto* run : {&clean, &spoilt}) ASSERT_TRUE(run->launch(2));
  clean.o.each([&](int b, int t, int h, int e) {
    if (t == 21 || h == 0) {
      EXPECT_EQ(std::isnan(spoilt.o.value(b, t, h, e)), h == 0 || t == 21);
    } else {
      EXPECT_EQ(spoilt.o.at(b, t, h, e).bits, clean.o.at(b, t, h, e).bits);
    }
  });
}

// ---- only sm_80 ---------------------------------------------------------------------------------

template <class T, int D, int E, bool Causal>
using OfSm80 = QuadraticRun<QuadraticOfSm80, T, D, E, Causal>;

template <int D, int E>
void expect_right_causal(const Case& c) {
  expect_right<OfSm80<bfloat16, D, E, true>>(c);
  expect_right<OfSm80<half, D, E, true>>(c);
}

TEST(QuadraticSm80, GivesCausalOutputsOfEveryWidth) {
  Case c{.blocks = sequence(150, 33)};
  c.seed = 2;
  expect_right_causal<64, 64>(c);
  c.layout = 1;
  expect_right_causal<72, 72>(c);
  c.layout = 2;
  expect_right_causal<128, 128>(c);
  c.denominator = Denominator::kNone;
  c.query_map = FeatureMap::elu_plus_one();
  c.key_map = FeatureMap::identity();
  expect_right_causal<128, 256>(c);
}

TEST(QuadraticSm80, TakesMixingMatricesThatSharedMemoryDoesNotHold) {
  for (const int tokens : {64, 65, 90}) {  // blocks of one token: 64 x 65 numbers, 65 x 65, 90 x 91
    expect_right<OfSm80<half, 64, 64, false>>({.blocks = sequence(tokens, 1)});
    expect_right<OfSm80<bfloat16, 64, 64, true>>({.blocks = sequence(tokens, 1)});
  }
}

TEST(QuadraticSm80, TakesBlocksOfAnyLength) {
  std::uint64_t seed = 20;
  for (const int width : {1, 2, 16, 49, 64, 128, 200, 300}) {
    for (const int tokens : {1, 16, 100, 300}) {
      if (tokens > 150 * width) continue;
      Case c{.blocks = sequence(tokens, width)};
      c.seed = ++seed;
      expect_right<OfSm80<half, 64, 64, true>>(c);
      if (tokens == 100) expect_right<OfSm80<bfloat16, 64, 64, false>>(c);
    }
  }
}

TEST(QuadraticSm80, LaterTokensNeverEnterWhateverTheyAre) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  for (const int token : {0, 7, 16, 63, 64, 100, 127, 128, 139}) {
    const Case c{.blocks = sequence(140, 50), .seed = static_cast<std::uint64_t>(token) + 1};
    OfSm80<half, 64, 64, true> clean(c), spoilt(c);
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

TEST(QuadraticSm80, SharedMemoryOfCausalAndOddWidthsHasNoConflicts) {
  OfSm80<half, 128, 128, true> causal({.blocks = sequence(128, 64)});
  OfSm80<half, 72, 72, false> odd({.blocks = sequence(64, 32)});
  ASSERT_TRUE(causal.launch(1) && odd.launch(1));
  EXPECT_EQ(causal.report.bank_conflicts, 0u);
  EXPECT_EQ(odd.report.bank_conflicts, 0u);
}

// ---- only sm_90a --------------------------------------------------------------------------------

template <int D, int E>
QuadraticSm90Parameters prepared_for(const Case& c) {
  QuadraticRun<QuadraticOfSm90, bfloat16, D, E> run(c);
  return prepared<QuadraticSm90<bfloat16, D, E>>(run.stage(), c).value();
}

TEST(QuadraticSm90, StripsAreShorterWhereItemsOrQueriesAreFew) {
  const auto rows = []<int D, int E>(int tokens, int heads, int multiprocessors) {
    const auto p = prepared_for<D, E>(
        {.blocks = sequence(tokens, 16), .heads = heads, .multiprocessors = multiprocessors});
    EXPECT_EQ(p.strips.blocks(), (tokens - 1) / p.q_boxes.rows() + 1);
    return p.q_boxes.rows();
  };
  EXPECT_EQ((rows.template operator()<64, 64>(256, 4, 4)), 256);
  EXPECT_EQ((rows.template operator()<64, 64>(256, 4, 8)), 128);
  EXPECT_EQ((rows.template operator()<64, 64>(256, 4, 132)), 64);
  EXPECT_EQ((rows.template operator()<64, 64>(129, 4, 1)), 256);
  EXPECT_EQ((rows.template operator()<64, 64>(128, 4, 1)), 128);
  EXPECT_EQ((rows.template operator()<128, 256>(256, 4, 4)), 128);
  EXPECT_EQ((rows.template operator()<128, 128>(20, 4, 1)), 64);
}

TEST(QuadraticSm90, SlotsAreWhatTheTableLeaves) {
  const auto slots = []<int D, int E>(int tokens, int block) {
    const auto p = prepared_for<D, E>({.blocks = sequence(tokens, block), .multiprocessors = 1});
    return std::pair(p.slots.queries, p.slots.key_values);
  };
  EXPECT_EQ((slots.template operator()<64, 64>(256, 16)), std::pair(2, 7));
  EXPECT_EQ((slots.template operator()<64, 64>(256, 4)), std::pair(2, 3));
  EXPECT_EQ((slots.template operator()<128, 128>(256, 16)), std::pair(2, 4));
  EXPECT_EQ((slots.template operator()<128, 256>(256, 16)), std::pair(1, 3));
}

TEST(QuadraticSm90, TakesLargeTablesAndManySlots) {
  expect_right<QuadraticRun<QuadraticOfSm90, half, 128, 128>>(
      {.blocks = sequence(256, 4), .multiprocessors = 1});
  expect_right<QuadraticRun<QuadraticOfSm90, bfloat16, 64, 64>>(
      {.blocks = sequence(70, 16), .batch = 3, .heads = 3, .multiprocessors = 1});
}

TEST(QuadraticSm90, RefusesTablesThatDoNotFitAndWhatTheCopyEngineCannotExpress) {
  QuadraticRun<QuadraticOfSm90, half, 64, 64> run({.blocks = sequence(256, 1)});
  EXPECT_FALSE(run.launch(0));
  const Case c{.blocks = sequence(100, 16)};
  QuadraticRun<QuadraticOfSm90, half, 64, 64> narrow(c);
  DirectParameters stage = narrow.stage();
  stage.k.token_stride = 0;
  EXPECT_FALSE((prepared<QuadraticSm90<half, 64, 64>>(stage, c).has_value()));
}

}  // namespace
}  // namespace cuda_test

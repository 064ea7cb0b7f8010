// Tests of the quadratic form with cross-query denominators: outputs against the definition in
// double, reads and writes, and what queries and heads share.

#include "mhla/cuda/kernel/query_sums.cuh"

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <tuple>

#include "mhla/cuda/kernel/cross_rows.cuh"
#include "mhla/cuda/kernel/mixing_copy.cuh"
#include "mhla/cuda/kernel/quadratic_sm80.cuh"
#include "mhla/cuda/kernel/quadratic_sm90.cuh"
#include "support/cuda/quadratic_run.hpp"

namespace cuda_test {
namespace {

using namespace mhla::cuda;  // NOLINT

/// A thread block reads K and V once, since it has all queries.
struct CrossOfSm80 {
  static constexpr bool kHas72 = true;
  template <class T, int D, int E, bool>
  using Kernel = QuadraticSm80<T, D, E, false, true>;

  template <class>
  static std::size_t key_reads(const DirectParameters& p, bool) {
    return static_cast<std::size_t>(p.key_blocks.tokens());
  }
};
struct CrossOfSm90 {
  static constexpr bool kHas72 = false;
  template <class T, int D, int E, bool>
  using Kernel = QuadraticSm90<T, D, E, true>;

  template <class>
  static std::size_t key_reads(const QuadraticSm90Parameters& p, bool) {
    return static_cast<std::size_t>(p.stage.key_blocks.tokens());
  }
};

Case cross_case(const TokenBlocks& queries, const TokenBlocks& keys) {
  Case c{.blocks = queries, .key_blocks = keys};
  c.denominator = Denominator::kCrossQuery;
  return c;
}

template <class Kernels>
class CrossQuadratic : public QuadraticContract<Kernels> {};
using CrossKernels = testing::Types<CrossOfSm80, CrossOfSm90>;
TYPED_TEST_SUITE(CrossQuadratic, CrossKernels);

TYPED_TEST(CrossQuadratic, GivesOutputsOfEveryWidth) {
  Case c = cross_case(sequence(120, 30), sequence(97, 25));
  c.heads = 3;
  c.query_map = FeatureMap::relu(0.5f);
  this->template expect_right_for_types<64, 64>(c);
  c.layout = 1;
  if constexpr (TypeParam::kHas72) this->template expect_right_for_types<72, 72>(c);
  c.layout = 2;
  c.key_map = FeatureMap::elu_plus_one();
  c.multiprocessors = 1;
  this->template expect_right_for_types<128, 128>(c);
  this->template expect_right_for_types<128, 256>(c);
}

TYPED_TEST(CrossQuadratic, TakesAsManyQueriesAsAThreadBlockHas) {
  constexpr int kD = TestFixture::kNarrow;
  const TokenBlocks image(1, 16, 16, 1, 4, 4), half_image(1, 8, 16, 1, 4, 4);
  for (const int multiprocessors : {1, 132}) {
    Case c = cross_case(image, image);
    c.heads = 3;
    c.multiprocessors = multiprocessors;
    this->template expect_right_for_types<kD, kD>(c);
    expect_right<typename TestFixture::template Outputs<bfloat16, 64, 64>>(c);
    c.blocks = half_image;
    c.key_blocks = half_image;
    expect_right<typename TestFixture::template Outputs<half, 128, 128>>(c);
  }
}

TYPED_TEST(CrossQuadratic, TakesBlocksOfImagesAndVideosAndOfAnyLength) {
  using Small = typename TestFixture::template Outputs<half, 64, 64>;
  expect_right<Small>(cross_case({1, 9, 20, 1, 3, 5}, {1, 7, 11, 1, 3, 3}));
  Case video = cross_case({2, 6, 6, 1, 3, 2}, {3, 5, 7, 2, 2, 4});
  video.key_map = FeatureMap::elu_plus_one();  // of absent keys: not 0
  expect_right<Small>(video);
  std::uint64_t seed = 20;
  for (const auto& [queries, keys, blocks] :
       {std::tuple{1, 1, 1}, {64, 256, 1}, {66, 250, 2}, {90, 90, 45}, {80, 64, 16}}) {
    Case c =
        cross_case(sequence(queries, queries / blocks), sequence(keys, (keys - 1) / blocks + 1));
    c.seed = ++seed;
    c.batch = 2;
    expect_right<Small>(c);
  }
}

TYPED_TEST(CrossQuadratic, SharedMemoryHasNoConflicts) {
  const TokenBlocks image(1, 16, 16, 1, 4, 4);
  for (const TokenBlocks& blocks : {image, sequence(256, 16), sequence(256, 64)}) {
    typename TestFixture::template Outputs<bfloat16, 64, 64> run(cross_case(blocks, blocks));
    ASSERT_TRUE(run.launch(1));
    EXPECT_EQ(run.report.bank_conflicts, 0u) << text(blocks);
  }
}

TYPED_TEST(CrossQuadratic, DoesNotDependOnTheOrderOfThreads) {
  for (const int keys : {250, 50}) {
    Case c = cross_case(sequence(200, 40), sequence(keys, keys / 5));
    c.heads = 5;
    expect_same_in_any_order<typename TestFixture::template Outputs<bfloat16, 64, 64>>(c);
  }
}

// A query enters the denominators of the queries in its slot, and no others.
TYPED_TEST(CrossQuadratic, QueriesShareSlotsAndHeadsShareNothing) {
  Case c = cross_case(sequence(100, 20), sequence(100, 20));
  c.heads = 2, c.multiprocessors = 1;
  const auto spoil = [](auto& run) {
    for (int d = 0; d < 64; ++d) run.q.at(0, 23, 1, d) = bfloat16{0x7FC0};
    for (int t = 0; t < 100; ++t) run.v.at(0, t, 0, 5) = bfloat16{0x7FC0};
  };
  typename TestFixture::template Outputs<bfloat16, 64, 64> clean(c), spoilt(c);
  spoil(spoilt);
  for (auto* run : {&clean, &spoilt}) ASSERT_TRUE(run->launch(2));
  clean.o.each([&](int b, int t, int h, int e) {
    if (h == 0 ? e == 5 : t % 20 == 3) {
      EXPECT_TRUE(std::isnan(spoilt.o.value(b, t, h, e))) << t;
    } else {
      EXPECT_EQ(spoilt.o.at(b, t, h, e).bits, clean.o.at(b, t, h, e).bits) << t;
    }
  });
}

TEST(CrossQuadraticSm80, TakesMixingMatricesThatSharedMemoryDoesNotHold) {
  const TokenBlocks single = sequence(256, 1);
  expect_right<QuadraticRun<CrossOfSm80, half, 64, 64>>(cross_case(single, single));
}

TEST(CrossQuadraticSm90, RefusesMoreThanAThreadBlockHolds) {
  const auto takes = []<int D>(int queries, int keys) {
    const Case c = cross_case(sequence(queries, queries / 2), sequence(keys, keys / 2));
    QuadraticRun<CrossOfSm90, half, D, D> run(c);
    return prepared<QuadraticSm90<half, D, D, true>>(run.stage(), c).has_value();
  };
  EXPECT_TRUE((takes.template operator()<64>(256, 256)));
  EXPECT_FALSE((takes.template operator()<64>(258, 256)));
  EXPECT_FALSE((takes.template operator()<64>(256, 258)));
  EXPECT_TRUE((takes.template operator()<128>(128, 256)));
  EXPECT_FALSE((takes.template operator()<128>(130, 256)));
}

}  // namespace
}  // namespace cuda_test

// Mixtures of summaries against the definition in double, what the kernel moves, what it must not
// touch.

#include "mhla/cuda/kernel/mixing_sm80.cuh"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "mhla/cuda/kernel/key_sum_mixing.cuh"
#include "mhla/cuda/kernel/mixing_sm80_config.cuh"
#include "support/cuda/mixing_run.hpp"

namespace {

using namespace mhla::cuda;  // NOLINT
using cuda_test::Array;
using cuda_test::Mixtures;

TEST(MixingSm80, MixesAnyNumberOfSummaries) {
  std::uint64_t seed = 0;
  for (const int blocks : {1, 2, 15, 16, 17, 31, 33, 65, 70}) {
    for (const bool earlier : {false, true}) {
      cuda_test::expect_right_mixtures<bfloat16, 64, 64>(
          {blocks, blocks, 1, earlier, seed % 4 < 2, seed});
      ++seed;
    }
  }
  cuda_test::expect_right_mixtures<bfloat16, 64, 64>({130, 150, 1, true, false, 1});
}

TEST(MixingSm80, MixesRectangles) {
  std::uint64_t seed = 0;
  for (const bool earlier : {false, true}) {
    cuda_test::expect_right_mixtures<half, 64, 64>({3, 40, 2, earlier, false, seed++});
    cuda_test::expect_right_mixtures<half, 64, 64>({40, 3, 2, earlier, true, seed++});
    cuda_test::expect_right_mixtures<half, 72, 72>({66, 34, 1, earlier, true, seed++});
  }
}

/// All pairs of width, type, precision, `earlier` and `few_bits`, not all combinations.
template <int D, int E>
void expect_right_for_types(bool odd) {
  cuda_test::expect_right_mixtures<bfloat16, D, E, Precision::kSingle>({3, 3, 2, odd, odd, 1});
  cuda_test::expect_right_mixtures<bfloat16, D, E, Precision::kPair>({9, 9, 1, !odd, odd, 2});
  cuda_test::expect_right_mixtures<half, D, E, Precision::kSingle>({9, 9, 1, odd, !odd, 3});
  cuda_test::expect_right_mixtures<half, D, E, Precision::kPair>({3, 3, 1, !odd, !odd, 4});
}

TEST(MixingSm80, KnowsAllWidthsTypesAndPrecisions) {
  expect_right_for_types<64, 64>(false);
  expect_right_for_types<72, 72>(true);
  expect_right_for_types<128, 128>(false);
  expect_right_for_types<128, 256>(true);
}

TEST(MixingSm80, WorksInAnyOrderOfThreads) {
  for (std::uint64_t seed = 1; seed < 4; ++seed) {  // one of each kind: emulator/schedule.hpp
    cuda_test::expect_right_mixtures<half, 64, 64, Precision::kPair>(
        {66, 40, 1, false, false, seed});
  }
}

TEST(MixingSm80, GivesTheSumOfNothingForTheFirstOfEarlierMixtures) {
  Mixtures<bfloat16, 72, 72, Precision::kPair> mixtures({1, 1, 3, true});
  for (std::int64_t i = 0; i < mixtures.in_high.size(); ++i) {
    mixtures.in_high[i] = mixtures.in_low[i] = bfloat16{0x7FC0};
  }
  mixtures.launch();
  for (std::int64_t i = 0; i < mixtures.high.size(); ++i) {
    ASSERT_EQ(mixtures.high.value(i), 0);
    ASSERT_EQ(mixtures.low.value(i), 0);
  }
  for (std::int64_t i = 0; i < mixtures.z.size(); ++i) ASSERT_EQ(mixtures.z.value(i), 0);
}

/// S_b and z_b with infinities and NaN in them, of another b in each 32 columns: in all of these,
/// or in one. Rows that do not count b must have the bits that they have without.
template <class T, int D, int E, Precision P>
void expect_only_what_counts(const cuda_test::MixingCase& c, bool whole) {
  SCOPED_TRACE(c.text() + (whole ? ", in all columns" : ", in single columns"));
  using Own = Mixtures<T, D, E, P>;
  constexpr double kSpecial[] = {std::numeric_limits<double>::quiet_NaN(),
                                 std::numeric_limits<double>::infinity(),
                                 -std::numeric_limits<double>::infinity()};
  Own without(c), with(c);
  const auto is_special = [&](int at) { return whole || at % 32 == at / 32 % 32; };
  for (int at = 0; at < D * E; ++at) {
    const int group = at / 32;
    Array<T>& part = Own::kPair && group % 4 == 3 ? with.in_low : with.in_high;
    const std::int64_t from = std::int64_t{group % c.columns} * D * E + at;
    if (is_special(at)) part[from] = cuda_test::from_double<T>(kSpecial[group % 3]);
  }
  for (int d = 0; d < D; ++d) {
    with.in_z[d % c.columns * D + d] = static_cast<float>(kSpecial[d % 3]);
  }
  without.launch();
  with.launch();
  for (int i = 0; i < c.rows; ++i) {
    for (int at = 0; at < D * E; ++at) {
      const std::int64_t to = std::int64_t{i} * D * E + at;
      if (is_special(at) && at / 32 % c.columns < without.end(i)) {
        ASSERT_FALSE(std::isfinite(with.high.value(to))) << i << " " << at;
      } else {
        ASSERT_EQ(with.high[to].bits, without.high[to].bits) << i << " " << at;
        ASSERT_EQ(with.low[to].bits, without.low[to].bits) << i << " " << at;
      }
    }
    for (int d = 0; d < D; ++d) {
      const float z = with.z[i * D + d];
      if (d % c.columns < without.end(i)) {
        ASSERT_FALSE(std::isfinite(z)) << i << " " << d;
      } else {
        ASSERT_EQ(std::bit_cast<std::uint32_t>(z),
                  std::bit_cast<std::uint32_t>(without.z[i * D + d]))
            << i << " " << d;
      }
    }
  }
}

TEST(MixingSm80, KeepsLaterSummariesOut) {
  constexpr Precision kSingle = Precision::kSingle, kPair = Precision::kPair;
  const cuda_test::MixingCase square{70, 70, 1, true, false, 1};
  expect_only_what_counts<bfloat16, 64, 64, kSingle>(square, false);
  expect_only_what_counts<bfloat16, 64, 64, kPair>(square, true);
  expect_only_what_counts<half, 64, 64, kSingle>(square, true);
  expect_only_what_counts<half, 64, 64, kPair>(square, false);
  expect_only_what_counts<bfloat16, 64, 64, kSingle>({70, 21, 1, true}, false);
  expect_only_what_counts<half, 64, 64, kPair>({21, 70, 1, true}, false);
  expect_only_what_counts<half, 72, 72, kPair>({35, 35, 1, true}, false);
  expect_only_what_counts<half, 64, 64, kSingle>({35, 35, 1, false}, false);
}

TEST(MixingSm80, SkipsWhatLiesRightOfTheDiagonal) {
  using Own = Mixtures<bfloat16, 64, 64, Precision::kSingle>;
  const auto products = [](bool earlier) {
    return Own({128, 128, 1, earlier}).launch(false).count("mma");
  };
  // Of 8 x 8 parts of 16 x 16, 36 are on or left of the diagonal.
  EXPECT_EQ(products(true) * 64, products(false) * 36);
}

TEST(MixingSm80, GoesFromTheLastPairToTheFirst) {
  Mixtures<bfloat16, 64, 64, Precision::kSingle> own({4, 4, 3});
  using Kernel = decltype(own)::Kernel;
  const MixingParameters params{{own.in_high.raw(), nullptr, nullptr},
                                {own.high.raw(), nullptr, nullptr},
                                {own.mixing.data(), own.stride},
                                4,
                                4,
                                false};
  emulator::Device device;  // in the order of thread blocks
  device.track("m", own.mixing.data(), own.mixing.bytes(), emulator::Access::kRead);
  device.track("in", own.in_high.raw(), own.in_high.bytes(), emulator::Access::kRead);
  const std::size_t pair = own.high.bytes() / 3;
  device.track("out", own.high.raw() + 2 * pair, pair, emulator::Access::kWrite);
  const unsigned blocks = Kernel::grid(params, 3);
  std::string fault;
  try {
    device.launch<Kernel>(blocks, params);
  } catch (const emulator::Fault& f) {
    fault = f.what();
  }
  // The first that does not write the last pair's.
  EXPECT_EQ(fault.rfind("outside: block " + std::to_string(blocks / 3) + ",", 0), 0u) << fault;
}

TEST(MixingSm80, LeavesKeySumsOutWhereNobodyReadsThem) {
  Mixtures<half, 128, 128, Precision::kSingle> mixtures({4, 4});
  mixtures.launch(false);
  for (std::int64_t i = 0; i < mixtures.z.size(); ++i) {
    ASSERT_TRUE(std::isnan(mixtures.z.value(i)));
  }
}

}  // namespace

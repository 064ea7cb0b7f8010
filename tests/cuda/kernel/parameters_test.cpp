// Tests of kernel parameters: widths, grids, normalizations, the state of a stream.

#include "mhla/cuda/kernel/parameters.cuh"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <iterator>

#include "mhla/cuda/kernel/streaming_state.cuh"
#include "mhla/cuda/kernel/summary_sm80.cuh"
#include "mhla/cuda/kernel/widths.cuh"

namespace mhla::cuda {
namespace {

TEST(Widths, AreTheLinesOfTheTable) {
  std::size_t count = 0;
  for (int d = 0; d <= 300; ++d) {
    for (int e = 0; e <= 300; ++e) count += has_kernels(d, e) ? 1 : 0;
  }
  EXPECT_EQ(count, std::size(kWidthPairs));
  EXPECT_TRUE(has_kernels(64, 64) && has_kernels(72, 72));
  EXPECT_TRUE(has_kernels(128, 128) && has_kernels(128, 256));
  EXPECT_FALSE(has_kernels(64, 72) || has_kernels(256, 128));
}

/// Gradients multiply (E, D) or, of wide values, halves of them (gradient_problem.cuh).
TEST(Widths, GradientsHaveTheirPairs) {
  for (const WidthPair& pair : kWidthPairs) {
    EXPECT_TRUE(has_kernels(pair.e > 128 ? pair.e / 2 : pair.e, pair.d)) << pair.d << " " << pair.e;
  }
}

TEST(Widths, KernelsOfSm90aAreThoseOfTheTable) {
  EXPECT_EQ(sm90_kernels(64, 64), Sm90Kernels::kWgmma);
  EXPECT_EQ(sm90_kernels(72, 72), Sm90Kernels::kMma);
  EXPECT_EQ(sm90_kernels(1, 1), Sm90Kernels::kNone);
  static_assert(Widths<64, 64>::kFusedCausal && !Widths<128, 128>::kFusedCausal);
  static_assert(Widths<128, 128>::kSplitsKeys && !Widths<128, 256>::kSplitsKeys);
  static_assert(!Widths<72, 72>::kSplitsKeys && !Widths<72, 72>::kFusedCausal);
}

// The x axis of a grid counts units of work: here blocks of tokens of all pairs.
TEST(Grid, CountsAlongX) {
  SummaryParameters parameters{};
  parameters.blocks = TokenBlocks(1, 1, 100, 1, 1, 16);
  EXPECT_EQ((SummarySm80<half, 64, 64, Precision::kSingle>::grid(parameters, 70000)), 7u * 70000);
}

constexpr Normalization kPlain{Denominator::kNone, 0.5f, 1e-3f};
constexpr Normalization kDivided{Denominator::kKeySum, 0.5f, 0.25f};

// o = scale n, or scale n / (scale d + eps).
static_assert(kPlain.factor(8) == 0.5f);
static_assert(kDivided.factor(8) == 0.5f / 4.25f);
static_assert(Normalization{Denominator::kCrossQuery, 1, 0}.factor(4) == 0.25f);

// The greatest power of two that is at most 1 / W.
static_assert(summary_scale(1) == 1 && summary_scale(2) == 0.5f && summary_scale(3) == 0.25f);
static_assert(summary_scale(256) == 0x1p-8f && summary_scale(257) == 0x1p-9f);
static_assert(summary_scale(0x7FFFFFFF) == 0x1p-31f && inverse_power(0x1p-31f) == 0x1p31f);
static_assert(inverse_power(1) == 1);

TEST(Parameters, RowsOfTheMixingMatrixAreAStrideApart) {
  const float numbers[20] = {};
  const MixingArray m{numbers, 5};
  EXPECT_EQ(m.row(0), numbers);
  EXPECT_EQ(m.row(3), numbers + 15);
}

TEST(Parameters, FactorsAreThoseOfTheNormalization) {
  EXPECT_EQ(kPlain.factor(-100), 0.5f);
  EXPECT_EQ(kDivided.factor(0), 2.0f);
}

TEST(Parameters, SummariesOfAStreamHaveRoomForMore) {
  SummaryArray array{};
  EXPECT_EQ(array.first(std::int64_t{1} << 30, 7), std::int64_t{7} << 30);
  array.capacity = 9;
  EXPECT_EQ(array.first(3, 7), 27);
}

using Layout = StreamingStateLayout;

/// The parts in order, with the bytes that the header's table gives each of them.
void expect_parts(std::int64_t pairs, std::int64_t blocks, std::int64_t length, int d, int e,
                  Precision precision, std::int64_t terms = 0) {
  const Layout layout = streaming_state_layout(pairs, blocks, length, d, e, precision, terms);
  const std::int64_t slices = e == 72 ? 1 : e / 64;
  const std::int64_t low = precision == Precision::kPair ? 1 : 0;
  const std::int64_t matrix = 2 * d * e;
  EXPECT_EQ(layout.position_bytes, pairs * slices * 8);
  const std::int64_t begins[] = {0,
                                 layout.mixture_high,
                                 layout.mixture_low,
                                 layout.mixture_key_sum,
                                 layout.summary_high,
                                 layout.summary_low,
                                 layout.summary_key_sum,
                                 layout.keys,
                                 layout.values,
                                 layout.terms,
                                 layout.term_key_sums,
                                 layout.bytes};
  const std::int64_t bytes[] = {
      pairs * slices * 8,        2 * pairs * matrix,      2 * pairs * matrix * low,
      2 * pairs * d * 4,         pairs * blocks * matrix, pairs * blocks * matrix * low,
      pairs * blocks * d * 4,    pairs * length * d * 2,  pairs * length * e * 2,
      pairs * terms * d * e * 4, pairs * terms * d * 4};
  for (int i = 0; i < 11; ++i) {
    EXPECT_EQ(begins[i] % 256, 0) << i;
    EXPECT_EQ(begins[i + 1], (begins[i] + bytes[i] + 255) / 256 * 256) << i;
  }
}

TEST(StreamingState, PartsFollowEachOther) {
  for (const Precision precision : {Precision::kSingle, Precision::kPair}) {
    expect_parts(1, 1, 1, 64, 64, precision);
    expect_parts(3, 7, 49, 72, 72, precision);
    expect_parts(64, 32, 64, 128, 256, precision);
    expect_parts(4096, 1000, 256, 128, 128, precision);  // more than 2^32 bytes
    expect_parts(4096, 2, 256, 128, 128, precision, 32);
    expect_parts(3, 2, 49, 72, 72, precision, 1);
  }
}

// Positions from the third block on count alike if they are an even number of blocks apart.
TEST(StreamingState, CountersOfStreamsWithoutAnEndStayBelowFourBlocks) {
  for (const int slots : {1, 4, 7}) {
    int counter = 0;
    for (int t = 0; t < 40 * slots; ++t) {
      ASSERT_EQ(endless_counter(t, slots), counter);
      ASSERT_EQ(counter % slots, t % slots);
      ASSERT_EQ(counter / slots % 2, t / slots % 2);
      ASSERT_EQ(counter < slots, t < slots);
      ASSERT_LT(counter, 4 * slots);
      counter = endless_counter(counter + 1, slots);
    }
  }
}

TEST(StreamingState, PointersAreWhereThePartsBegin) {
  alignas(256) static unsigned char memory[1 << 18];
  const Layout layout = streaming_state_layout(1, 2, 4, 64, 64, Precision::kPair, 2);
  ASSERT_LE(layout.bytes, std::int64_t{sizeof memory});
  const StreamingState state = layout.at(memory);
  const auto offset = [&](const void* part) {
    return static_cast<const unsigned char*>(part) - memory;
  };
  EXPECT_EQ(offset(state.positions), 0);
  EXPECT_EQ(offset(state.mixture.high), layout.mixture_high);
  EXPECT_EQ(offset(state.mixture.low), layout.mixture_low);
  EXPECT_EQ(offset(state.mixture.key_sum), layout.mixture_key_sum);
  EXPECT_EQ(offset(state.summaries.high), layout.summary_high);
  EXPECT_EQ(offset(state.summaries.low), layout.summary_low);
  EXPECT_EQ(offset(state.summaries.key_sum), layout.summary_key_sum);
  EXPECT_EQ(offset(state.keys), layout.keys);
  EXPECT_EQ(offset(state.values), layout.values);
  EXPECT_EQ(offset(state.terms), layout.terms);
  EXPECT_EQ(offset(state.term_key_sums), layout.term_key_sums);
}

}  // namespace
}  // namespace mhla::cuda

// Tests of decoding token by token: outputs of whole sequences against the causal form in double,
// reads and writes, and memory that stays untouched. The bound: streaming_run.hpp.

#include "mhla/cuda/kernel/streaming_step_sm80.cuh"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "mhla/cuda/kernel/earlier_blocks.cuh"
#include "mhla/cuda/kernel/streaming_slice.cuh"
#include "mhla/cuda/kernel/streaming_state.cuh"
#include "support/cuda/output_bound.hpp"
#include "support/cuda/problem.hpp"
#include "support/cuda/streaming_run.hpp"

namespace cuda_test {
namespace {

using namespace mhla::cuda;  // NOLINT

/// Bytes of the matrices of a pair that a step moves.
struct Moved {
  std::uint64_t mixtures_read, mixtures_written, summaries_read, summaries_written;
};

/// \param t  the token
template <int D, int E>
Moved moved(const StreamCase& c, int t) {
  using Slice = StreamingSlice<D, E>;
  const int block = t / c.length, slot = t % c.length;
  const bool last = slot == c.length - 1, next = block + 1 < c.blocks;
  const auto row_bytes = [](int rows) { return static_cast<std::uint64_t>(rows * E * 2); };
  Moved moved{};
  if (next) {  // a share of the next block's mixture, from all blocks before this one
    const int pieces = D * Slice::kPieces, each = (pieces + c.length - 1) / c.length;
    const int share = std::clamp(pieces - slot * each, 0, each);
    moved.mixtures_written = static_cast<std::uint64_t>(share * 16 * Slice::kSlices);
    moved.summaries_read = moved.mixtures_written * static_cast<std::uint64_t>(block);
    if (last) moved.summaries_written = row_bytes(D);
  }
  if (block > 0) {  // rows whose share is still to come get the part of the block before
    const auto rows_from = [](int turn) { return std::max(0, D - 2 * Slice::kGroups * turn); };
    moved.mixtures_read = row_bytes(D);
    moved.summaries_read += row_bytes(rows_from(slot));
    moved.mixtures_written += row_bytes(rows_from(slot) - (last ? 0 : rows_from(slot + 1)));
  }
  return moved;
}

/// Decodes whole sequences and checks outputs and bytes.
template <class T, int D, int E, Precision P>
void check(const StreamCase& c) {
  SCOPED_TRACE(std::string(Format<T>::kName) + " D " + std::to_string(D) + " E " +
               std::to_string(E) + " W " + std::to_string(c.length));
  Streams<T, D, E, P> x(c, c.seed);
  const auto pairs = static_cast<std::uint64_t>(c.batch * c.heads);
  for (int t = 0; t < c.tokens; ++t) {
    x.step(t);
    const auto slot = static_cast<std::uint64_t>(t % c.length);
    const auto slices = static_cast<std::uint64_t>(E / streaming_slice(E));
    const Moved expected = moved<D, E>(c, t);
    ASSERT_EQ(x.report.bank_conflicts, 0u) << t;
    for (const char* part : {"", " low"}) {
      if (P == Precision::kSingle && part[0] != 0) continue;
      const std::string mixtures = std::string("mixtures") + part;
      const std::string summaries = std::string("summaries") + part;
      ASSERT_EQ(x.report.bytes_read(mixtures), pairs * expected.mixtures_read) << t;
      ASSERT_EQ(x.report.bytes_written(mixtures), pairs * expected.mixtures_written) << t;
      ASSERT_EQ(x.report.bytes_read(summaries), pairs * expected.summaries_read) << t;
      ASSERT_EQ(x.report.bytes_written(summaries), pairs * expected.summaries_written) << t;
    }
    ASSERT_EQ(x.report.bytes_written("keys"), pairs * D * 2);
    ASSERT_EQ(x.report.bytes_written("values"), pairs * E * 2);
    ASSERT_EQ(x.report.bytes_written("o"), pairs * E * 2);
    // The last step of a block reads several chunks of keys again per 64 rows of the summary.
    const bool full = t % c.length == c.length - 1 && t / c.length < c.blocks - 1;
    const std::uint64_t times = full && c.length > 64 ? 1 + (D + 63) / 64 : 1;
    ASSERT_EQ(x.report.bytes_read("keys"), times * pairs * slices * slot * D * 2);
    ASSERT_EQ(x.report.bytes_read("values"), times * pairs * slot * E * 2);
  }
  EXPECT_TRUE(x.o.padding_is_untouched());
  Comparison comparison("W " + std::to_string(c.length));
  for (int b = 0; b < c.batch; ++b) {
    for (int h = 0; h < c.heads; ++h) compare(comparison, x, b, h);
  }
  EXPECT_GT(comparison.worst(), 0);
}

constexpr auto kSingle = Precision::kSingle;
constexpr auto kPair = Precision::kPair;

TEST(StreamingStepSm80, EveryTokenMayBeABlock) {
  check<bfloat16, 64, 64, kSingle>({40, 1, 40, kElu, kKeySum, 1, 2, 0, 1});
  check<half, 72, 72, kPair>({7, 1, 7, kIdentity, kNone, 1, 1, 1, 2});
  check<bfloat16, 128, 256, kSingle>({4, 1, 4, kRelu, kKeySum, 1, 1, 2, 3});
}

TEST(StreamingStepSm80, ShortBlocks) {
  check<bfloat16, 64, 64, kPair>({5, 5, 23, kRelu, kKeySum, 2, 2, 1, 1});
  check<half, 64, 64, kSingle>({6, 16, 96, kIdentity, kNone, 1, 1, 2, 2});
  check<bfloat16, 72, 72, kSingle>({4, 5, 20, kElu, kKeySum, 2, 1, 0, 3});
  check<half, 128, 128, kPair>({5, 5, 25, kElu, kKeySum, 1, 2, 1, 4});
}

TEST(StreamingStepSm80, WideValuesAreSlicedAmongBlocks) {
  check<bfloat16, 128, 256, kPair>({3, 16, 37, kElu, kKeySum, 1, 2, 0, 1});
  check<half, 128, 256, kSingle>({3, 5, 15, kIdentity, kNone, 2, 1, 1, 2});
  check<bfloat16, 128, 128, kSingle>({3, 16, 48, kRelu, kKeySum, 1, 1, 2, 3});
}

TEST(StreamingStepSm80, BlocksAsLongAsAChunkAndLonger) {
  check<bfloat16, 64, 64, kSingle>({3, 64, 140, kElu, kKeySum, 1, 1, 0, 1});
  check<half, 72, 72, kSingle>({2, 70, 75, kRelu, kKeySum, 1, 1, 1, 2});
  check<half, 128, 128, kSingle>({2, 64, 66, kIdentity, kNone, 1, 1, 2, 3});
  check<bfloat16, 64, 64, kPair>({2, 150, 152, kRelu, kKeySum, 1, 1, 0, 4});
}

TEST(StreamingStepSm80, BytesOfAStepAreFlat) {
  const StreamCase c{26, 16, 25 * 16, kRelu, kKeySum};
  Streams<bfloat16, 64, 64, kSingle> x(c, 1);
  std::uint64_t least = ~0ull, most = 0;
  for (int t = 0; t < c.tokens; ++t) {
    x.step(t);
    if (t < 24 * c.length) continue;
    std::uint64_t bytes = 0;
    for (const auto& [name, traffic] : x.report.traffic) bytes += traffic.read + traffic.written;
    least = std::min(least, bytes);
    most = std::max(most, bytes);
  }
  EXPECT_LT(most, 2 * least);              // of any step of block 24
  EXPECT_LT(most, 24u * 64 * 64 * 2 / 3);  // which reads 24 summaries in all
}

TEST(StreamingStepSm80, AfterTheLastTokenOutputsAreNanAndTheStateStays) {
  const StreamCase c{2, 3, 7, kRelu, kKeySum, 1, 2, 0, 1};
  Streams<bfloat16, 128, 128, kSingle> x(c, 1);
  for (int t = 0; t < 6; ++t) x.step(t);
  const std::vector<unsigned char> before(x.state.data(), x.state.data() + x.state.size());
  x.step(6);
  for (int h = 0; h < 2; ++h) {
    for (int e = 0; e < 128; ++e) {
      EXPECT_FALSE(std::isnan(x.o.value(0, 5, h, e)));
      EXPECT_TRUE(std::isnan(x.o.value(0, 6, h, e)));
    }
  }
  EXPECT_EQ(x.report.bytes_written("o"), 2u * 128 * 2);
  EXPECT_EQ(std::memcmp(before.data(), x.state.data(), before.size()), 0);
}

TEST(StreamingStepSm80, SequencesStandWhereTheyWill) {
  const StreamCase c{3, 4, 12, kElu, kKeySum, 3, 2, 0, 6};
  Streams<bfloat16, 128, 128, kSingle> together(c, 1), x(c, 1);
  for (int t = 0; t < c.tokens; ++t) together.step(t);
  for (int t = 0; t < 6; ++t) x.step({1, t}, {0, t, false});  // an item without a sequence
  for (int t = 0; t < 12; ++t) x.step({0, t}, {2, t});
  x.start(1);  // other sequences stay at their ends
  for (int t = 0; t < 12; ++t) x.step({0, 0, false}, {1, t});
  for (int h = 0; h < 2; ++h) EXPECT_TRUE(std::isnan(x.o.value(0, 0, h, 0)));
  x.start(0);
  for (int t = 0; t < 12; ++t) x.step({2, 11, false}, {0, t});
  for (int h = 0; h < 2; ++h) EXPECT_TRUE(std::isnan(x.o.value(2, 11, h, 0)));
  for (int b = 0; b < 3; ++b) {
    for (int t = 0; t < 12; ++t) {
      if (b == 2 && t == 11) continue;
      for (int h = 0; h < 2; ++h) {
        for (int e = 0; e < 128; ++e)
          ASSERT_EQ(x.o.value(b, t, h, e), together.o.value(b, t, h, e));
      }
    }
  }
  const auto bytes = static_cast<std::size_t>(x.layout.bytes);
  EXPECT_EQ(std::memcmp(x.state.data(), together.state.data(), bytes), 0);
}

TEST(StreamingStepSm80, SchedulesChangeNoBit) {
  const StreamCase c{3, 6, 14, kElu, kKeySum, 1, 2, 0, 5};
  Streams<half, 128, 128, kPair> first(c, 0);
  for (int t = 0; t < c.tokens; ++t) first.step(t);
  for (unsigned schedule = 1; schedule < 4; ++schedule) {
    Streams<half, 128, 128, kPair> again(c, schedule);
    for (int t = 0; t < c.tokens; ++t) again.step(t);
    EXPECT_EQ(std::memcmp(first.o.raw(), again.o.raw(), first.o.bytes()), 0);
    EXPECT_EQ(std::memcmp(first.state.data(), again.state.data(), first.state.bytes()), 0);
  }
}

TEST(StreamingStepSm80, PairsKeepTheDigitsOfTheMixture) {
  const StreamCase c{3, 1, 3, kIdentity, kNone};
  Streams<bfloat16, 64, 64, kPair> x(c, 1);
  for (Tensor<bfloat16>* tensor : {&x.q, &x.k, &x.v}) tensor->fill([] { return 1; });
  for (int i = 0; i < 3; ++i) {
    for (int b = 0; b < 3; ++b) x.mixing.at(i, b) = 0;
  }
  x.mixing.at(2, 0) = 1 + 0x1p-10f;  // S~_2 = S_0 (1 + 2^-10), which bfloat16 rounds to S_0;
  x.mixing.at(2, 2) = -1;            // the block's weight takes S_0 away again
  for (int t = 0; t < 3; ++t) x.step(t);
  for (int e = 0; e < 64; ++e) EXPECT_EQ(x.o.value(0, 2, 0, e), 0.75 * 64 * 0x1p-10);
}

TEST(StreamingStepSm80, DenominatorsMayBeZero) {
  Streams<bfloat16, 64, 64, kSingle> x({1, 2, 2, kIdentity, kKeySum, 1, 1, 0, 1, 0}, 1);
  x.q.fill([] { return 1; });
  for (int d = 0; d < 64; ++d) {
    for (int t = 0; t < 2; ++t) {
      x.k.at(0, t, 0, d) = from_double<bfloat16>(1 - 2 * t);
      x.v.at(0, t, 0, d) = from_double<bfloat16>(1 + t * (d % 2));
    }
  }
  for (int t = 0; t < 2; ++t) x.step(t);
  for (int e = 0; e < 64; ++e) {
    EXPECT_EQ(x.o.value(0, 0, 0, e), 1);
    EXPECT_EQ(x.o.value(0, 1, 0, e), e % 2 == 0 ? 0 : -INFINITY) << e;
  }
}

TEST(StreamingStepSm80, LargeSumsStayInRange) {
  const StreamCase c{2, 64, 66, kRelu, kKeySum};
  Streams<half, 64, 64, kSingle> x(c, 1);
  for (Tensor<half>* tensor : {&x.k, &x.v}) tensor->fill([] { return 50; });  // S is 160000
  for (int t = 0; t < c.tokens; ++t) x.step(t);
  Comparison comparison("large sums");
  compare(comparison, x, 0, 0);
}

TEST(StreamingStepSm80, AStateIsAsLargeAsItsPartsSay) {
  const auto single = streaming_state_layout(3, 10, 64, 128, 256, kSingle);
  EXPECT_EQ(single.position_bytes, 3 * 4 * 8);
  EXPECT_EQ(single.mixture_high, 256);
  EXPECT_EQ(single.bytes, 256 + 3 * (2 * 12 * 128 * 256 + 4 * 12 * 128 + 2 * 64 * (128 + 256)));
  const auto pair = streaming_state_layout(3, 10, 64, 128, 256, kPair);
  EXPECT_EQ(pair.bytes - single.bytes, 3 * 2 * 12 * 128 * 256);
  const auto odd = streaming_state_layout(1, 1, 1, 72, 72, kSingle);
  for (const std::int64_t begin : {odd.mixture_key_sum, odd.summary_high, odd.keys, odd.values}) {
    EXPECT_EQ(begin % 256, 0);
  }
}

}  // namespace
}  // namespace cuda_test

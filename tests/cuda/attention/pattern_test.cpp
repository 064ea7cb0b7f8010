// Tests of the bits of a pattern.

#include "mhla/cuda/attention/pattern.cuh"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "support/message_of.hpp"

namespace {

using mhla::Index;
using mhla::Pattern;
using mhla::cuda::PatternBits;

bool bit(const std::vector<std::uint32_t>& words, std::int64_t begin, Index place) {
  return (words[static_cast<std::size_t>(begin + place / 32)] >> place % 32 & 1) != 0;
}

// Patterns with short last tiles, strips and words, and more strips than a word has bits.
TEST(PatternBits, AreThoseOfCoefficientsAndOfStrips) {
  std::vector<std::vector<Index>> lists(70);
  lists[0] = {0, 1099}, lists[65] = {33}, lists[69] = {1000, 1023, 1024};
  for (const Pattern& pattern : {Pattern(1100, lists), Pattern(130, 70, 3, 40), Pattern(1, 1)}) {
    const auto rows = static_cast<std::int32_t>(pattern.rows());
    const auto columns = static_cast<std::int32_t>(pattern.cols());
    const PatternBits layout{rows, columns};
    const std::vector<std::uint32_t> words = mhla::cuda::pattern_bits(pattern);
    ASSERT_EQ(static_cast<std::int64_t>(words.size()), layout.size());
    const Index across = 32 * PatternBits::words(columns), down = 32 * PatternBits::words(rows);
    std::vector<bool> strips(static_cast<std::size_t>(rows / 64 + 1) * across);
    std::vector<bool> transposed(static_cast<std::size_t>(columns / 64 + 1) * down);
    for (Index i = 0; i < rows; ++i) {
      for (Index b = 0; b < columns; ++b) {
        const bool has = pattern.holds(i, b);
        ASSERT_EQ(bit(words, layout.coefficients() + i * layout.row_words(), b), has);
        if (!has) continue;
        strips[static_cast<std::size_t>(i / 64 * across + b / 32)] = true;
        transposed[static_cast<std::size_t>(b / 64 * down + i / 32)] = true;
      }
    }
    for (Index n = 0; n < (rows - 1) / 64 * across + across; ++n) {
      ASSERT_EQ(bit(words, 0, n), strips[static_cast<std::size_t>(n)]) << n;
    }
    for (Index n = 0; n < (columns - 1) / 64 * down + down; ++n) {
      ASSERT_EQ(bit(words, layout.transposed(), n), transposed[static_cast<std::size_t>(n)]) << n;
    }
  }
}

TEST(PatternBits, OfNothingAreRefused) {
  EXPECT_EQ(mhla::test::message_of<mhla::shape_error>([] { mhla::cuda::pattern_bits(Pattern()); }),
            "mhla::cuda::pattern_bits: pattern has shape [0, 0], expected 1 to 2^31 - 1 rows and "
            "columns");
}

}  // namespace

#include "mhla/cuda/tile/token_blocks.cuh"

#include <gtest/gtest.h>

#include <bit>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "mhla/policy/grid_partition.hpp"
#include "support/random.hpp"

namespace mhla::cuda {
namespace {

namespace token_blocks_tests {

TokenBlocks blocks_of(const GridShape& size, const GridShape& block) {
  const auto at = [](const GridShape& shape, int axis) {
    return static_cast<std::int32_t>(shape[axis]);
  };
  return {at(size, 0), at(size, 1), at(size, 2), at(block, 0), at(block, 1), at(block, 2)};
}

/// Tokens of the filled slots of a block, in the order of slots.
std::vector<Index> tokens_of(const TokenBlocks& blocks, std::int32_t block) {
  std::vector<Index> tokens;
  const BlockOrigin origin = blocks.origin(block);
  for (std::int32_t slot = 0; slot < blocks.slots(); ++slot) {
    const std::int32_t token = blocks.token(origin, slot);
    if (token >= 0) tokens.push_back(token);
  }
  return tokens;
}

/// The same of a partition of the stages.
template <Partition P>
std::vector<Index> tokens_of(const P& blocks, Index block) {
  std::vector<Index> tokens;
  for (Index r = 0; r < blocks.runs(block); ++r) {
    const Run run = blocks.run(block, r);
    for (Index i = 0; i < run.length; ++i) tokens.push_back(run.begin + i);
  }
  return tokens;
}

template <Partition P>
void expect_equal(const TokenBlocks& blocks, const P& expected) {
  ASSERT_EQ(blocks.tokens(), expected.tokens());
  ASSERT_EQ(blocks.blocks(), expected.blocks());
  for (std::int32_t b = 0; b < blocks.blocks(); ++b) {
    const std::vector<Index> tokens = tokens_of(blocks, b);
    ASSERT_EQ(tokens, tokens_of(expected, b)) << "block " << b;
    for (const Index token : tokens) {
      const auto t = static_cast<std::int32_t>(token);
      ASSERT_EQ(blocks.block_of(t), b) << "token " << token;
      ASSERT_EQ(blocks.token(blocks.origin(b), blocks.slot_of(t)), t);
    }
  }
}

/// Checks every slot by the definition, including slots outside the block. Slot (f, y, x) of block
/// (i, j, k), both in raster order, is the cell at their sum. Every token is in exactly one slot.
void expect_definition(const GridShape& size, const GridShape& block) {
  const TokenBlocks blocks = blocks_of(size, block);
  const auto count = [&](int axis) { return (size[axis] + block[axis] - 1) / block[axis]; };
  const Index slots = block[0] * block[1] * block[2];
  ASSERT_EQ(blocks.slots(), slots);
  std::vector<int> found(static_cast<std::size_t>(blocks.tokens()), 0);
  for (Index b = 0; b < blocks.blocks(); ++b) {
    const BlockOrigin origin = blocks.origin(static_cast<std::int32_t>(b));
    const Index begins[3] = {b / (count(1) * count(2)) * block[0],
                             b / count(2) % count(1) * block[1], b % count(2) * block[2]};
    ASSERT_EQ(origin.frame, begins[0]);
    ASSERT_EQ(origin.row, begins[1]);
    ASSERT_EQ(origin.column, begins[2]);
    for (Index slot = 0; slot < slots + 300; ++slot) {
      const Index f = begins[0] + slot / (block[1] * block[2]);
      const Index y = begins[1] + slot / block[2] % block[1];
      const Index x = begins[2] + slot % block[2];
      const bool filled = slot < slots && f < size[0] && y < size[1] && x < size[2];
      const Index token = filled ? (f * size[1] + y) * size[2] + x : -1;
      ASSERT_EQ(blocks.token(origin, static_cast<std::int32_t>(slot)), token)
          << "block " << b << ", slot " << slot;
      if (filled) ++found[static_cast<std::size_t>(token)];
    }
  }
  for (const int times : found) ASSERT_EQ(times, 1);
}

constexpr bool inverts(const TokenBlocks& blocks) {
  std::int32_t filled = 0;
  for (std::int32_t b = 0; b < blocks.blocks(); ++b) {
    const BlockOrigin origin = blocks.origin(b);
    for (std::int32_t slot = 0; slot < blocks.slots(); ++slot) {
      const std::int32_t token = blocks.token(origin, slot);
      if (token < -1 || token >= blocks.tokens()) return false;
      if (token >= 0 && blocks.block_of(token) != b) return false;
      filled += token >= 0 ? 1 : 0;
    }
  }
  return filled == blocks.tokens();
}
static_assert(inverts(TokenBlocks()));
static_assert(inverts(TokenBlocks(1, 1, 100, 1, 1, 16)));  // 6 whole blocks and one of 4
static_assert(inverts(TokenBlocks(1, 7, 9, 1, 3, 4)));
static_assert(inverts(TokenBlocks(3, 5, 7, 2, 2, 3)));
static_assert(inverts(TokenBlocks(2, 3, 4, 5, 6, 7)));  // one block, larger than the grid

TEST(TokenBlocks, SequencesAreContiguous) {
  for (const std::int32_t length : {1, 16, 49, 64, 210, 256, 1000}) {
    for (const std::int32_t tokens : {1, 2, length, length + 1, 3 * length, 4 * length - 1}) {
      SCOPED_TRACE(std::to_string(tokens) + " tokens in blocks of " + std::to_string(length));
      expect_equal(TokenBlocks(1, 1, tokens, 1, 1, length), Contiguous(tokens, length));
    }
  }
}

TEST(TokenBlocks, ImagesAndVideosAreGrids) {
  for (std::uint64_t seed = 0; seed < 400; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    test::Random rng(seed);
    const GridShape size{rng.integer(1, 5), rng.integer(1, 8), rng.integer(1, 9)};
    const GridShape block{rng.integer(1, 6), rng.integer(1, 9), rng.integer(1, 10)};
    expect_equal(blocks_of(size, block), mhla::Grid(size, block));
    expect_definition(size, block);
  }
}

TEST(TokenBlocks, SlotsAreWhereTheyAreInWholeBlocks) {
  expect_definition({16, 16}, {4, 4});
  expect_definition({14, 14}, {7, 7});
  expect_definition({21, 30, 50}, {7, 6, 5});
  expect_definition({20, 29, 48}, {7, 6, 5});
  expect_definition(GridShape(1001), GridShape(64));
}

TEST(TokenBlocks, HoldAsManyTokensAsFit) {
  constexpr std::int32_t kTokens = std::numeric_limits<std::int32_t>::max();
  for (const std::int32_t length : {64, 210, 1000, 1 << 20}) {
    const TokenBlocks blocks(1, 1, kTokens, 1, 1, length);
    const std::int32_t last = blocks.blocks() - 1;
    ASSERT_EQ(last, (kTokens - 1) / length);
    const BlockOrigin origin = blocks.origin(last);
    ASSERT_EQ(origin.column, last * length);
    for (std::int32_t slot = 0; slot < length; ++slot) {
      const std::int64_t token = std::int64_t{last} * length + slot;
      ASSERT_EQ(blocks.token(origin, slot), token < kTokens ? token : -1);
      if (token >= kTokens) continue;
      ASSERT_EQ(blocks.block_of(static_cast<std::int32_t>(token)), last);
    }
  }
}

TEST(TokenBlocks, KeepTheirSizes) {
  const TokenBlocks blocks(20, 29, 48, 7, 6, 5);
  EXPECT_EQ(blocks.frames(), 20);
  EXPECT_EQ(blocks.rows(), 29);
  EXPECT_EQ(blocks.columns(), 48);
  EXPECT_EQ(blocks.block_frames(), 7);
  EXPECT_EQ(blocks.block_rows(), 6);
  EXPECT_EQ(blocks.block_columns(), 5);
  EXPECT_EQ(blocks.tokens(), 20 * 29 * 48);
  EXPECT_EQ(blocks.slots(), 210);
  EXPECT_EQ(blocks.blocks(), 3 * 5 * 10);
}

}  // namespace token_blocks_tests

namespace divisor_tests {

constexpr std::int32_t kLargest = std::numeric_limits<std::int32_t>::max();

/// True if the divisor has the quotient n / d for every n of a range.
constexpr bool divides(std::int32_t d, std::int32_t first, std::int32_t last) {
  const Divisor divisor(d);
  if (divisor.value() != d) return false;
  for (std::int64_t n = first; n <= last; ++n) {
    const auto dividend = static_cast<std::int32_t>(n);
    if (divisor.quotient(dividend) != dividend / d) return false;
  }
  return true;
}

constexpr bool divides_small() {
  for (std::int32_t d = 1; d <= 40; ++d) {
    if (!divides(d, 0, 200) || !divides(d, kLargest - 100, kLargest)) return false;
  }
  return true;
}
static_assert(divides_small());
static_assert(Divisor().value() == 1 && Divisor().quotient(kLargest) == kLargest);
static_assert(Divisor(kLargest).quotient(kLargest) == 1);
static_assert(Divisor(kLargest).quotient(kLargest - 1) == 0);

/// Checks quotients around multiples of d, the only places where a quotient changes.
void expect_exact_around(std::int32_t d, std::int64_t multiple) {
  const Divisor divisor(d);
  for (std::int64_t n = multiple * d - 1; n <= multiple * d + 1; ++n) {
    if (n < 0 || n > kLargest) continue;
    const auto dividend = static_cast<std::int32_t>(n);
    ASSERT_EQ(divisor.quotient(dividend), dividend / d) << dividend << " / " << d;
  }
}

TEST(Divisor, IsExactForSmallNumbers) {
  for (std::int32_t d = 1; d <= 1100; ++d) ASSERT_TRUE(divides(d, 0, 4500)) << d;
}

TEST(Divisor, IsExactAroundMultiples) {
  test::Random rng(1);
  for (std::int32_t d = 1; d <= 5000; ++d) {
    const std::int64_t most = kLargest / d;
    for (const std::int64_t multiple : {std::int64_t{1}, most / 2, most - 1, most}) {
      expect_exact_around(d, multiple);
    }
    for (int i = 0; i < 20; ++i) expect_exact_around(d, rng.integer(0, most));
  }
}

TEST(Divisor, IsExactNextToPowersOfTwo) {
  for (int power = 0; power <= 31; ++power) {
    for (std::int64_t d = (std::int64_t{1} << power) - 1; d <= (std::int64_t{1} << power) + 1;
         ++d) {
      if (d < 1 || d > kLargest) continue;
      const auto divisor = static_cast<std::int32_t>(d);
      ASSERT_TRUE(divides(divisor, kLargest - 2000, kLargest)) << d;
      for (int other = 0; other <= 31; ++other) {
        expect_exact_around(divisor, ((std::int64_t{1} << other) + d - 1) / d);
      }
    }
  }
}

TEST(Divisor, IsExactForRandomNumbers) {
  test::Random rng(2);
  for (int i = 0; i < 300000; ++i) {
    const auto d = static_cast<std::int32_t>(rng.bits() >> rng.integer(33, 63)) | 1;
    const auto n = static_cast<std::int32_t>(rng.bits() >> rng.integer(33, 63));
    ASSERT_EQ(Divisor(d).quotient(n), n / d) << n << " / " << d;
    expect_exact_around(d, rng.integer(0, kLargest / d));
  }
}

// The header's proof, with the smallest multiplier m of at least 2^(31 + l) / d. The remainder r =
// m d - 2^(31 + l) has 0 <= r < d <= 2^l. So n m / 2^(31 + l) exceeds n / d by less than n r / (d
// 2^(31 + l)) < 1 / d. m has 32 bits.
constexpr bool proof_holds(std::uint64_t d) {
  const int l = static_cast<int>(std::bit_width(d - 1));
  const std::uint64_t power = std::uint64_t{1} << (31 + l);
  const std::uint64_t m = power / d + (power % d != 0);
  const std::uint64_t r = m * d - power;
  return r < d && d <= std::uint64_t{1} << l && m < std::uint64_t{1} << 32;
}
static_assert(proof_holds(1) && proof_holds(2) && proof_holds(3) && proof_holds(kLargest));

TEST(Divisor, ProofHolds) {
  for (std::uint64_t d = 1; d <= std::uint64_t{1} << 20; ++d) ASSERT_TRUE(proof_holds(d)) << d;
  test::Random rng(3);
  for (int i = 0; i < 300000; ++i) {
    const std::uint64_t d = 1 + rng.bits() % static_cast<std::uint64_t>(kLargest);
    ASSERT_TRUE(proof_holds(d)) << d;
  }
}

}  // namespace divisor_tests

}  // namespace
}  // namespace mhla::cuda

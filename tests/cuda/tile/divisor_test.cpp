#include "mhla/cuda/tile/divisor.cuh"

#include <gtest/gtest.h>

#include <bit>
#include <cstdint>
#include <limits>

#include "support/random.hpp"

namespace mhla::cuda {
namespace {

constexpr std::int32_t kLargest = std::numeric_limits<std::int32_t>::max();

/// n / d for every n of a range.
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

/// At the only places where a quotient changes: around multiples of d.
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

// The header's proof, with the smallest multiplier that reaches 2^(31 + l) / d: the remainder
// r = m d - 2^(31 + l) has 0 <= r < d <= 2^l, so that n m / 2^(31 + l) exceeds n / d by less than
// n r / (d 2^(31 + l)) < 1 / d; and m is a number of 32 bits.
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

}  // namespace
}  // namespace mhla::cuda

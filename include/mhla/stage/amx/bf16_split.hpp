#pragma once

/// \file
/// Splitting an fp32 number into the sum of two bfloat16 numbers, which AMX multiplies (tiles.hpp).
///
///     x = high + low + error,   |low| <= 2^-8 (1 + 2^-8) |x|,   |error| <= 2^-17 (1 + 2^-8) |x|
///
/// high is x rounded to nearest even, or towards 0 if that would be infinite; low is x - high,
/// rounded to nearest. If x is infinite or NaN, so is high, and low is 0. AMX flushes subnormal
/// operands to 0, which adds up to 2^-126 to the error.

#include <bit>
#include <cstdint>

#include "mhla/core/arch.hpp"
#include "mhla/core/scalar.hpp"

namespace mhla {
inline namespace MHLA_TARGET {
namespace detail {

/// Two bfloat16 numbers in one column of a tile: the first in the lower half.
using Bf16x2 = std::uint32_t;

/// Columns of a tile, of 32 bits each: Bf16x2 of an operand, fp32 numbers of C.
inline constexpr Index kTileColumns = 16;

inline bool is_finite_bits(std::uint32_t bits) { return (bits & 0x7F800000u) != 0x7F800000u; }

/// The bfloat16 number nearest to x, in the lower half of the result; finite if x is.
MHLA_INLINE inline std::uint32_t high_bits(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t upper = bits >> 16;
  const std::uint32_t rounded = (bits + 0x7FFFu + (upper & 1u)) >> 16;
  const bool too_large = (rounded & 0x7FFFu) == 0x7F80u;
  const bool nan = (bits & 0x7FFFFFFFu) > 0x7F800000u;
  return nan ? upper | 0x40u : too_large ? upper : rounded;
}

MHLA_INLINE inline float number_of(std::uint32_t bits) { return std::bit_cast<float>(bits << 16); }

/// The bits of x - high, rounded to bfloat16.
MHLA_INLINE inline std::uint32_t low_bits(float x, std::uint32_t high) {
  const std::uint32_t low = high_bits(x - number_of(high));
  return is_finite_bits(std::bit_cast<std::uint32_t>(x)) ? low : 0u;
}

/// Splits one row of a tile: high[j] + low[j] = (first[j], second[j]).
/// \return 0 if all low parts are 0.
inline Bf16x2 split_row(const float* first, const float* second, Bf16x2* high, Bf16x2* low) {
  Bf16x2 any = 0;
  for (Index j = 0; j < kTileColumns; ++j) {
    const std::uint32_t x = high_bits(first[j]), y = high_bits(second[j]);
    high[j] = x | y << 16;
    low[j] = low_bits(first[j], x) | low_bits(second[j], y) << 16;
    any |= low[j];
  }
  return any;
}

/// Two numbers, joined from their high and low parts.
struct Float32x2 {
  float first, second;
};
inline Float32x2 joined(Bf16x2 high, Bf16x2 low) {
  return {number_of(high & 0xFFFFu) + number_of(low & 0xFFFFu),
          number_of(high >> 16) + number_of(low >> 16)};
}

/// True if none of x[0..count) is infinite or NaN.
inline bool all_finite(const float* x, Index count) {
  std::uint32_t others = 0;
  for (Index j = 0; j < count; ++j) {
    others |= is_finite_bits(std::bit_cast<std::uint32_t>(x[j])) ? 0u : 1u;
  }
  return others == 0;
}

}  // namespace detail
}  // namespace MHLA_TARGET
}  // namespace mhla

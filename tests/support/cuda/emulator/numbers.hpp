#pragma once

/// \file
/// Conversions of 16-bit numbers by their bits, written from the formats alone.

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace emulator {

/// 1 sign, 8 exponent, 7 mantissa bits: the upper half of a float.
inline float from_bfloat16(std::uint16_t bits) {
  return std::bit_cast<float>(std::uint32_t{bits} << 16);
}

/// Rounds to nearest, ties to even; NaN becomes 0x7FFF.
inline std::uint16_t to_bfloat16(float x) {
  if (std::isnan(x)) return 0x7FFF;
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(x);
  return static_cast<std::uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

/// 1 sign, 5 exponent, 10 mantissa bits.
inline float from_half(std::uint16_t bits) {
  const std::uint32_t size = bits & 0x7FFFu;
  // The bits as those of a float are of a number 2^112 times smaller, subnormal or not.
  const float finite = std::bit_cast<float>(size << 13) * 0x1p112f;
  const float special = size == 0x7C00u ? std::numeric_limits<float>::infinity()
                                        : std::numeric_limits<float>::quiet_NaN();
  const float x = size < 0x7C00u ? finite : special;
  return (bits & 0x8000) != 0 ? -x : x;
}

/// Rounds to nearest, ties to even; 65520 and more become infinity; NaN becomes 0x7FFF.
inline std::uint16_t to_half(float x) {
  if (std::isnan(x)) return 0x7FFF;
  const auto sign = static_cast<std::uint16_t>(std::signbit(x) ? 0x8000 : 0);
  const float size = std::fabs(x);
  if (size >= 65520.0f) return static_cast<std::uint16_t>(sign | 0x7C00);
  if (size < 0x1p-14f) {  // a multiple of 2^-24; adding 1.5 * 2^23 rounds to an integer
    const float steps = (size * 0x1p24f + 0x1.8p23f) - 0x1.8p23f;
    return static_cast<std::uint16_t>(sign | static_cast<std::uint16_t>(steps));
  }
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(size);
  const std::uint32_t rounded = (bits + 0xFFF + (bits >> 13 & 1)) >> 13;
  return static_cast<std::uint16_t>(sign | (rounded - (112u << 10)));
}

/// Returns the greater number; NaN if either is NaN.
inline float max_nan(float x, float y) {
  if (std::isnan(x) || std::isnan(y)) return std::numeric_limits<float>::quiet_NaN();
  if (x == y) return std::signbit(x) ? y : x;  // +0 is greater than -0
  return x > y ? x : y;
}

}  // namespace emulator

#pragma once

/// \file
/// ptx/convert.cuh in the emulator. Approximations are rounded to nearest.

#include <cstdint>

namespace mhla::cuda {

struct bfloat16 {
  std::uint16_t bits;
};
struct half {
  std::uint16_t bits;
};

}  // namespace mhla::cuda

namespace mhla::cuda::ptx {

template <class T>
std::uint32_t pack(float low, float high);
template <class T>
float low(std::uint32_t pair);
template <class T>
float high(std::uint32_t pair);

inline std::uint32_t low_halves(std::uint32_t x, std::uint32_t y) { return (x & 0xFFFF) | y << 16; }
inline std::uint32_t high_halves(std::uint32_t x, std::uint32_t y) {
  return x >> 16 | (y & 0xFFFF0000);
}

template <class T>
std::uint32_t max_nan_x2(std::uint32_t x, std::uint32_t y);
template <class T>
std::uint32_t add_x2(std::uint32_t x, std::uint32_t y);
template <class T>
std::uint32_t add_zero_times_x2(std::uint32_t x, std::uint32_t y);

float ex2_approx(float x);
float rcp_approx(float x);
float rsqrt_approx(float x);

}  // namespace mhla::cuda::ptx

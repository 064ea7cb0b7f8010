#pragma once

/// \file
/// 16-bit numbers of tensors, and arithmetic on them. PTX ISA: cvt, max, fma, ex2.

#include <concepts>
#include <cstdint>

#include "mhla/cuda/arch.cuh"

namespace mhla::cuda {

/// Storage type of tensors. Kernels process pairs: two numbers in a 32-bit word.
struct bfloat16 {
  std::uint16_t bits;
};
struct half {
  std::uint16_t bits;
};

}  // namespace mhla::cuda

namespace mhla::cuda::ptx {

/// A storage type of tensors.
template <class T>
concept Number16 = std::same_as<T, bfloat16> || std::same_as<T, half>;

/// Returns the pair (low, high), each rounded to nearest even.
template <Number16 T>
MHLA_DEVICE std::uint32_t pack(float low, float high) {
  std::uint32_t pair;
  if constexpr (std::same_as<T, half>) {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  }
  return pair;
}

/// Returns the first number of a pair.
template <Number16 T>
MHLA_DEVICE float low(std::uint32_t pair) {
  float x;
  if constexpr (std::same_as<T, half>) {
    asm("{ .reg .b16 l, h; mov.b32 {l, h}, %1; cvt.f32.f16 %0, l; }" : "=f"(x) : "r"(pair));
  } else {
    asm("{ .reg .b32 t; shl.b32 t, %1, 16; mov.b32 %0, t; }" : "=f"(x) : "r"(pair));
  }
  return x;
}

/// Returns the second number of a pair.
template <Number16 T>
MHLA_DEVICE float high(std::uint32_t pair) {
  float x;
  if constexpr (std::same_as<T, half>) {
    asm("{ .reg .b16 l, h; mov.b32 {l, h}, %1; cvt.f32.f16 %0, h; }" : "=f"(x) : "r"(pair));
  } else {
    asm("{ .reg .b32 t; and.b32 t, %1, 0xffff0000; mov.b32 %0, t; }" : "=f"(x) : "r"(pair));
  }
  return x;
}

/// Returns the first numbers of two pairs as a pair. high_halves() returns the second ones. PTX
/// ISA: prmt.
MHLA_DEVICE std::uint32_t low_halves(std::uint32_t x, std::uint32_t y) {
  std::uint32_t z;
  asm("prmt.b32 %0, %1, %2, 0x5410;" : "=r"(z) : "r"(x), "r"(y));
  return z;
}
MHLA_DEVICE std::uint32_t high_halves(std::uint32_t x, std::uint32_t y) {
  std::uint32_t z;
  asm("prmt.b32 %0, %1, %2, 0x7632;" : "=r"(z) : "r"(x), "r"(y));
  return z;
}

/// Elementwise maximum of two pairs; NaN if either number is.
template <Number16 T>
MHLA_DEVICE std::uint32_t max_nan_x2(std::uint32_t x, std::uint32_t y) {
  std::uint32_t z;
  if constexpr (std::same_as<T, half>) {
    asm("max.NaN.f16x2 %0, %1, %2;" : "=r"(z) : "r"(x), "r"(y));
  } else {
    asm("max.NaN.bf16x2 %0, %1, %2;" : "=r"(z) : "r"(x), "r"(y));
  }
  return z;
}

/// Elementwise sum of two pairs, rounded to nearest even. Without add.bf16x2, sm_80 computes x 1 +
/// y.
template <Number16 T>
MHLA_DEVICE std::uint32_t add_x2(std::uint32_t x, std::uint32_t y) {
  std::uint32_t z;
  if constexpr (std::same_as<T, half>) {
    asm("add.rn.f16x2 %0, %1, %2;" : "=r"(z) : "r"(x), "r"(y));
  } else if constexpr (kArch == Arch::kSm90a) {
    asm("add.rn.bf16x2 %0, %1, %2;" : "=r"(z) : "r"(x), "r"(y));
  } else {
    asm("fma.rn.bf16x2 %0, %1, %3, %2;" : "=r"(z) : "r"(x), "r"(y), "r"(0x3F803F80u));
  }
  return z;
}

/// Returns x + 0 y: the pair x, but NaN where y is not finite.
template <Number16 T>
MHLA_DEVICE std::uint32_t add_zero_times_x2(std::uint32_t x, std::uint32_t y) {
  std::uint32_t z;
  if constexpr (std::same_as<T, half>) {
    asm("fma.rn.f16x2 %0, %2, %3, %1;" : "=r"(z) : "r"(x), "r"(y), "r"(0u));
  } else {
    asm("fma.rn.bf16x2 %0, %2, %3, %1;" : "=r"(z) : "r"(x), "r"(y), "r"(0u));
  }
  return z;
}

/// 2^x with a relative error of at most 2^-22.
MHLA_DEVICE float ex2_approx(float x) {
  float y;
  asm("ex2.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// 1 / x with a relative error of at most 2^-23.
MHLA_DEVICE float rcp_approx(float x) {
  float y;
  asm("rcp.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// 1 / sqrt(x) with a relative error of at most 2^-22.
MHLA_DEVICE float rsqrt_approx(float x) {
  float y;
  asm("rsqrt.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace mhla::cuda::ptx

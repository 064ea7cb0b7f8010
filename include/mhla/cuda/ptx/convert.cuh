#pragma once

/// \file
/// The 16-bit numbers of tensors, and what is done to single numbers. PTX ISA: cvt, max, ex2.

#include <cstdint>

#include "mhla/cuda/arch.cuh"

namespace mhla::cuda {

/// What tensors store. Kernels see them in pairs: two to a 32-bit word.
struct bfloat16 {
  std::uint16_t bits;
};
struct half {
  std::uint16_t bits;
};

}  // namespace mhla::cuda

namespace mhla::cuda::ptx {

/// The pair (low, high), each rounded to nearest even.
template <class T>
MHLA_DEVICE std::uint32_t pack(float low, float high);

template <>
MHLA_DEVICE std::uint32_t pack<bfloat16>(float low, float high) {
  std::uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

template <>
MHLA_DEVICE std::uint32_t pack<half>(float low, float high) {
  std::uint32_t pair;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

/// The first number of a pair.
template <class T>
MHLA_DEVICE float low(std::uint32_t pair);

template <>
MHLA_DEVICE float low<bfloat16>(std::uint32_t pair) {
  float x;
  asm("{ .reg .b32 t; shl.b32 t, %1, 16; mov.b32 %0, t; }" : "=f"(x) : "r"(pair));
  return x;
}

template <>
MHLA_DEVICE float low<half>(std::uint32_t pair) {
  float x;
  asm("{ .reg .b16 l, h; mov.b32 {l, h}, %1; cvt.f32.f16 %0, l; }" : "=f"(x) : "r"(pair));
  return x;
}

/// The second number of a pair.
template <class T>
MHLA_DEVICE float high(std::uint32_t pair);

template <>
MHLA_DEVICE float high<bfloat16>(std::uint32_t pair) {
  float x;
  asm("{ .reg .b32 t; and.b32 t, %1, 0xffff0000; mov.b32 %0, t; }" : "=f"(x) : "r"(pair));
  return x;
}

template <>
MHLA_DEVICE float high<half>(std::uint32_t pair) {
  float x;
  asm("{ .reg .b16 l, h; mov.b32 {l, h}, %1; cvt.f32.f16 %0, h; }" : "=f"(x) : "r"(pair));
  return x;
}

/// The greater of two numbers, NaN if one is.
MHLA_DEVICE float max_nan(float x, float y) {
  float z;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(z) : "f"(x), "f"(y));
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

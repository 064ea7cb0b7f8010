#pragma once

/// \file
/// Matrix products of a warp: C[16,8] += A[16,K] B[K,8] with 16-bit factors and float sums. PTX
/// ISA: mma.sync.aligned.m16n8k16 and m16n8k8.
///
/// With g = lane / 4 and p = 2 (lane % 4) a thread holds
///
///     c0, c1 = C[g][p, p+1]          c2, c3 = C[g+8][p, p+1]
///     a0 = A[g][p, p+1]              a1 = A[g+8][p, p+1]
///     a2 = A[g][p+8, p+9]            a3 = A[g+8][p+8, p+9]          (K = 16)
///     b0 = B[p, p+1][g]              b1 = B[p+8, p+9][g]            (K = 16)

#include <concepts>
#include <cstdint>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/ptx/convert.cuh"

namespace mhla::cuda::ptx {

/// C += A B with K = 16.
template <Number16 T>
MHLA_DEVICE void mma_m16n8k16(float (&c)[4], std::uint32_t a0, std::uint32_t a1, std::uint32_t a2,
                              std::uint32_t a3, std::uint32_t b0, std::uint32_t b1) {
  if constexpr (std::same_as<T, half>) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  }
}

/// C += A B with K = 8.
template <Number16 T>
MHLA_DEVICE void mma_m16n8k8(float (&c)[4], std::uint32_t a0, std::uint32_t a1, std::uint32_t b0) {
  if constexpr (std::same_as<T, half>) {
    asm volatile(
        "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(b0));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, "
        "{%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(b0));
  }
}

}  // namespace mhla::cuda::ptx

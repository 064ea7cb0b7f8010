#pragma once

/// \file
/// Matrix products of a warpgroup: C[64,n] += A[64,16] B[16,n], n = 64 or 128, with 16-bit factors
/// and float sums. A is in registers and B in shared memory. PTX ISA: wgmma, sm_90a.
///
/// Warp w of the warpgroup (its index a multiple of four plus w) holds rows 16 w..16 w + 15 of A
/// and C. With g = lane / 4 and p = 2 (lane % 4), a thread holds a0..a3 of these rows as in
/// mma.cuh, and
///
///     c[j][0, 1] = C[g][8 j + p, +1]          c[j][2, 3] = C[g + 8][8 j + p, +1]
///
/// A descriptor (tile/layout.cuh) locates B. Products are asynchronous: between wgmma_fence and
/// wgmma_wait_group no register of A or C may be touched, and B must not change. The compiler does
/// not know that, and may move writes of registers. Therefore call fence_registers of A and C
/// before wgmma_fence, and of C after wgmma_wait_group.

#include <cstdint>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/ptx/convert.cuh"

namespace mhla::cuda::ptx {

/// Makes the thread's earlier writes of registers visible to later products.
MHLA_DEVICE void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

/// Makes a group of the products since the last group.
MHLA_DEVICE void wgmma_commit_group() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/// Waits until at most kPending groups are in flight.
template <int kPending>
MHLA_DEVICE void wgmma_wait_group() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

/// Keeps the compiler from moving writes of the registers after this point, or reads before it.
template <int kTiles>
MHLA_DEVICE void fence_registers(float (&c)[kTiles][4]) {
  MHLA_CUDA_UNROLL
  for (int j = 0; j < kTiles; ++j) {
    MHLA_CUDA_UNROLL
    for (float& x : c[j]) asm volatile("" : "+f"(x)::"memory");
  }
}

template <int kCount>
MHLA_DEVICE void fence_registers(std::uint32_t (&a)[kCount]) {
  MHLA_CUDA_UNROLL
  for (std::uint32_t& x : a) asm volatile("" : "+r"(x)::"memory");
}

// Operands of the instructions below: the first 32 sums, the next 32, 16 of them from tile j on,
// and the factors.
#define MHLA_WGMMA_32                        \
  "%0, %1, %2, %3, %4, %5, %6, %7, "         \
  "%8, %9, %10, %11, %12, %13, %14, %15, "   \
  "%16, %17, %18, %19, %20, %21, %22, %23, " \
  "%24, %25, %26, %27, %28, %29, %30, %31"
#define MHLA_WGMMA_64                          \
  ", %32, %33, %34, %35, %36, %37, %38, %39, " \
  "%40, %41, %42, %43, %44, %45, %46, %47, "   \
  "%48, %49, %50, %51, %52, %53, %54, %55, "   \
  "%56, %57, %58, %59, %60, %61, %62, %63"
#define MHLA_WGMMA_TILE(j) "+f"(c[j][0]), "+f"(c[j][1]), "+f"(c[j][2]), "+f"(c[j][3])
#define MHLA_WGMMA_SUMS(j) \
  MHLA_WGMMA_TILE(j), MHLA_WGMMA_TILE(j + 1), MHLA_WGMMA_TILE(j + 2), MHLA_WGMMA_TILE(j + 3)
#define MHLA_WGMMA_FACTORS \
  "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(kTransposed), "n"(kAdds)

/// Starts C += A B with a0..a3 in `a`, or C = A B if kAdds is 0. Template parameter kTransposed is
/// 0 if shared memory holds B as [n][16], and 1 for [16][n].
template <int kTransposed, int kAdds = 1>
MHLA_DEVICE void wgmma_m64k16(float (&c)[8][4], const std::uint32_t* a, std::uint64_t b, bfloat16) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" MHLA_WGMMA_32
               "}, {%32, %33, %34, %35}, %36, %38, 1, 1, %37;"
               : MHLA_WGMMA_SUMS(0), MHLA_WGMMA_SUMS(4)
               : MHLA_WGMMA_FACTORS);
}

template <int kTransposed, int kAdds = 1>
MHLA_DEVICE void wgmma_m64k16(float (&c)[8][4], const std::uint32_t* a, std::uint64_t b, half) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {" MHLA_WGMMA_32
               "}, {%32, %33, %34, %35}, %36, %38, 1, 1, %37;"
               : MHLA_WGMMA_SUMS(0), MHLA_WGMMA_SUMS(4)
               : MHLA_WGMMA_FACTORS);
}

template <int kTransposed, int kAdds = 1>
MHLA_DEVICE void wgmma_m64k16(float (&c)[16][4], const std::uint32_t* a, std::uint64_t b,
                              bfloat16) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" MHLA_WGMMA_32 MHLA_WGMMA_64
               "}, {%64, %65, %66, %67}, %68, %70, 1, 1, %69;"
               : MHLA_WGMMA_SUMS(0), MHLA_WGMMA_SUMS(4), MHLA_WGMMA_SUMS(8), MHLA_WGMMA_SUMS(12)
               : MHLA_WGMMA_FACTORS);
}

template <int kTransposed, int kAdds = 1>
MHLA_DEVICE void wgmma_m64k16(float (&c)[16][4], const std::uint32_t* a, std::uint64_t b, half) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {" MHLA_WGMMA_32 MHLA_WGMMA_64
               "}, {%64, %65, %66, %67}, %68, %70, 1, 1, %69;"
               : MHLA_WGMMA_SUMS(0), MHLA_WGMMA_SUMS(4), MHLA_WGMMA_SUMS(8), MHLA_WGMMA_SUMS(12)
               : MHLA_WGMMA_FACTORS);
}

#undef MHLA_WGMMA_32
#undef MHLA_WGMMA_64
#undef MHLA_WGMMA_TILE
#undef MHLA_WGMMA_SUMS
#undef MHLA_WGMMA_FACTORS

/// Sets the register count of the calling warps, so that warps that need few give registers to
/// those that need many. All four warps of a warpgroup call. kCount is a multiple of 8, 24 to 256.
template <int kCount>
MHLA_DEVICE void setmaxnreg_dec() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCount));
}

template <int kCount>
MHLA_DEVICE void setmaxnreg_inc() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kCount));
}

}  // namespace mhla::cuda::ptx

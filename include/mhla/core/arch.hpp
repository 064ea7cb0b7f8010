#pragma once

/// \file
/// What the compiler's target offers. The only CPU header that reads target macros.
///
/// Everything but the error types lives in an inline namespace named after the instruction set, so
/// translation units built with different `-m` flags keep their own copies of every function
/// instead of sharing whichever copy the linker picks. Eigen's allocator has no such tag: a program
/// that mixes flags defines EIGEN_MAX_ALIGN_BYTES=64 for all of its parts.

#include <Eigen/Core>

#if defined(EIGEN_VECTORIZE_AVX512)
#define MHLA_TARGET avx512
#elif defined(EIGEN_VECTORIZE_AVX2) && defined(EIGEN_VECTORIZE_FMA)
#define MHLA_TARGET avx2_fma
#elif defined(EIGEN_VECTORIZE_AVX)
#define MHLA_TARGET avx
#elif defined(EIGEN_VECTORIZE_SSE2)
#define MHLA_TARGET sse2
#elif defined(EIGEN_VECTORIZE_NEON)
#define MHLA_TARGET neon
#else
#define MHLA_TARGET generic
#endif

/// Inlines a function whatever the optimiser thinks of its size.
#if defined(__GNUC__)
#define MHLA_INLINE __attribute__((always_inline))
#else
#define MHLA_INLINE
#endif

/// Unrolls the loop that follows, whose count is a small constant, so that arrays it indexes live
/// in registers at every optimisation level.
#if defined(__clang__)
#define MHLA_UNROLL _Pragma("unroll")
#elif defined(__GNUC__)
#define MHLA_UNROLL _Pragma("GCC unroll 16")
#else
#define MHLA_UNROLL
#endif

namespace mhla::inline MHLA_TARGET {

/// True where a multiply-add rounds once: a*b+c is one instruction.
#if defined(EIGEN_HAS_SINGLE_INSTRUCTION_MADD) || defined(EIGEN_VECTORIZE_FMA)
inline constexpr bool kFusedMultiplyAdd = true;
#else
inline constexpr bool kFusedMultiplyAdd = false;
#endif

/// Number of vector registers.
#if defined(EIGEN_VECTORIZE_AVX512) || defined(EIGEN_VECTORIZE_NEON)
inline constexpr int kVectorRegisters = 32;
#else
inline constexpr int kVectorRegisters = 16;
#endif

namespace detail {

/// x, in a way that the optimiser computes what follows from it here and now instead of keeping the
/// result of an earlier computation: in a loop that needs all registers, adding is cheaper than
/// spilling.
template <class X>
MHLA_INLINE inline X computed_anew(X x) {
#if defined(__GNUC__)
  asm("" : "+r"(x));
#endif
  return x;
}

/// Asks for the cache line of p in the second cache; any address will do. Functions that do nothing
/// else must be MHLA_INLINE: g++ takes calls of them for dead code.
MHLA_INLINE inline void prefetch_second(const void* p) {
#if defined(__GNUC__)
  __builtin_prefetch(p, 0, 2);
#endif
}

}  // namespace detail
}  // namespace mhla::inline MHLA_TARGET

#pragma once

/// \file
/// Features of the compiler's target. The only CPU header that reads target macros.
///
/// Everything but the errors and mhla::cuda lives in an inline namespace named after the version
/// and the instruction set, one of those of MHLA_VECTORS below. So units with other versions or
/// instruction sets keep separate copies of every function; otherwise the linker would pick one for
/// all. Flags that MHLA_VECTORS does not tell apart, such as `-msse3` and `-msse4.1`, share a
/// namespace: use one of them in all parts. Shared libraries with different versions work in one
/// program. Eigen's allocator has no such namespace: a program that mixes flags defines
/// EIGEN_MAX_ALIGN_BYTES=64 in all of its parts.
///
/// MHLA_EMULATE_MATRIX_UNIT replaces the matrix unit (stage/amx/tiles.hpp) by plain loops on any
/// processor, for tests. Define it before the first header of the library. The namespace then has
/// another name.

// Compilers go on after #error, for thousands of lines, but stop at a missing file.
#if !defined(__cpp_concepts) || __cpp_concepts < 201907L
#error "mhla: needs C++20: compile with -std=c++20, by g++ 12, clang++ 14 or newer"
#include "mhla stops here"
#elif !__has_include(<Eigen/Core>)
#error "mhla: no <Eigen/Core>: install Eigen (libeigen3-dev) and add -I /usr/include/eigen3"
#include "mhla stops here"
#elif defined(min) || defined(max)
#error "mhla: min or max is a macro: define NOMINMAX before <windows.h>"
#elif !defined(__cpp_exceptions)
#error "mhla: errors are exceptions: compile without -fno-exceptions"
#elif defined(__FAST_MATH__)
#error "mhla: -ffast-math and -Ofast break its error bounds and NaN: compile without them"
#elif defined(__ASSOCIATIVE_MATH__)
#error "mhla: -fassociative-math and -funsafe-math-optimizations break its bounds: drop them"
#elif defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__
#error "mhla: -ffinite-math-only breaks its NaN and infinity: compile without it"
#endif

#include <Eigen/Core>
#include <cstddef>

#include "mhla/core/version.hpp"

#if !EIGEN_VERSION_AT_LEAST(3, 4, 0)
#error "mhla: needs Eigen 3.4 or newer, but an older one comes first in the include path"
#include "mhla stops here"
#endif

#if defined(EIGEN_VECTORIZE_AVX512)
#define MHLA_VECTORS avx512
#elif defined(EIGEN_VECTORIZE_AVX2) && defined(EIGEN_VECTORIZE_FMA)
#define MHLA_VECTORS avx2_fma
#elif defined(EIGEN_VECTORIZE_AVX) && defined(EIGEN_VECTORIZE_FMA)
#define MHLA_VECTORS avx_fma
#elif defined(EIGEN_VECTORIZE_AVX)
#define MHLA_VECTORS avx
#elif defined(EIGEN_VECTORIZE_SSE4_2)
#define MHLA_VECTORS sse4_2
#elif defined(EIGEN_VECTORIZE_SSE2)
#define MHLA_VECTORS sse2
#elif defined(EIGEN_VECTORIZE_NEON)
#define MHLA_VECTORS neon
#else
#define MHLA_VECTORS generic
#endif

// The matrix unit. Its tiles are state that the operating system must grant.
#if defined(MHLA_EMULATE_MATRIX_UNIT)
#define MHLA_MATRIX_UNIT kEmulated
#define MHLA_TARGET_NAME(vectors) vectors##_emulated_unit
#elif defined(__AMX_TILE__) && defined(__AMX_BF16__) && defined(__GNUC__) && defined(__linux__)
#define MHLA_MATRIX_UNIT kAmx
#define MHLA_TARGET_NAME(vectors) vectors##_amx
#else
#define MHLA_MATRIX_UNIT kNone
#define MHLA_TARGET_NAME(vectors) vectors
#endif
#define MHLA_TARGET_OF(vectors) MHLA_TARGET_NAME(vectors)
#define MHLA_INSTRUCTIONS MHLA_TARGET_OF(MHLA_VECTORS)

// The debug mode of libstdc++ changes the layout of containers, and so of classes that hold them.
#if defined(_GLIBCXX_DEBUG)
#define MHLA_LIBRARY_NAME(version, instructions) version##_##instructions##_debug_library
#else
#define MHLA_LIBRARY_NAME(version, instructions) version##_##instructions
#endif
#define MHLA_LIBRARY_OF(version, instructions) MHLA_LIBRARY_NAME(version, instructions)
#define MHLA_TARGET MHLA_LIBRARY_OF(MHLA_VERSION, MHLA_INSTRUCTIONS)
#define MHLA_TEXT(name) #name
#define MHLA_TEXT_OF(name) MHLA_TEXT(name)

/// Inlines a function of any size.
#if defined(__GNUC__)
#define MHLA_INLINE __attribute__((always_inline))
#else
#define MHLA_INLINE
#endif

/// Keeps a function out of line where inlining would only cost users compile time.
#if defined(__GNUC__)
#define MHLA_NOINLINE __attribute__((noinline))
#define MHLA_COLD __attribute__((noinline, cold))
#else
#define MHLA_NOINLINE
#define MHLA_COLD
#endif

/// Marks an argument that the result is a view of: clang warns where it is a temporary that the
/// view outlives.
#if defined(__clang__)
#define MHLA_LIFETIMEBOUND [[clang::lifetimebound]]
#else
#define MHLA_LIFETIMEBOUND
#endif

/// Unrolls the next loop, of a small constant count, so that arrays it indexes stay in registers at
/// every optimisation level.
#if defined(__clang__)
#define MHLA_UNROLL _Pragma("unroll")
#elif defined(__GNUC__)
#define MHLA_UNROLL _Pragma("GCC unroll 16")
#else
#define MHLA_UNROLL
#endif

/// Encloses code that names packets as template arguments and counts them in int. g++ warns that
/// these lose an alignment attribute, on which nothing depends, and of each array of kVectors
/// packets.
#if defined(__GNUC__) && !defined(__clang__)
#define MHLA_PACKETS_BEGIN                                                                  \
  _Pragma("GCC diagnostic push") _Pragma("GCC diagnostic ignored \"-Wignored-attributes\"") \
      _Pragma("GCC diagnostic ignored \"-Wsign-conversion\"")
#define MHLA_PACKETS_END _Pragma("GCC diagnostic pop")
#else
#define MHLA_PACKETS_BEGIN
#define MHLA_PACKETS_END
#endif

namespace mhla {
inline namespace MHLA_TARGET {

/// Name of the instruction set that this unit is compiled for, as in the namespace: "avx2_fma".
inline constexpr const char* kInstructionSet = MHLA_TEXT_OF(MHLA_INSTRUCTIONS);

/// True if a multiply-add rounds once: a*b+c is one instruction.
#if defined(EIGEN_HAS_SINGLE_INSTRUCTION_MADD) || defined(EIGEN_VECTORIZE_FMA)
inline constexpr bool kFusedMultiplyAdd = true;
#else
inline constexpr bool kFusedMultiplyAdd = false;
#endif

/// True on 64-bit Arm, whose multiply-adds take a factor from any lane of a register.
inline constexpr bool kNeon = EIGEN_ARCH_ARM64 != 0;

#if defined(EIGEN_VECTORIZE_AVX512) || EIGEN_ARCH_ARM64
inline constexpr int kVectorRegisters = 32;
#else
inline constexpr int kVectorRegisters = 16;
#endif

/// Unit that multiplies bfloat16 tiles: none, plain loops, or AMX.
enum class MatrixUnit { kNone, kEmulated, kAmx };
inline constexpr MatrixUnit kMatrixUnitKind = MatrixUnit::MHLA_MATRIX_UNIT;

/// True if bfloat16 products may run on a matrix unit, once the system grants it
/// (stage/amx/tiles.hpp).
inline constexpr bool kMatrixUnit = kMatrixUnitKind != MatrixUnit::kNone;

namespace detail {

/// Requests the tiles of AMX for the whole process; true if granted. Linux 5.16 or newer:
/// arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILE_DATA), in assembly to need no system header.
inline bool request_tiles() {
#if defined(__AMX_TILE__) && defined(__GNUC__) && defined(__linux__)
  long result = 158;  // in: the number of arch_prctl; out: 0, or an error below 0
  asm volatile("syscall" : "+a"(result) : "D"(0x1023L), "S"(18L) : "rcx", "r11", "memory");
  return result == 0;
#else
  return false;
#endif
}

/// Requests large pages for [begin, begin + bytes), a range of whole pages, before they are
/// touched. Without large pages the memory works all the same. Linux: madvise(MADV_HUGEPAGE), as
/// above.
inline void ask_for_large_pages(void* begin, std::size_t bytes) {
#if defined(__x86_64__) && defined(__GNUC__) && defined(__linux__)
  long result = 28;  // in: the number of madvise
  asm volatile("syscall"
               : "+a"(result)
               : "D"(begin), "S"(bytes), "d"(14L)
               : "rcx", "r11", "memory");
#elif defined(__aarch64__) && defined(__GNUC__) && defined(__linux__)
  register void* first asm("x0") = begin;
  register std::size_t count asm("x1") = bytes;
  register long advice asm("x2") = 14, call asm("x8") = 233;
  asm volatile("svc 0" : "+r"(first) : "r"(count), "r"(advice), "r"(call) : "memory");
#else
  static_cast<void>(begin), static_cast<void>(bytes);
#endif
}

/// Keeps x in a register: its value is not computed from other values where it is used.
template <class X>
MHLA_INLINE inline X in_register(X x) {
#if defined(__GNUC__)
  asm("" : "+r"(x));
#endif
  return x;
}

/// Rounds x: compilers that reassociate sums cannot fold the sum that made x into the next. All GNU
/// compatible compilers do, since clang++ does not announce the flags by which it reassociates.
template <class X>
MHLA_INLINE inline X as_rounded(X x) {
#if defined(__GNUC__) && defined(EIGEN_VECTORIZE_SSE2)
  asm("" : "+v"(x));
#elif defined(__GNUC__) && EIGEN_ARCH_ARM64
  asm("" : "+w"(x));
#elif defined(__GNUC__)
  asm("" : "+m"(x));
#endif
  return x;
}

/// True if add_product below is an instruction.
#if defined(EIGEN_VECTORIZE_FMA) && defined(__GNUC__)
inline constexpr bool kAddsProducts = true;
#else
inline constexpr bool kAddsProducts = false;
#endif

/// Adds a * b to sum for packets of A, rounded once, in the register of the sum. Otherwise g++
/// moves sums between registers in unrolled loops.
template <class A, class P>
MHLA_INLINE inline void add_product(const P& a, const P& b, P& sum) {
#if defined(EIGEN_VECTORIZE_FMA) && defined(__GNUC__)
  if constexpr (sizeof(A) == sizeof(float)) {
    asm("vfmadd231ps {%2, %1, %0|%0, %1, %2}" : "+v"(sum) : "v"(a), "v"(b));
  } else {
    asm("vfmadd231pd {%2, %1, %0|%0, %1, %2}" : "+v"(sum) : "v"(a), "v"(b));
  }
#else
  static_cast<void>(a), static_cast<void>(b), static_cast<void>(sum);
#endif
}

/// On 64-bit Arm, delays later reads through `pointer` until `packet` is known. Otherwise g++ reads
/// early, into registers that hold sums.
template <class X, class P>
MHLA_INLINE inline void read_after(X*& pointer, P& packet) {
#if defined(__GNUC__) && EIGEN_ARCH_ARM64
  asm volatile("" : "+r"(pointer), "+w"(packet));
#else
  (void)pointer, (void)packet;
#endif
}

/// Stores x to memory, so that its next use reads it from there.
template <class X>
MHLA_INLINE inline void on_stack(X& x) {
#if defined(__GNUC__)
  asm("" : "+m"(x));
#endif
}

/// Aligns the loop that follows, counted by x, to a cache line. A core fetches whole lines of code,
/// and one more line for a short loop took up to 5 % of a product.
template <class X>
MHLA_INLINE inline void begin_line(X& x) {
#if defined(__GNUC__)
  asm volatile(".p2align 6" : "+r"(x));
#endif
}

/// Has a side effect, but no instruction.
MHLA_INLINE inline void side_effect() {
#if defined(__GNUC__)
  asm volatile("");
#endif
}

/// Prefetches the line at p into L1; p need not be readable. A prefetch is no side effect: g++
/// deletes calls of functions that have no other effect.
MHLA_INLINE inline void prefetch_l1(const void* p) {
#if defined(__GNUC__)
  __builtin_prefetch(p, 0, 3);
#endif
  side_effect();
}
/// Prefetches the line at p into L2.
MHLA_INLINE inline void prefetch_l2(const void* p) {
#if defined(__GNUC__)
  __builtin_prefetch(p, 0, 2);
#endif
  side_effect();
}

}  // namespace detail
}  // namespace MHLA_TARGET
}  // namespace mhla

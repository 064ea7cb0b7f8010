#pragma once

/// \file
/// What the CUDA compiler's target offers. The only CUDA header that reads target macros.
///
/// The folders of cuda/ are strata, each on top of the one before: ptx (one instruction a
/// function), tile (layouts in shared memory, fragments, products), kernel (functors that run in
/// every thread of a grid), launch (grids, tensor maps, streams), attention (what users call).
/// Headers up to kernel compile without nvcc too, as plain C++, so that layouts can be tested and
/// kernels run in an emulation on any machine.

#if defined(__CUDACC__)
/// A function that runs on the device.
#define MHLA_DEVICE __device__ __forceinline__
/// A function that runs on both sides.
#define MHLA_HOST_DEVICE __host__ __device__ __forceinline__
/// Unrolls the loop that follows, so that arrays it indexes live in registers.
#define MHLA_CUDA_UNROLL _Pragma("unroll")
/// Keeps the loop that follows a loop.
#define MHLA_CUDA_LOOP _Pragma("unroll 1")
#else
#define MHLA_DEVICE inline
#define MHLA_HOST_DEVICE inline
#define MHLA_CUDA_UNROLL
#define MHLA_CUDA_LOOP
#endif

/// The architectures that the unit is compiled for, as a name: archs_800_900_0_0_0_0_0_0. What
/// launches kernels lies in an inline namespace of that name, so that the linker does not give one
/// unit's functions to another that has other kernels. (90 and 90a are one architecture in it.)
#if defined(__CUDA_ARCH_LIST__)
#define MHLA_CUDA_ARCHS MHLA_CUDA_NAME_OF(__CUDA_ARCH_LIST__)
#else
#define MHLA_CUDA_ARCHS archs_none
#endif
#define MHLA_CUDA_NAME_OF(...) MHLA_CUDA_JOIN(__VA_ARGS__, 0, 0, 0, 0, 0, 0, 0, 0)
#define MHLA_CUDA_JOIN(a, b, c, d, e, f, g, h, ...) \
  archs_##a##_##b##_##c##_##d##_##e##_##f##_##g##_##h

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 800
#error "mhla::cuda has kernels for sm_80 and newer, expected nvcc -arch=sm_80 or -arch=sm_90a"
#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ == 900 && !defined(__CUDA_ARCH_FEAT_SM90_ALL)
#error "mhla::cuda has kernels for sm_90a, not for sm_90, expected nvcc -arch=sm_90a"
#endif

namespace mhla::cuda {

/// Instruction sets of kernels, each with what it derives from: wgmma and the tensor copies of
/// sm_90a, mma.sync and cp.async of sm_80.
enum class Arch { kSm80, kSm90a };

/// The instruction set that this pass of the compiler makes code for.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
inline constexpr Arch kArch = Arch::kSm90a;
#else
inline constexpr Arch kArch = Arch::kSm80;
#endif

/// Bytes of shared memory per thread block that kernels of an instruction set may need: 227 KB of
/// sm_90, 163 KB of sm_80.
constexpr int shared_limit(Arch arch) { return arch == Arch::kSm90a ? 232448 : 166912; }

/// Bytes of shared memory per thread block that every device of sm_80 and newer has: 99 KB, all
/// that sm_86, sm_89 and sm_120 have. Kernels that need more have a counterpart that does not.
inline constexpr int kLeastShared = 101376;

}  // namespace mhla::cuda

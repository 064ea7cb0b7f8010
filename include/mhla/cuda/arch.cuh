#pragma once

/// \file
/// Macros and constants of the CUDA compiler's target. No other CUDA header reads target macros.
///
/// Each folder of cuda/ includes only the folders before it:
///
///     ptx         one instruction per function
///     tile        layouts in shared memory, fragments, products
///     kernel      functors that every thread of a grid runs
///     launch      grids, tensor maps, streams
///     attention   the API
///
/// Headers of ptx, tile and kernel also compile as plain C++, without nvcc. Tests check layouts and
/// emulate kernels on any machine.

#if defined(__CUDACC__)
/// A function that runs on the device.
#define MHLA_DEVICE __device__ __forceinline__
/// A function that runs on the host and on the device.
#define MHLA_HOST_DEVICE __host__ __device__ __forceinline__
/// Unrolls the loop that follows, so that arrays it indexes live in registers.
#define MHLA_CUDA_UNROLL _Pragma("unroll")
/// Prevents unrolling of the loop that follows.
#define MHLA_CUDA_LOOP _Pragma("unroll 1")
#else
#define MHLA_DEVICE inline
#define MHLA_HOST_DEVICE inline
#define MHLA_CUDA_UNROLL
#define MHLA_CUDA_LOOP
#endif

/// Architectures that the translation unit is compiled for, as a name: archs_800_900_0_0_0_0_0_0.
/// Functions that launch kernels are in an inline namespace of that name: the linker must not merge
/// them with functions of units that have other kernels. Architectures 90 and 90a have the same
/// name.
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

/// Instruction sets of kernels: wgmma and tensor copies (sm_90a), mma.sync and cp.async (sm_80).
enum class Arch { kSm80, kSm90a };

/// The instruction set that this compiler pass makes code for.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
inline constexpr Arch kArch = Arch::kSm90a;
#else
inline constexpr Arch kArch = Arch::kSm80;
#endif

/// Largest shared memory per thread block that kernels of an instruction set use, in bytes: 227 KB
/// on sm_90, 163 KB on sm_80.
constexpr int shared_limit(Arch arch) { return arch == Arch::kSm90a ? 232448 : 166912; }

/// Shared memory per thread block of every device from sm_80 on, in bytes: 99 KB. sm_86, sm_89 and
/// sm_120 have no more. Each kernel that needs more has an alternative within this limit.
inline constexpr int kLeastShared = 101376;

}  // namespace mhla::cuda

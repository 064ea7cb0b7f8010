// Kernels that the checks must refuse: refused.cuh.

#include "cuda/build/refused.cuh"
#include "mhla/cuda/ptx/matrix.cuh"
#include "mhla/cuda/ptx/mma.cuh"

namespace mhla::cuda::build {

// expect Call: is not inlined
template <bool kRight>
__device__ __noinline__ float square(float x) {
  return x * x;
}
template <bool kRight>
struct Call : Planted {
  MHLA_DEVICE void operator()(const Params& p) const {
    const float x = ptx::ld_global_f32(p.data);
    if constexpr (kRight) {
      ptx::st_global_f32(p.data, x * x);
    } else {
      ptx::st_global_f32(p.data, square<kRight>(x));
    }
  }
};

// expect MissingInstruction: has no HMMA
template <bool kRight>
struct MissingInstruction : Planted {
  static constexpr int kNeeds = kMma;
  MHLA_DEVICE void operator()(const Params& p) const {
    float c[4] = {1, 2, 3, 4};
    if constexpr (kRight) ptx::mma_m16n8k16<half>(c, 1, 2, 3, 4, 5, 6);
    ptx::st_global_f32(p.data, c[0] + c[1] + c[2] + c[3]);
  }
};

// expect UnplannedInstruction: has 1 ldmatrix.sync.aligned, planned none
template <bool kRight>
struct UnplannedInstruction : Planted {
  static constexpr int kSharedBytes = 1024;
  MHLA_DEVICE void operator()(const Params& p) const {
    if constexpr (kRight) {
      ptx::st_global_v4(p.data, ptx::ld_shared_v4(ptx::shared_begin()));
    } else {
      ptx::st_global_v4(p.data, ptx::ldmatrix_x4(ptx::shared_begin()));
    }
  }
};

/// Keeps kCount numbers live at a time, because `from` and `to` may overlap.
template <int kCount, int kStride>
MHLA_DEVICE void reverse(const Planted::Params& p) {
  const float* const from = thread_data(p);
  float* const to = thread_data(p) + p.b;
  float x[kCount];
  MHLA_CUDA_UNROLL
  for (int i = 0; i < kCount; ++i) x[i] = ptx::ld_global_f32(from + kStride * i);
  MHLA_CUDA_UNROLL
  for (int i = 0; i < kCount; ++i) {
    ptx::st_global_f32(to + kStride * i, x[i] * x[kCount - 1 - i]);
  }
}

// expect MoreRegisters: registers, planned 16
template <bool kRight>
struct MoreRegisters : Planted {
  static constexpr int kRegisters = kRight ? 64 : 16;
  MHLA_DEVICE void operator()(const Params& p) const { reverse<32, 128>(p); }
};

// Two blocks of 1024 threads leave 32 registers each.
// expect Spills: spills registers
template <bool kRight>
struct Spills : Planted {
  static constexpr int kThreads = 1024, kBlocksPerMultiprocessor = kRight ? 1 : 2;
  MHLA_DEVICE void operator()(const Params& p) const { reverse<kRight ? 16 : 96, 1024>(p); }
};

// An array indexed at run time, which cannot be in registers.
// expect StackFrame: has a stack frame of
template <bool kRight>
struct StackFrame : Planted {
  MHLA_DEVICE void operator()(const Params& p) const {
    if constexpr (kRight) {
      reverse<8, 128>(p);
    } else {
      float x[8];
      MHLA_CUDA_LOOP
      for (int i = 0; i < p.b; ++i) x[i % 8] = ptx::ld_global_f32(thread_data(p) + 128 * i);
      MHLA_CUDA_LOOP
      for (int i = 0; i < p.b; ++i) ptx::st_global_f32(thread_data(p) + 128 * i, x[7 - i % 8]);
    }
  }
};

template <int kBytes, int kBlocks>
struct Sharing : Planted {
  static constexpr int kBlocksPerMultiprocessor = kBlocks, kSharedBytes = kBytes;
  MHLA_DEVICE void operator()(const Params&) const {
    ptx::st_shared(ptx::shared_begin() + 4 * ptx::tid_x(), 0);
  }
};
// expect SharedMemoryOfTwo: leaves no shared memory for 2 blocks
template <bool kRight>
using SharedMemoryOfTwo = Sharing<(kRight ? 81 : 82) * 1024, 2>;
// expect SharedMemoryOfABlock: a block may have 166912
template <bool kRight>
using SharedMemoryOfABlock = Sharing<shared_limit(Arch::kSm80) + (kRight ? 0 : 16), 1>;

// A variable that nvcc warns about.
// expect Warning: declared but never referenced
template <bool kRight>
struct Warning : Planted {
  MHLA_DEVICE void operator()(const Params&) const {
#if defined(MHLA_PLANT_Warning)
    int unused;
#endif
  }
};

// expect Nothing: the PTX has 0 kernels

#if defined(MHLA_CONTROL)
inline constexpr std::tuple kControls{kEntry<Call<true>>,
                                      kEntry<MissingInstruction<true>>,
                                      kEntry<UnplannedInstruction<true>>,
                                      kEntry<MoreRegisters<true>>,
                                      kEntry<Spills<true>>,
                                      kEntry<StackFrame<true>>,
                                      kEntry<SharedMemoryOfTwo<true>>,
                                      kEntry<SharedMemoryOfABlock<true>>,
                                      kEntry<Warning<true>>};
#elif !defined(MHLA_PLANT_Nothing)
inline constexpr auto* kPlanted = kEntry<MHLA_CASE<false>>;
#endif

}  // namespace mhla::cuda::build

// Kernels of sm_90a that the checks must refuse: refused.cuh.

#include "cuda/build/refused.cuh"
#include "mhla/cuda/ptx/tensor_copy.cuh"
#include "mhla/cuda/ptx/wgmma.cuh"

namespace mhla::cuda::build {

struct PlantedProducts : Planted {
  static constexpr Arch kArchitecture = Arch::kSm90a;
  static constexpr int kBlocksPerMultiprocessor = 1, kSharedBytes = 8192, kNeeds = kWgmma;

  static MHLA_DEVICE void multiply(float (&c)[8][4], std::uint64_t b, std::uint32_t a = 1) {
    const std::uint32_t factor[4] = {a, 2, 3, 4};
    ptx::wgmma_m64k16<1>(c, factor, b, half{});
  }
  static MHLA_DEVICE void end(float (&c)[8][4]) {
    ptx::wgmma_wait_group<0>();
    ptx::fence_registers(c);
  }
  static MHLA_DEVICE void store(const Params& p, const float (&c)[8][4]) {
    MHLA_CUDA_UNROLL
    for (int i = 0; i < 32; ++i) ptx::st_global_f32(thread_data(p) + 128 * i, c[i / 4][i % 4]);
  }
};

// wgmma reads data that threads stored without a fence.
// expect FewerFences: has 0 fence.proxy.async in its PTX, planned at least 1
template <bool kRight>
struct FewerFences : PlantedProducts {
  static constexpr int kFences = 1;
  MHLA_DEVICE void operator()(const Params& p) const {
    ptx::st_shared(ptx::shared_begin() + 4 * ptx::tid_x(), 0);
    if constexpr (kRight) ptx::fence_proxy_async();
    ptx::bar_sync();
    float c[8][4] = {};
    ptx::wgmma_fence();
    multiply(c, p.b);
    ptx::wgmma_commit_group();
    end(c);
    store(p, c);
  }
};

// A operands are written after the group began; ptxas adds a fence.
// expect MissingBegin: C7519
template <bool kRight>
struct MissingBegin : PlantedProducts {
  MHLA_DEVICE void operator()(const Params& p) const {
    float c[8][4] = {};
    ptx::wgmma_fence();
    multiply(c, p.b);
    const std::uint32_t a = ptx::ld_shared(ptx::shared_begin() + 4 * ptx::tid_x());
    if constexpr (kRight) ptx::wgmma_fence();
    multiply(c, p.b + 1, a);
    ptx::wgmma_commit_group();
    end(c);
    store(p, c);
  }
};

// Sums are read while wgmma may still write them; ptxas adds a wait.
// expect MissingWait: C7517
template <bool kRight>
struct MissingWait : PlantedProducts {
  MHLA_DEVICE void operator()(const Params& p) const {
    float c[8][4] = {};
    ptx::wgmma_fence();
    multiply(c, p.b);
    ptx::wgmma_commit_group();
    if constexpr (kRight) end(c);
    store(p, c);
    ptx::wgmma_wait_group<0>();
  }
};

// A function call cuts a group of wgmma in two; ptxas serialises the group.
// expect Serialized: C7510
template <bool kRight>
__device__ __noinline__ void multiply_apart(float (&c)[8][4], std::uint64_t b) {
  PlantedProducts::multiply(c, b);
}
template <bool kRight>
struct Serialized : PlantedProducts {
  MHLA_DEVICE void operator()(const Params& p) const {
    float c[8][4] = {};
    ptx::wgmma_fence();
    MHLA_CUDA_UNROLL
    for (int i = 0; i < 2; ++i) {
      if constexpr (kRight) {
        multiply(c, p.b + i);
      } else {
        multiply_apart<kRight>(c, p.b + i);
      }
    }
    ptx::wgmma_commit_group();
    end(c);
    store(p, c);
  }
};

// A kernel of a programmatic dependent launch that does not wait for the previous kernel.
// expect MissingGridWait: has no griddepcontrol.wait
template <bool kRight>
struct MissingGridWait : Planted {
  static constexpr Arch kArchitecture = Arch::kSm90a;
  static constexpr int kNeeds = kWaits;
  MHLA_DEVICE void operator()(const Params& p) const {
    if constexpr (kRight) ptx::griddepcontrol_wait();
    ptx::st_global_f32(thread_data(p), 0);
  }
};

// Warps exchange registers, but the launch bounds do not fix the number of registers.
// expect RegistersNotKnown: C7508
template <bool kRight>
struct RegistersNotKnown : Planted {
  static constexpr Arch kArchitecture = Arch::kSm90a;
  MHLA_DEVICE void operator()(const Params&) const { ptx::setmaxnreg_dec<24>(); }
};
template <class K, int, int, int, int, int, int>
__global__ void boundless_entry(const __grid_constant__ typename K::Params p) {
  K{}(p);
}

#if defined(MHLA_CONTROL)
inline constexpr std::tuple kControls{
    kEntry<FewerFences<true>>, kEntry<MissingBegin<true>>,    kEntry<MissingWait<true>>,
    kEntry<Serialized<true>>,  kEntry<MissingGridWait<true>>, kEntry<RegistersNotKnown<true>>};
#elif defined(MHLA_PLANT_RegistersNotKnown)
inline constexpr auto* kPlanted = &boundless_entry<RegistersNotKnown<false>, 128, 1, 255, 0, 0, 0>;
#else
inline constexpr auto* kPlanted = kEntry<MHLA_CASE<false>>;
#endif

}  // namespace mhla::cuda::build

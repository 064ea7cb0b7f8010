// expect: C7510
// A group of wgmma that a function's end cuts in two, which makes ptxas run them one by one.

#include "cuda/build/entry.cuh"
#include "mhla/cuda/ptx/global.cuh"
#include "mhla/cuda/ptx/index.cuh"
#include "mhla/cuda/ptx/wgmma.cuh"

namespace mhla::cuda::build {

#if defined(MHLA_CONTROL)
MHLA_DEVICE
#else
__device__ __noinline__
#endif
void multiply(float (&c)[32], std::uint64_t b) {
  ptx::group_multiply_add<1>(c, 1, 2, 3, 4, b, half{});
}

struct Planted {
  struct Params {
    float* data;
    std::uint64_t b;
  };
  static constexpr Arch kArchitecture = Arch::kSm90a;
  static constexpr int kThreads = 128;
  static constexpr int kBlocksPerMultiprocessor = 1;
  static constexpr int kSharedBytes = 8192;

  MHLA_DEVICE void operator()(const Params& params) const {
    float c[32] = {};
    ptx::group_begin();
    multiply(c, params.b);
    multiply(c, params.b + 1);
    ptx::group_commit();
    ptx::group_wait<0>();
    ptx::keep_order(c);
    MHLA_CUDA_UNROLL
    for (int i = 0; i < 32; ++i) {
      ptx::store_global_float(params.data + 128 * i + ptx::thread_index(), c[i]);
    }
  }
};
template struct Entry<Planted, kWgmma>;

}  // namespace mhla::cuda::build

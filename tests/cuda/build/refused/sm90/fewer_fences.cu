// expect: has 0 fence.proxy.async in its PTX, planned at least 1
// wgmma reads what threads have stored without a fence.

#include "cuda/build/entry.cuh"
#include "mhla/cuda/ptx/barrier.cuh"
#include "mhla/cuda/ptx/global.cuh"
#include "mhla/cuda/ptx/index.cuh"
#include "mhla/cuda/ptx/shared.cuh"
#include "mhla/cuda/ptx/tensor_copy.cuh"
#include "mhla/cuda/ptx/wgmma.cuh"

namespace mhla::cuda::build {

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
    ptx::store_shared(ptx::shared_begin() + 4 * ptx::thread_index(), 0);
#if defined(MHLA_CONTROL)
    ptx::fence_async();
#endif
    ptx::meet_block();
    float c[32] = {};
    ptx::group_begin();
    ptx::group_multiply_add<1>(c, 1, 2, 3, 4, params.b, half{});
    ptx::group_commit();
    ptx::group_wait<0>();
    ptx::keep_order(c);
    MHLA_CUDA_UNROLL
    for (int i = 0; i < 32; ++i) {
      ptx::store_global_float(params.data + 128 * i + ptx::thread_index(), c[i]);
    }
  }
};
template struct Entry<Planted, kWgmma, 1>;

}  // namespace mhla::cuda::build

// expect: C7517
// Sums that are read while wgmma may still write them, until ptxas adds the wait.

#include "cuda/build/entry.cuh"
#include "mhla/cuda/ptx/global.cuh"
#include "mhla/cuda/ptx/index.cuh"
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
    float c[32] = {};
    ptx::group_begin();
    ptx::group_multiply_add<1>(c, 1, 2, 3, 4, params.b, half{});
    ptx::group_commit();
#if defined(MHLA_CONTROL)
    ptx::group_wait<0>();
    ptx::keep_order(c);
#endif
    MHLA_CUDA_UNROLL
    for (int i = 0; i < 32; ++i) {
      ptx::store_global_float(params.data + 128 * i + ptx::thread_index(), c[i]);
    }
    ptx::group_wait<0>();
  }
};
template struct Entry<Planted, kWgmma>;

}  // namespace mhla::cuda::build

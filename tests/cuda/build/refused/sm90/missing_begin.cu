// expect: C7519
// A operands written after the group began, until ptxas adds a beginning.

#include "cuda/build/entry.cuh"
#include "mhla/cuda/ptx/global.cuh"
#include "mhla/cuda/ptx/index.cuh"
#include "mhla/cuda/ptx/shared.cuh"
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
    const ptx::Words4 a = ptx::load_shared_4(ptx::shared_begin() + 16 * ptx::thread_index());
#if defined(MHLA_CONTROL)
    ptx::group_begin();
#endif
    ptx::group_multiply_add<1>(c, a.x[0], a.x[1], a.x[2], a.x[3], params.b + 1, half{});
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

// expect: registers, planned 16
// A kernel that has more registers than it plans with.

#include "cuda/build/entry.cuh"
#include "mhla/cuda/ptx/global.cuh"
#include "mhla/cuda/ptx/index.cuh"

namespace mhla::cuda::build {

struct Planted {
  struct Params {
    float* data;
  };
  static constexpr Arch kArchitecture = Arch::kSm80;
  static constexpr int kThreads = 128;
  static constexpr int kBlocksPerMultiprocessor = 2;
  static constexpr int kSharedBytes = 0;
#if defined(MHLA_CONTROL)
  static constexpr int kRegisters = 64;
#else
  static constexpr int kRegisters = 16;
#endif

  MHLA_DEVICE void operator()(const Params& params) const {
    float* const own = params.data + ptx::thread_index();
    float x[32];
    MHLA_CUDA_UNROLL
    for (int i = 0; i < 32; ++i) x[i] = ptx::reload_global_float(own + 128 * i);
    MHLA_CUDA_UNROLL
    for (int i = 0; i < 32; ++i) ptx::store_global_float(own + 128 * i, x[31 - i]);
  }
};
template struct Entry<Planted, 0>;

}  // namespace mhla::cuda::build

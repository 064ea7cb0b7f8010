// expect: has a stack frame of
// An array indexed at run time, which registers cannot be.

#include "cuda/build/entry.cuh"
#include "mhla/cuda/ptx/global.cuh"
#include "mhla/cuda/ptx/index.cuh"

namespace mhla::cuda::build {

struct Planted {
  struct Params {
    float* data;
    int count;
  };
  static constexpr Arch kArchitecture = Arch::kSm80;
  static constexpr int kThreads = 128;
  static constexpr int kBlocksPerMultiprocessor = 2;
  static constexpr int kSharedBytes = 0;

  MHLA_DEVICE void operator()(const Params& params) const {
    float* const own = params.data + ptx::thread_index();
    float x[8];
#if defined(MHLA_CONTROL)
    MHLA_CUDA_UNROLL
    for (int i = 0; i < 8; ++i) x[i] = ptx::reload_global_float(own + 128 * i);
    MHLA_CUDA_UNROLL
    for (int i = 0; i < 8; ++i) ptx::store_global_float(own + 128 * i, x[7 - i]);
#else
    MHLA_CUDA_LOOP
    for (int i = 0; i < params.count; ++i) x[i % 8] = ptx::reload_global_float(own + 128 * i);
    MHLA_CUDA_LOOP
    for (int i = 0; i < params.count; ++i) ptx::store_global_float(own + 128 * i, x[7 - i % 8]);
#endif
  }
};
template struct Entry<Planted, 0>;

}  // namespace mhla::cuda::build

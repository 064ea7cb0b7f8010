// expect: spills registers
// More live values than registers, of which two blocks of 1024 threads leave 32 each.

#include "cuda/build/entry.cuh"
#include "mhla/cuda/ptx/global.cuh"
#include "mhla/cuda/ptx/index.cuh"

namespace mhla::cuda::build {

struct Planted {
  struct Params {
    const float* from;
    float* to;
  };
  static constexpr Arch kArchitecture = Arch::kSm80;
  static constexpr int kThreads = 1024;
#if defined(MHLA_CONTROL)
  static constexpr int kBlocksPerMultiprocessor = 1;
  static constexpr int kValues = 16;
#else
  static constexpr int kBlocksPerMultiprocessor = 2;
  static constexpr int kValues = 96;
#endif
  static constexpr int kSharedBytes = 0;

  MHLA_DEVICE void operator()(const Params& params) const {
    const float* const from = params.from + ptx::thread_index();
    float* const to = params.to + ptx::thread_index();
    float x[kValues];
    MHLA_CUDA_UNROLL
    for (int i = 0; i < kValues; ++i) x[i] = ptx::reload_global_float(from + 1024 * i);
    MHLA_CUDA_UNROLL
    for (int i = 0; i < kValues; ++i) {
      ptx::store_global_float(to + 1024 * i, x[i] * x[kValues - 1 - i]);
    }
  }
};
template struct Entry<Planted, 0>;

}  // namespace mhla::cuda::build

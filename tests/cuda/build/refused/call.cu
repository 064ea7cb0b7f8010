// expect: is not inlined
// A function that is called.

#include "cuda/build/entry.cuh"
#include "mhla/cuda/ptx/global.cuh"

namespace mhla::cuda::build {

#if defined(MHLA_CONTROL)
MHLA_DEVICE
#else
__device__ __noinline__
#endif
float square(float x) { return x * x; }

struct Planted {
  struct Params {
    float* data;
  };
  static constexpr Arch kArchitecture = Arch::kSm80;
  static constexpr int kThreads = 128;
  static constexpr int kBlocksPerMultiprocessor = 2;
  static constexpr int kSharedBytes = 0;

  MHLA_DEVICE void operator()(const Params& params) const {
    ptx::store_global_float(params.data, square(ptx::reload_global_float(params.data)));
  }
};
template struct Entry<Planted, 0>;

}  // namespace mhla::cuda::build

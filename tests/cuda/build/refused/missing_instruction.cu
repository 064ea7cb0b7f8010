// expect: has no HMMA
// A product planned for tensor cores that is not made by them.

#include "cuda/build/entry.cuh"
#include "mhla/cuda/ptx/global.cuh"
#include "mhla/cuda/ptx/mma.cuh"

namespace mhla::cuda::build {

struct Planted {
  struct Params {
    float* data;
  };
  static constexpr Arch kArchitecture = Arch::kSm80;
  static constexpr int kThreads = 128;
  static constexpr int kBlocksPerMultiprocessor = 2;
  static constexpr int kSharedBytes = 0;

  MHLA_DEVICE void operator()(const Params& params) const {
    float c[4] = {1, 2, 3, 4};
#if defined(MHLA_CONTROL)
    ptx::multiply_add_16<half>(c, 1, 2, 3, 4, 5, 6);
#endif
    ptx::store_global_float(params.data, c[0] + c[1] + c[2] + c[3]);
  }
};
template struct Entry<Planted, kMma>;

}  // namespace mhla::cuda::build

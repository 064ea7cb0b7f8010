// expect: has 1 ldmatrix.sync.aligned, planned none
// An instruction that the plan does not name.

#include "cuda/build/entry.cuh"
#include "mhla/cuda/ptx/global.cuh"
#include "mhla/cuda/ptx/matrix.cuh"
#include "mhla/cuda/ptx/shared.cuh"

namespace mhla::cuda::build {

struct Planted {
  struct Params {
    float* data;
  };
  static constexpr Arch kArchitecture = Arch::kSm80;
  static constexpr int kThreads = 128;
  static constexpr int kBlocksPerMultiprocessor = 2;
  static constexpr int kSharedBytes = 1024;

  MHLA_DEVICE void operator()(const Params& params) const {
#if defined(MHLA_CONTROL)
    ptx::store_global_4(params.data, ptx::load_shared_4(ptx::shared_begin()));
#else
    ptx::store_global_4(params.data, ptx::load_matrices_4(ptx::shared_begin()));
#endif
  }
};
template struct Entry<Planted, 0>;

}  // namespace mhla::cuda::build

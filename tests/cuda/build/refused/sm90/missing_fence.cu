// expect: stores tensors without a fence.proxy.async
// What threads have stored leaves through the copy engine without a fence.

#include "cuda/build/entry.cuh"
#include "mhla/cuda/ptx/barrier.cuh"
#include "mhla/cuda/ptx/index.cuh"
#include "mhla/cuda/ptx/shared.cuh"
#include "mhla/cuda/ptx/tensor_copy.cuh"

namespace mhla::cuda::build {

struct Planted {
  struct Params {
    TensorMap map;
  };
  static constexpr Arch kArchitecture = Arch::kSm90a;
  static constexpr int kThreads = 128;
  static constexpr int kBlocksPerMultiprocessor = 1;
  static constexpr int kSharedBytes = 1024;

  MHLA_DEVICE void operator()(const Params& params) const {
    ptx::store_shared(ptx::shared_begin() + 4 * ptx::thread_index(), 0);
#if defined(MHLA_CONTROL)
    ptx::fence_async();
#endif
    ptx::meet_block();
    if (ptx::thread_index() == 0) {
      ptx::store_box(params.map, {{0, 0, 0, 0, 0}}, ptx::shared_begin());
      ptx::commit_stores();
      ptx::wait_stores_read<0>();
    }
  }
};
template struct Entry<Planted, kTensorStores>;

}  // namespace mhla::cuda::build

// expect: a block may have 166912
// More shared memory than one block may have.

#include "cuda/build/entry.cuh"
#include "mhla/cuda/ptx/index.cuh"
#include "mhla/cuda/ptx/shared.cuh"

namespace mhla::cuda::build {

struct Planted {
  struct Params {};
  static constexpr Arch kArchitecture = Arch::kSm80;
  static constexpr int kThreads = 128;
  static constexpr int kBlocksPerMultiprocessor = 1;
#if defined(MHLA_CONTROL)
  static constexpr int kSharedBytes = shared_limit(kArchitecture);
#else
  static constexpr int kSharedBytes = shared_limit(kArchitecture) + 16;
#endif

  MHLA_DEVICE void operator()(const Params&) const {
    ptx::store_shared(ptx::shared_begin() + 4 * ptx::thread_index(), 0);
  }
};
template struct Entry<Planted, 0>;

}  // namespace mhla::cuda::build

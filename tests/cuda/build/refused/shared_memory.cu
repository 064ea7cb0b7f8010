// expect: leaves no shared memory for 2 blocks
// Two blocks of a multiprocessor whose shared memory only one can have.

#include "cuda/build/entry.cuh"
#include "mhla/cuda/ptx/index.cuh"
#include "mhla/cuda/ptx/shared.cuh"

namespace mhla::cuda::build {

struct Planted {
  struct Params {};
  static constexpr Arch kArchitecture = Arch::kSm80;
  static constexpr int kThreads = 128;
  static constexpr int kBlocksPerMultiprocessor = 2;
#if defined(MHLA_CONTROL)
  static constexpr int kSharedBytes = 81 * 1024;
#else
  static constexpr int kSharedBytes = 82 * 1024;
#endif

  MHLA_DEVICE void operator()(const Params&) const {
    ptx::store_shared(ptx::shared_begin() + 4 * ptx::thread_index(), 0);
  }
};
template struct Entry<Planted, 0>;

}  // namespace mhla::cuda::build

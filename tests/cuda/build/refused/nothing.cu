// expect: the PTX has 0 kernels
// A unit without an entry function.

#include "cuda/build/entry.cuh"

namespace mhla::cuda::build {

struct Planted {
  struct Params {};
  static constexpr Arch kArchitecture = Arch::kSm80;
  static constexpr int kThreads = 128;
  static constexpr int kBlocksPerMultiprocessor = 1;
  static constexpr int kSharedBytes = 0;
  MHLA_DEVICE void operator()(const Params&) const {}
};
#if defined(MHLA_CONTROL)
template struct Entry<Planted, 0>;
#endif

}  // namespace mhla::cuda::build

// expect: C7508
// Registers handed from warp to warp by a kernel whose launch bounds do not fix how many it has.

#include "cuda/build/entry.cuh"
#include "mhla/cuda/ptx/wgmma.cuh"

namespace mhla::cuda::build {

struct Planted {
  struct Params {};
};

template <class K, int kThreads, int kBlocks, int kRegisters, int kSharedBytes, int kNeeds,
          int kFences>
__global__ void
#if defined(MHLA_CONTROL)
__launch_bounds__(kThreads, kBlocks)
#endif
    other_entry(typename K::Params) {
  ptx::give_registers<24>();
}
inline constexpr auto* kFunction = &other_entry<Planted, 128, 1, 255, 0, 0, 0>;

}  // namespace mhla::cuda::build

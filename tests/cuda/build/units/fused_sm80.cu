// widths: 64x64 72x72 128x128

#include "cuda/build/entry.cuh"
#include "mhla/cuda/kernel/fused_sm80.cuh"
#include "mhla/cuda/launch/plan.cuh"

namespace mhla::cuda::build {

template <class T, int kRegions>
using Checked =
    Entry<FusedSm80<T, kWidth, kValueWidth, kRegions, kTarget>, kMma | kMatrices | kCopies>;

// For the most blocks that fit, and for few.
inline constexpr int kMost = form_bounds<kWidth, kValueWidth>(kTarget).fused_blocks;
inline constexpr auto* kFunction0 = Checked<bfloat16, kMost>::kFunction;
inline constexpr auto* kFunction1 = Checked<half, kMost>::kFunction;
inline constexpr auto* kFunction2 = Checked<bfloat16, 4>::kFunction;
inline constexpr auto* kFunction3 = Checked<half, 4>::kFunction;

}  // namespace mhla::cuda::build

// widths: 64x64 72x72 128x128 128x256

#include "cuda/build/entry.cuh"
#include "mhla/cuda/kernel/quadratic_sm80.cuh"

namespace mhla::cuda::build {

template <class T, bool kCausal>
using Kernel = QuadraticSm80<T, kWidth, kValueWidth, kCausal>;
inline constexpr int kNeeds = kMma | kMatrices | kCopies;

template struct Entry<Kernel<bfloat16, false>, kNeeds>;
template struct Entry<Kernel<bfloat16, true>, kNeeds>;
template struct Entry<Kernel<half, false>, kNeeds>;
template struct Entry<Kernel<half, true>, kNeeds>;

}  // namespace mhla::cuda::build

// widths: 64x64 72x72 128x128 128x256

#include "cuda/build/entry.cuh"
#include "mhla/cuda/kernel/summary_sm80.cuh"

namespace mhla::cuda::build {

template <class T, Precision P>
using Kernel = SummarySm80<T, kWidth, kValueWidth, P>;
inline constexpr int kNeeds = kMma | kMatrices | kCopies;

template struct Entry<Kernel<bfloat16, Precision::kSingle>, kNeeds>;
template struct Entry<Kernel<bfloat16, Precision::kPair>, kNeeds>;
template struct Entry<Kernel<half, Precision::kSingle>, kNeeds>;
template struct Entry<Kernel<half, Precision::kPair>, kNeeds>;

}  // namespace mhla::cuda::build

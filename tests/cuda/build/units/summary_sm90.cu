// widths: 64x64 128x128 128x256

#include "cuda/build/entry.cuh"
#include "mhla/cuda/kernel/summary_sm90.cuh"

namespace mhla::cuda::build {

template <class T, Precision P>
using Kernel = SummarySm90<T, kWidth, kValueWidth, P>;
inline constexpr int kNeeds = kMma | kWgmma | kMatrices | kTensorLoads;
inline constexpr int kFences = 1;

template struct Entry<Kernel<bfloat16, Precision::kSingle>, kNeeds, kFences>;
template struct Entry<Kernel<bfloat16, Precision::kPair>, kNeeds, kFences>;
template struct Entry<Kernel<half, Precision::kSingle>, kNeeds, kFences>;
template struct Entry<Kernel<half, Precision::kPair>, kNeeds, kFences>;

}  // namespace mhla::cuda::build

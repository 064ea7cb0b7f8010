// widths: 64x64 128x128 128x256

#include "cuda/build/entry.cuh"
#include "mhla/cuda/kernel/read_out_sm90.cuh"

namespace mhla::cuda::build {

template <class T, Precision P>
using Kernel = ReadOutSm90<T, kWidth, kValueWidth, P>;
inline constexpr int kNeeds = kWgmma | kMatrices | kTensorLoads;

template struct Entry<Kernel<bfloat16, Precision::kSingle>, kNeeds>;
template struct Entry<Kernel<bfloat16, Precision::kPair>, kNeeds>;
template struct Entry<Kernel<half, Precision::kSingle>, kNeeds>;
template struct Entry<Kernel<half, Precision::kPair>, kNeeds>;

}  // namespace mhla::cuda::build

// widths: 64x64 72x72 128x128 128x256

#include "cuda/build/entry.cuh"
#include "mhla/cuda/kernel/scores_sm80.cuh"

namespace mhla::cuda::build {

template struct Entry<ScoresSm80<bfloat16, kWidth>, 0>;
template struct Entry<ScoresSm80<half, kWidth>, 0>;

}  // namespace mhla::cuda::build

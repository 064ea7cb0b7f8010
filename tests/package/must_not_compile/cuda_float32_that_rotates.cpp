// expect: rotary embedding has kernels for bfloat16 and half, not for float32
#include "mhla/cuda/attention/rotary_inputs.cuh"

#if defined(MHLA_CONTROL)
using Number = Eigen::half;
#else
using Number = float;
#endif

int main() {
  return mhla::cuda::detail::has_rotary_kernels<64, Number, mhla::cuda::Rotary>() ? 0 : 1;
}

// expect: rotary embedding has kernels for D that are multiples of 16
#include "mhla/cuda/attention/rotary_inputs.cuh"

#if defined(MHLA_CONTROL)
constexpr int kWidth = 96;
#else
constexpr int kWidth = 72;
#endif

int main() {
  using mhla::cuda::Rotary;
  return mhla::cuda::detail::has_rotary_kernels<kWidth, Eigen::half, Rotary>() ? 0 : 1;
}

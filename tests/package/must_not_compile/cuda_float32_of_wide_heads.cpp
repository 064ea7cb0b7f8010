// expect: float32 tensors have kernels for D up to 128
#include "mhla/cuda/attention/make_problem.cuh"

#if defined(MHLA_CONTROL)
constexpr int kWidth = 128;
#else
constexpr int kWidth = 256;
#endif

int main() {
  const mhla::cuda::Inputs<float> in{};
  const mhla::cuda::TokenBlocks blocks;
  const mhla::cuda::Problem problem = mhla::cuda::detail::make_problem<kWidth, kWidth>(
      "f", in, blocks, blocks, false, mhla::cuda::Operator{}, mhla::TensorView<float>{});
  return problem.batch;
}

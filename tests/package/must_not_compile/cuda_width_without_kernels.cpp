// expect: mhla::cuda has kernels for \(D, E\) of \(64, 64\), \(72, 72\), \(128, 128\), \(128, 256\)
#include "mhla/cuda/launch/plan.cuh"

#if defined(MHLA_CONTROL)
constexpr int kWidth = 64;
#else
constexpr int kWidth = 96;
#endif

int main() {
  const mhla::cuda::Problem problem{};
  return mhla::cuda::plan<kWidth, kWidth>(problem, {}).workspace_bytes > 0 ? 1 : 0;
}

// expect: mhla::cuda has kernels for the pairs \(D, E\) of kWidthPairs in kernel/widths.cuh
#include "mhla/cuda/launch/plan.cuh"

#if defined(MHLA_CONTROL)
constexpr int kWidth = 64;
#else
constexpr int kWidth = 40;
#endif

int main() {
  const mhla::cuda::Problem problem{};
  return mhla::cuda::plan<kWidth, kWidth>(problem, {}).workspace_bytes > 0 ? 1 : 0;
}

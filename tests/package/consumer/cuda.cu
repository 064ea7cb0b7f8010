// The smallest program of a user of mhla::cuda: plans a call, and makes it where there is a device.

#include <cstdio>
#include <cstring>

#include "mhla/cuda/attention/bidirectional.cuh"

using T = Eigen::bfloat16;
constexpr int kTokens = 1024, kWidth = 64, kBlocks = 16;

void check(cudaError_t status) { mhla::cuda::expect_success(status, "a call of the consumer"); }

int main() try {
  const mhla::cuda::TokenBlocks blocks = mhla::cuda::grid({32, 32}, {8, 8});
  const mhla::cuda::Operator op{.eps = 1e-6f};
  mhla::cuda::Inputs<T> in;
  in.q = in.k = in.v = mhla::bnhd<const T>(nullptr, 1, kTokens, 1, kWidth);
  auto out = mhla::bnhd<T>(nullptr, 1, kTokens, 1, kWidth);
  const mhla::cuda::Plan hopper = mhla::cuda::bidirectional_plan<kWidth, kWidth>(
      in, blocks, blocks, op, out, {mhla::cuda::Arch::kSm90a, 132});
  std::printf("%s: %s, %zu bytes of workspace\n", mhla::cuda::name(hopper.form), hopper.reason,
              hopper.workspace_bytes);

  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::printf("no device: nothing launched\n");
    return 0;
  }
  const mhla::cuda::Device device = mhla::cuda::current_device();
  const mhla::cuda::Plan plan =
      mhla::cuda::bidirectional_plan<kWidth, kWidth>(in, blocks, blocks, op, out, device);
  void *tokens = nullptr, *outputs = nullptr, *mixing = nullptr, *workspace = nullptr;
  check(cudaMalloc(&tokens, kTokens * kWidth * 2));
  check(cudaMalloc(&outputs, kTokens * kWidth * 2));
  check(cudaMalloc(&mixing, kBlocks * kBlocks * 4));
  check(cudaMalloc(&workspace, plan.workspace_bytes + 1));
  check(cudaMemset(tokens, 0x3F, kTokens * kWidth * 2));  // 0.746... in bfloat16
  check(cudaMemset(mixing, 0x3D, kBlocks * kBlocks * 4));
  in.q.data = in.k.data = in.v.data = static_cast<const T*>(tokens);
  out.data = static_cast<T*>(outputs);
  mhla::cuda::bidirectional<kWidth, kWidth>(
      in, blocks, blocks,
      mhla::MatrixView<const float>(static_cast<const float*>(mixing), kBlocks, kBlocks, kBlocks),
      op, out, {static_cast<std::byte*>(workspace), plan.workspace_bytes}, device, nullptr);
  T first;
  check(cudaMemcpy(&first, outputs, sizeof(first), cudaMemcpyDeviceToHost));
  const float expected = 0.74609375f;  // all values are the same, so their mean is
  const bool good = std::abs(static_cast<float>(first) - expected) < 0.02f;
  std::printf("%s\n", good ? "right" : "WRONG");
  return good ? 0 : 1;
} catch (const std::exception& e) {
  std::printf("%s\n", e.what());
  return 1;
}

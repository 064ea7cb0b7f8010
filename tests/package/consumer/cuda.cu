// The smallest program of a user of mhla::cuda: plans a call, and makes it where there is a device.
// The lines of include/mhla/cuda/README.md are among it.

#include <cstdio>
#include <cstring>
#include <mhla/mhla.cuh>

using T = Eigen::bfloat16;
constexpr int kTokens = 1024, kBlocks = 16;
constexpr std::size_t kBytes = kTokens * 64 * sizeof(T);

void check(cudaError_t status) { mhla::cuda::expect_success(status, "a call of the consumer"); }

int main() try {
  const auto blocks = mhla::cuda::grid({32, 32}, {8, 8});
  const mhla::cuda::Operator op{.eps = 1e-6f};
  mhla::cuda::Inputs<T> in;
  in.q = in.k = in.v = mhla::bnhd<const T>(nullptr, 1, kTokens, 1, 64);
  auto out = mhla::bnhd<T>(nullptr, 1, kTokens, 1, 64);
  const mhla::cuda::Plan hopper = mhla::cuda::bidirectional_plan<64, 64>(
      in, blocks, blocks, op, out, {mhla::cuda::Arch::kSm90a, 132});
  std::printf("%s: %s, %zu bytes of workspace\n", mhla::cuda::name(hopper.form), hopper.reason,
              hopper.workspace_bytes);

  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::printf("no device: nothing launched\n");
    return 0;
  }
  const auto device = mhla::cuda::current_device();
  const auto plan = mhla::cuda::bidirectional_plan<64, 64>(in, blocks, blocks, op, out, device);
  void *tokens = nullptr, *outputs = nullptr, *coefficients = nullptr, *memory = nullptr;
  check(cudaMalloc(&tokens, kBytes));
  check(cudaMalloc(&outputs, kBytes));
  check(cudaMalloc(&coefficients, kBlocks * kBlocks * 4));
  check(cudaMalloc(&memory, plan.workspace_bytes + 1));
  check(cudaMemset(tokens, 0x3F, kBytes));  // 0.746... in bfloat16
  check(cudaMemset(coefficients, 0x3D, kBlocks * kBlocks * 4));
  in.q.data = in.k.data = in.v.data = static_cast<const T*>(tokens);
  out.data = static_cast<T*>(outputs);
  const mhla::MatrixView<const float> mixing(static_cast<const float*>(coefficients), kBlocks,
                                             kBlocks, kBlocks);
  const mhla::Workspace workspace(static_cast<std::byte*>(memory), plan.workspace_bytes);
  const cudaStream_t stream = nullptr;
  mhla::cuda::bidirectional<64, 64>(in, blocks, blocks, mixing, op, out, workspace, device, stream);
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

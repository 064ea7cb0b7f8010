// The smallest program that uses mhla::nccl: if there is a device, it runs a form over one rank. It
// contains lines of include/mhla/cuda/README.md.

#include <cmath>
#include <cstddef>
#include <cstdio>
#include <exception>
#include <mhla/distributed/nccl.hpp>
#include <mhla/mhla.cuh>

using T = Eigen::bfloat16;
constexpr int kTokens = 1024, kBlocks = 16;
constexpr std::size_t kBytes = kTokens * 64 * sizeof(T);

void check(cudaError_t status) { mhla::cuda::expect_success(status, "a call of the consumer"); }

/// Allocates `bytes` of device memory.
void* array(std::size_t bytes, int fill) {
  void* memory = nullptr;
  check(cudaMalloc(&memory, bytes));
  check(cudaMemset(memory, fill, bytes));
  return memory;
}

int main() try {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
    std::printf("no device: nothing launched\n");
    return 0;
  }
  ncclUniqueId id;
  ncclGetUniqueId(&id);
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  ncclComm_t comm = nullptr;
  ncclCommInitRankConfig(&comm, 1, id, 0, &config);
  cudaStream_t stream = nullptr;
  check(cudaStreamCreate(&stream));
  mhla::distributed::NcclRank gpu(comm, stream);

  const auto blocks = mhla::cuda::grid({32, 32}, {8, 8});
  const mhla::cuda::Operator op{.eps = 1e-6f};
  const auto device = mhla::cuda::current_device();
  mhla::cuda::Inputs<T> in;
  in.q = in.k = in.v =
      mhla::bnhd(static_cast<const T*>(array(kBytes, 0x3F)), 1, kTokens, 1, 64);  // 0.746...
  auto out = mhla::bnhd(static_cast<T*>(array(kBytes, 0)), 1, kTokens, 1, 64);
  auto call = mhla::cuda::prepare_distributed<64, 64>(gpu, in, blocks, blocks, op, out, device);
  const mhla::MatrixView<const float> mixing(
      static_cast<const float*>(array(kBlocks * kBlocks * 4, 0x3D)), kBlocks, kBlocks, kBlocks);
  const std::size_t bytes = call.plan().workspace_bytes;
  const mhla::Workspace workspace(static_cast<std::byte*>(array(bytes, 0)), bytes);
  call.run(in, mixing, out, workspace);
  gpu.synchronize();
  T first;
  check(cudaMemcpy(&first, out.data, sizeof(first), cudaMemcpyDeviceToHost));
  // All values are equal, so their mean is too.
  const bool good = std::abs(static_cast<float>(first) - 0.74609375f) < 0.02f;
  std::printf("%s\n", good ? "right" : "WRONG");
  return good ? 0 : 1;
} catch (const std::exception& error) {
  std::printf("%s\n", error.what());
  return 1;
}

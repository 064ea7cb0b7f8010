// The program at the head of include/mhla/cuda/README.md.

#include <cuda_bf16.h>

#include <cstdio>
#include <mhla/mhla.cuh>
#include <mhla/policy/locality.hpp>

int main() try {
  using T = Eigen::bfloat16;  // the bits of __nv_bfloat16
  constexpr int B = 4, N = 1024, H = 6, D = 64, M = 16;
  const auto memory = [](std::size_t bytes) {
    void* begin = nullptr;
    mhla::cuda::expect_success(cudaMalloc(&begin, bytes), "cudaMalloc");
    mhla::cuda::expect_success(cudaMemset(begin, 0, bytes), "cudaMemset");
    return begin;
  };
  const auto tensor = [&] {  // [B, N, H, D]
    auto* const numbers = static_cast<__nv_bfloat16*>(memory(sizeof(T) * B * N * H * D));
    return mhla::bnhd(reinterpret_cast<T*>(numbers), B, N, H, D);
  };
  const mhla::cuda::Inputs<T> in{tensor(), tensor(), tensor()};  // q, k, v
  const auto out = tensor(), dout = tensor();
  auto* const m = static_cast<float*>(memory(sizeof(float) * M * M));
  auto* const dm = static_cast<float*>(memory(sizeof(float) * M * M));
  const auto start = mhla::locality<float>({4, 4});  // near blocks weigh more
  cudaMemcpy(m, start.storage().data(), sizeof(float) * M * M, cudaMemcpyHostToDevice);
  const mhla::MatrixView<const float> mixing(m, M, M, M);
  const mhla::cuda::Gradients<T> gradients{tensor(), tensor(), tensor(), {dm, M, M, M}};

  const auto device = mhla::cuda::current_device();
  const auto blocks = mhla::cuda::grid({32, 32}, {8, 8});  // raster order, nothing is permuted
  const mhla::cuda::Operator op{.eps = 1e-6f};
  const cudaStream_t stream = nullptr;
  auto forward = mhla::cuda::prepare_bidirectional<D, D>(in, blocks, blocks, op, out, device);
  auto backward = mhla::cuda::prepare_bidirectional_gradient<D, D>(
      in, blocks, blocks, op, dout, gradients, device, mhla::cuda::NoRotary{}, {.out = out});
  const std::size_t forward_bytes = forward.plan().workspace_bytes;
  const std::size_t backward_bytes = backward.plan().workspace_bytes;
  const mhla::Workspace space(static_cast<std::byte*>(memory(forward_bytes)), forward_bytes);
  const mhla::Workspace more(static_cast<std::byte*>(memory(backward_bytes)), backward_bytes);
  forward.run(in, mixing, out, space, stream);
  backward.run(in, mixing, dout, gradients, more, stream, mhla::cuda::NoRotary{}, {.out = out});
  mhla::cuda::expect_success(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
  std::printf("%s form, gradients in %zu bytes\n", name(forward.plan().form), backward_bytes);
} catch (const std::exception& e) {  // "mhla::cuda::bidirectional: k has shape [4, 1, 6, 64], ..."
  std::printf("%s\n", e.what());
  return 1;
}

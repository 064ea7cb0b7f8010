// The smallest program that uses mhla::cuda: it plans a call, and runs it if there is a device. It
// contains lines of include/mhla/cuda/README.md.

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <mhla/mhla.cuh>

using T = Eigen::bfloat16;
constexpr int kTokens = 1024, kBlocks = 16;
constexpr std::size_t kBytes = kTokens * 64 * sizeof(T);

struct Softplus {
  float beta;
  __host__ __device__ float function(float x) const { return log1pf(expf(beta * x)) / beta; }
  __host__ __device__ float derivative(float x) const { return 1 / (1 + expf(-beta * x)); }
};

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
  {
    using namespace mhla::cuda;
    const auto a100 = with_arch(current_device(), Arch::kSm80);
    const auto rtx = with_shared_bytes(current_device(), kLeastShared);
    for (const Device& other : {a100, rtx}) {
      std::printf("%s\n",
                  name(bidirectional_plan<64, 64>(in, blocks, blocks, op, out, other).form));
    }
  }
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

  const mhla::cuda::MappedOperator softplus(op, Softplus{2});  // of queries and keys
  auto mapped =
      mhla::cuda::prepare_bidirectional<64, 64>(in, blocks, blocks, softplus, out, device);
  void* features = nullptr;
  check(cudaMalloc(&features, mapped.plan().workspace_bytes));
  mapped.run(in, mixing, out, {static_cast<std::byte*>(features), mapped.plan().workspace_bytes},
             stream);
  T of_softplus;
  check(cudaMemcpy(&of_softplus, outputs, sizeof(of_softplus), cudaMemcpyDeviceToHost));

  void* tangents = nullptr;
  check(cudaMalloc(&tangents, kBytes));
  const auto tangent = mhla::bnhd(static_cast<T*>(tangents), 1, kTokens, 1, 64);
  const mhla::cuda::Tangents<T> along{in.q, in.k, in.v};  // absent directions cost nothing
  const auto tangent_plan = mhla::cuda::bidirectional_tangent_plan<64, 64>(
      in, blocks, blocks, op, along, out, tangent, device);
  void* addends = nullptr;
  check(cudaMalloc(&addends, tangent_plan.workspace_bytes));
  const mhla::Workspace space(static_cast<std::byte*>(addends), tangent_plan.workspace_bytes);
  mhla::cuda::bidirectional_tangent<64, 64>(in, blocks, blocks, mixing, op, along, out, tangent,
                                            space, device, stream);
  T along_itself;  // outputs are of degree 0 in q and k, of degree 1 in v
  check(cudaMemcpy(&along_itself, tangents, sizeof(along_itself), cudaMemcpyDeviceToHost));

  constexpr int sequences = 1, heads = 1;
  const mhla::cuda::Streaming<64, 64, T> streaming(sequences, heads, 64, mixing, op);
  constexpr int kPrompt = kTokens / 2 - 1, seen = kPrompt;  // two prompts, then one token
  in.q = in.k = in.v = mhla::bnhd(static_cast<const T*>(tokens), 1, kPrompt, 1, 64);
  out = mhla::bnhd(static_cast<T*>(outputs), 1, kPrompt, 1, 64);
  const std::size_t prefill_bytes =
      std::max(streaming.prefill_plan(0, in, out, device).workspace_bytes,
               streaming.prefill_plan(seen, in, out, device).workspace_bytes);
  void *numbers = nullptr, *state_memory = nullptr, *prefill_memory = nullptr;
  check(cudaMalloc(&numbers, sizeof(std::int32_t)));
  check(cudaMalloc(&state_memory, streaming.state_bytes()));
  check(cudaMalloc(&prefill_memory, prefill_bytes + 1));
  check(cudaMemset(numbers, 0, sizeof(std::int32_t)));
  const mhla::Workspace state(static_cast<std::byte*>(state_memory), streaming.state_bytes());
  const mhla::Workspace scratch(static_cast<std::byte*>(prefill_memory), prefill_bytes);
  const auto* const sequence_of = static_cast<const std::int32_t*>(numbers);
  streaming.start(state, stream);
  streaming.prefill(0, 0, in, out, state, scratch, device, stream);
  streaming.prefill(0, seen, in, out, state, scratch, device, stream);
  mhla::cuda::Inputs<T> token;
  token.q = token.k = token.v = mhla::bnhd(static_cast<const T*>(tokens), 1, 1, 1, 64);
  const auto next = mhla::bnhd(static_cast<T*>(outputs), 1, 1, 1, 64);
  streaming.step(token, sequence_of, next, state, stream);
  T streamed;
  check(cudaMemcpy(&streamed, outputs, sizeof(streamed), cudaMemcpyDeviceToHost));

  const auto right = [](T output) {  // all values are equal, so their mean is too
    return std::abs(static_cast<float>(output) - 0.74609375f) < 0.02f;
  };
  const bool good = right(first) && right(of_softplus) && right(along_itself) && right(streamed);
  std::printf("%s\n", good ? "right" : "WRONG");
  return good ? 0 : 1;
} catch (const std::exception& e) {
  std::printf("%s\n", e.what());
  return 1;
}

#include "cuda/step_form.hpp"
#include "mhla/cuda/attention/streaming.cuh"

namespace mhla::cuda_bench {
namespace {

using Number = Eigen::bfloat16;
using Streaming = cuda::Streaming<kStepWidth, kStepWidth, Number>;

Streaming streaming(const Streams& s) {
  return {s.batch, s.heads, s.block_length,
          MatrixView<const float>(s.mixing, s.blocks, s.blocks, s.blocks), cuda::Operator{}};
}

/// Token `token` of every sequence of a [B, tokens, H, .] tensor.
TensorView<const Number> token_of(const Bits* tensor, const Streams& s, std::int64_t token) {
  const Index row = kStepWidth, of_token = s.heads * row;
  return {reinterpret_cast<const Number*>(tensor) + token * of_token,
          {s.batch, 1, s.heads, row},
          {s.tokens * of_token, of_token, row, 1}};
}

Workspace state(const Streams& s) { return {static_cast<std::byte*>(s.state), s.state_bytes}; }

}  // namespace

std::size_t state_bytes(const Streams& s) { return streaming(s).state_bytes(); }

void start(const Streams& s, cudaStream_t stream) { streaming(s).start(state(s), stream); }

void step(const Streams& s, std::int64_t token, cudaStream_t stream) {
  const TensorView<Number> out =
      bnhd(reinterpret_cast<Number*>(s.o), s.batch, Index{1}, s.heads, Index{kStepWidth});
  streaming(s).step({token_of(s.q, s, token), token_of(s.k, s, token), token_of(s.v, s, token)},
                    out, state(s), stream);
}

}  // namespace mhla::cuda_bench

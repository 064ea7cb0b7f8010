// The forms of one (D, E) and type: MHLA_WIDTH, MHLA_VALUE_WIDTH, MHLA_TYPE.

#include "cuda/device/forms.hpp"
#include "mhla/cuda/attention/bidirectional.cuh"
#include "mhla/cuda/attention/causal.cuh"
#include "mhla/cuda/attention/streaming.cuh"

namespace device_test {
namespace {

using mhla::Index;
using mhla::MatrixView;
using mhla::TensorView;

template <class T>
struct number {
  using type = Eigen::bfloat16;
};
template <>
struct number<mhla::cuda::half> {
  using type = Eigen::half;
};
template <class T>
using number_t = typename number<T>::type;

/// The view of a tensor [B, tokens, H, width].
template <class Number, class Byte>
TensorView<Number> view(const mhla::cuda::BasicTokenTensor<Byte>& x, Index batch, Index tokens,
                        Index heads, Index width) {
  return {reinterpret_cast<Number*>(x.data),
          {batch, tokens, heads, width},
          {x.batch_stride / 2, x.token_stride / 2, x.head_stride / 2, 1}};
}

template <class T, int D, int E, class Call>
mhla::cuda::Inputs<number_t<T>> inputs(const Call& c, Index queries, Index keys) {
  using Number = const number_t<T>;
  return {view<Number>(c.q, c.batch, queries, c.heads, D),
          view<Number>(c.k, c.batch, keys, c.heads, D),
          view<Number>(c.v, c.batch, keys, c.heads, E)};
}

mhla::Workspace memory(void* begin, std::size_t bytes) {
  return {static_cast<std::byte*>(begin), bytes};
}

template <class T, int D, int E>
mhla::cuda::Streaming<D, E, number_t<T>> streaming(const StreamCall& c) {
  return {c.batch, c.heads, c.block_length,
          MatrixView<const float>(c.mixing, c.blocks, c.blocks, c.blocks), c.op};
}

}  // namespace

template <class T, int D, int E>
FormPlan Forms<T, D, E>::plan(const FormCall& c) {
  const auto in = inputs<T, D, E>(c, c.query_blocks.tokens(), c.key_blocks.tokens());
  const auto out = view<number_t<T>>(c.o, c.batch, c.query_blocks.tokens(), c.heads, E);
  const mhla::cuda::Plan plan =
      c.causal ? mhla::cuda::causal_plan<D, E>(in, c.query_blocks, c.op, out, c.device)
               : mhla::cuda::bidirectional_plan<D, E>(in, c.query_blocks, c.key_blocks, c.op, out,
                                                      c.device);
  return {mhla::cuda::name(plan.form), plan.workspace_bytes};
}

template <class T, int D, int E>
void Forms<T, D, E>::run(const FormCall& c, cudaStream_t stream) {
  const auto in = inputs<T, D, E>(c, c.query_blocks.tokens(), c.key_blocks.tokens());
  const auto out = view<number_t<T>>(c.o, c.batch, c.query_blocks.tokens(), c.heads, E);
  const Index rows = c.query_blocks.blocks(), columns = c.key_blocks.blocks();
  const MatrixView<const float> mixing(c.mixing, rows, columns, columns);
  const mhla::Workspace workspace = memory(c.workspace, c.workspace_bytes);
  if (c.causal) {
    mhla::cuda::causal<D, E>(in, c.query_blocks, mixing, c.op, out, workspace, c.device, stream);
  } else {
    mhla::cuda::bidirectional<D, E>(in, c.query_blocks, c.key_blocks, mixing, c.op, out, workspace,
                                    c.device, stream);
  }
}

template <class T, int D, int E>
std::size_t Forms<T, D, E>::state_bytes(const StreamCall& c) {
  return streaming<T, D, E>(c).state_bytes();
}

template <class T, int D, int E>
void Forms<T, D, E>::start(const StreamCall& c, cudaStream_t stream) {
  streaming<T, D, E>(c).start(memory(c.state, c.state_bytes), stream);
}

template <class T, int D, int E>
void Forms<T, D, E>::start(const StreamCall& c, std::int64_t sequence, cudaStream_t stream) {
  streaming<T, D, E>(c).start(sequence, memory(c.state, c.state_bytes), stream);
}

template <class T, int D, int E>
void Forms<T, D, E>::step(const StreamCall& c, cudaStream_t stream) {
  const auto in = inputs<T, D, E>(c, 1, 1);
  const auto out = view<number_t<T>>(c.o, c.batch, 1, c.heads, E);
  const mhla::Workspace state = memory(c.state, c.state_bytes);
  if (c.sequence_of != nullptr) {
    streaming<T, D, E>(c).step(in, c.sequence_of, out, state, stream);
  } else {
    streaming<T, D, E>(c).step(in, out, state, stream);
  }
}

template <class T, int D, int E>
std::size_t Forms<T, D, E>::prefill_bytes(const StreamCall& c, std::int64_t seen,
                                          std::int64_t tokens) {
  const auto out = view<number_t<T>>(c.o, c.batch, tokens, c.heads, E);
  return streaming<T, D, E>(c)
      .prefill_plan(seen, inputs<T, D, E>(c, tokens, tokens), out, mhla::cuda::current_device())
      .workspace_bytes;
}

template <class T, int D, int E>
void Forms<T, D, E>::prefill(const StreamCall& c, std::int64_t seen, std::int64_t tokens,
                             void* workspace, std::size_t workspace_bytes, cudaStream_t stream) {
  const auto out = view<number_t<T>>(c.o, c.batch, tokens, c.heads, E);
  streaming<T, D, E>(c).prefill(0, seen, inputs<T, D, E>(c, tokens, tokens), out,
                                memory(c.state, c.state_bytes), memory(workspace, workspace_bytes),
                                mhla::cuda::current_device(), stream);
}

template struct Forms<mhla::cuda::MHLA_TYPE, MHLA_WIDTH, MHLA_VALUE_WIDTH>;

}  // namespace device_test

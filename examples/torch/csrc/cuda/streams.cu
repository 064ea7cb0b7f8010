// Streams of tensors of MHLA_TYPE with (D, E) = (MHLA_WIDTH, MHLA_VALUE_WIDTH).

#include <mhla/cuda/attention/streaming.cuh>

#include "streams.hpp"
#include "views.hpp"

namespace mhla_torch {
namespace {

template <class T, int D, int E>
mhla::cuda::Streaming<D, E, T> streaming(const StreamCall& call) {
  return {call.sequences, call.q.heads(), call.block, call.mixing, call.op};
}

template <class T>
mhla::cuda::Inputs<T> tokens(const StreamCall& call) {
  return {of_type<const T>(call.q), of_type<const T>(call.k), of_type<const T>(call.v)};
}

}  // namespace

template <class T, int D, int E>
void Streams<T, D, E>::prefill(const StreamCall& call, mhla::Index first, mhla::Index seen,
                               const std::function<mhla::Workspace(std::size_t)>& workspace,
                               void* stream) {
  const auto streams = streaming<T, D, E>(call);
  const auto in = tokens<T>(call);
  const auto out = of_type<T>(call.out);
  const mhla::cuda::Device device = mhla::cuda::current_device();
  const std::size_t bytes = streams.prefill_plan(seen, in, out, device).workspace_bytes;
  streams.prefill(first, seen, in, out, call.state, workspace(bytes), device,
                  static_cast<cudaStream_t>(stream));
}

template <class T, int D, int E>
void Streams<T, D, E>::step(const StreamCall& call, const std::int32_t* sequence_of, void* stream) {
  const auto streams = streaming<T, D, E>(call);
  const auto in = tokens<T>(call);
  const auto out = of_type<T>(call.out);
  if (sequence_of == nullptr) {
    streams.step(in, out, call.state, static_cast<cudaStream_t>(stream));
  } else {
    streams.step(in, sequence_of, out, call.state, static_cast<cudaStream_t>(stream));
  }
}

template struct Streams<MHLA_TYPE, MHLA_WIDTH, MHLA_VALUE_WIDTH>;

}  // namespace mhla_torch

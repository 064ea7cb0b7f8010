// The forms of one (D, E) and type: MHLA_WIDTH, MHLA_VALUE_WIDTH, MHLA_TYPE.

#include "cuda/device/form_views.cuh"
#include "cuda/device/forms.hpp"
#include "mhla/cuda/attention/streaming.cuh"

namespace device_test {
namespace {

/// Calls work(streaming) with the streams of a call.
template <class T, int D, int E, class Work>
auto with_streaming(const StreamCall& c, const Work& work) {
  const Index terms = c.op.decay_terms;
  const Index rows = terms > 0 ? 2 : c.blocks, columns = terms > 0 ? terms : c.blocks;
  const MatrixView<const float> mixing(c.mixing, rows, columns, columns);
  return with_operator(c, [&]<class O>(const O& op) {
    return work(
        mhla::cuda::Streaming<D, E, number_t<T>, O>(c.batch, c.heads, c.block_length, mixing, op));
  });
}

}  // namespace

template <class T, int D, int E>
FormPlan Forms<T, D, E>::plan(const FormCall& c) {
  return plan_form<T, D, E>(c, mhla::cuda::NoRotary{});
}

template <class T, int D, int E>
void Forms<T, D, E>::run(const FormCall& c, cudaStream_t stream) {
  run_form<T, D, E>(c, mhla::cuda::NoRotary{}, stream);
}

template <class T, int D, int E>
std::size_t Forms<T, D, E>::state_bytes(const StreamCall& c) {
  return with_streaming<T, D, E>(c, [](const auto& x) { return x.state_bytes(); });
}

template <class T, int D, int E>
void Forms<T, D, E>::start(const StreamCall& c, cudaStream_t stream) {
  with_streaming<T, D, E>(c,
                          [&](const auto& x) { x.start(memory(c.state, c.state_bytes), stream); });
}

template <class T, int D, int E>
void Forms<T, D, E>::start(const StreamCall& c, std::int64_t sequence, cudaStream_t stream) {
  with_streaming<T, D, E>(
      c, [&](const auto& x) { x.start(sequence, memory(c.state, c.state_bytes), stream); });
}

template <class T, int D, int E>
void Forms<T, D, E>::step(const StreamCall& c, cudaStream_t stream) {
  const auto in = inputs<T, D, E>(c, c.batch, 1, 1);
  const auto out = view<number_t<T>>(c.o, c.batch, 1, c.heads, E);
  const mhla::Workspace state = memory(c.state, c.state_bytes);
  with_streaming<T, D, E>(c, [&](const auto& x) {
    if (c.sequence_of != nullptr) {
      x.step(in, c.sequence_of, out, state, stream);
    } else {
      x.step(in, out, state, stream);
    }
  });
}

template <class T, int D, int E>
std::size_t Forms<T, D, E>::prefill_bytes(const StreamCall& c, std::int64_t seen,
                                          std::int64_t tokens) {
  const auto out = view<number_t<T>>(c.o, c.batch, tokens, c.heads, E);
  return with_streaming<T, D, E>(c, [&](const auto& x) {
    return x
        .prefill_plan(seen, inputs<T, D, E>(c, c.batch, tokens, tokens), out,
                      mhla::cuda::current_device())
        .workspace_bytes;
  });
}

template <class T, int D, int E>
void Forms<T, D, E>::prefill(const StreamCall& c, std::int64_t seen, std::int64_t tokens,
                             void* workspace, std::size_t workspace_bytes, cudaStream_t stream) {
  const auto out = view<number_t<T>>(c.o, c.batch, tokens, c.heads, E);
  with_streaming<T, D, E>(c, [&](const auto& x) {
    x.prefill(0, seen, inputs<T, D, E>(c, c.batch, tokens, tokens), out,
              memory(c.state, c.state_bytes), memory(workspace, workspace_bytes),
              mhla::cuda::current_device(), stream);
  });
}

template struct Forms<mhla::cuda::MHLA_TYPE, MHLA_WIDTH, MHLA_VALUE_WIDTH>;

}  // namespace device_test

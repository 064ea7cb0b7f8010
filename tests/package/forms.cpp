// One program per form, FORM, and per gradient: one call, with sizes that the compiler does not
// know. The file compilers.cmake compiles each program separately, because g++ inlines a single
// call and then checks more of it. Without FORM all calls are in one program. No program is ever
// run.

#include "mhla/mhla.hpp"

struct Head {
  mhla::Inputs<float> in() const { return mhla::inputs(q, k, v); }
  mhla::Gradients<float> gradients() { return {.q = dq, .k = dk, .v = dv}; }

  mhla::Matrix<float> q, k, v, out, dq, dk, dv;
  mhla::Contiguous blocks;
  mhla::MixingMatrix<float> mixing;
  mhla::Operator<> op{};
};

inline Head head_of(mhla::Index tokens) {
  const mhla::Matrix<float> x = mhla::Matrix<float>::Random(tokens, 8);
  const mhla::Contiguous blocks(tokens, 16);
  return {x, x, x, x, x, x, x, blocks, mhla::locality(blocks.blocks())};
}

/// One sequence of one head.
inline mhla::TensorView<float> batch_of(mhla::Matrix<float>& x) {
  return mhla::bnhd(x.data(), {1, x.rows(), 1, x.cols()});
}
inline mhla::BatchInputs<float> batch_of(Head& h) {
  return mhla::inputs(batch_of(h.q), batch_of(h.k), batch_of(h.v));
}

inline void bidirectional(Head& h) { mhla::bidirectional(h.in(), h.blocks, h.mixing, h.op, h.out); }
inline void causal(Head& h) { mhla::causal(h.in(), h.blocks, h.mixing, h.op, h.out); }
inline void streaming(Head& h) {
  const mhla::Streaming<float> stream({.width = 8, .values = 8, .block_length = 16}, h.mixing);
  auto state = stream.start();
  stream.append(state, h.in(), h.out);
}
inline void linear(Head& h) {
  mhla::linear_bidirectional(h.in(), h.op, h.out);
  mhla::linear_causal(h.in(), h.op, h.out);
}
inline void softmax(Head& h) {
  mhla::softmax_bidirectional(h.in(), h.out);
  mhla::softmax_causal(h.in(), h.out);
}
inline void batched(Head& h) {
  mhla::ThreadPool pool(2);
  mhla::causal(batch_of(h), h.blocks, h.mixing, h.op, batch_of(h.out), {.executor = pool});
}

inline void bidirectional_gradient(Head& h) {
  mhla::bidirectional_gradient(h.in(), h.blocks, h.mixing, h.op, h.out, h.gradients());
}
inline void causal_gradient(Head& h) {
  mhla::causal_gradient(h.in(), h.blocks, h.mixing, h.op, h.out, h.gradients());
}
inline void linear_gradient(Head& h) {
  mhla::linear_bidirectional_gradient(h.in(), h.op, h.out, h.gradients());
  mhla::linear_causal_gradient(h.in(), h.op, h.out, h.gradients());
}
inline void softmax_gradient(Head& h) {
  mhla::softmax_bidirectional_gradient(h.in(), h.out, h.gradients());
  mhla::softmax_causal_gradient(h.in(), h.out, h.gradients());
}
inline void batched_gradient(Head& h) {
  mhla::ThreadPool pool(2);
  mhla::causal_gradient(batch_of(h), h.blocks, h.mixing, h.op, batch_of(h.out),
                        {.q = batch_of(h.dq), .k = batch_of(h.dk), .v = batch_of(h.dv)}, {},
                        {.executor = pool});
}

int main(int argc, char**) {
  Head h = head_of(argc);
#if defined(FORM)
  FORM(h);
#else
  for (auto* form :
       {bidirectional, causal, streaming, linear, softmax, batched, bidirectional_gradient,
        causal_gradient, linear_gradient, softmax_gradient, batched_gradient}) {
    form(h);
  }
#endif
}

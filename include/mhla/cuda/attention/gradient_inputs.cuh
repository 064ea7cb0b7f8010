#pragma once

/// \file
/// The arguments of gradients on a device, and their checks. Nothing here reads device memory or
/// calls CUDA.

#include <array>
#include <cstdint>
#include <span>
#include <string>

#include "mhla/cuda/attention/inputs.cuh"
#include "mhla/cuda/attention/make_problem.cuh"
#include "mhla/cuda/attention/mixing_inputs.cuh"
#include "mhla/cuda/attention/same_layout.cuh"
#include "mhla/cuda/launch/gradient_problem.cuh"

namespace mhla::cuda {

/// Destinations of the gradients. Absent gradients are not computed. Elements of a gradient must be
/// distinct.
template <DeviceScalar T>
struct Gradients {
  TensorView<T> q{};  ///< [B, Nq, H, D]
  TensorView<T> k{};  ///< [B, Nk, H, D]
  TensorView<T> v{};  ///< [B, Nk, H, E]
  /// [Mq, Mk] each, dense rows, larger in causal forms; [2, R] of decaying terms; or [0, 0]
  MixingMatrices<float> mixing{};
  std::span<float> gain{};  ///< [E], where there is a gain
  TensorView<T> gate{};     ///< [B, Nq, H, E], where there is a gate
};

/// Results of the forward call.
template <DeviceScalar T>
struct Kept {
  TensorView<const T> out{};  ///< outputs [B, Nq, H, E]; not read with a gain
};

namespace detail {

/// The gradient that the arguments describe.
/// \throws shape_error, option_error for what does not fit.
template <int D, int E, DeviceScalar T, AnyOperator O = Operator>
GradientProblem make_gradient(const char* function, const Inputs<T>& in,
                              const TokenBlocks& query_blocks, const TokenBlocks& key_blocks,
                              bool causal, const O& op, TensorView<const T> dout,
                              const Gradients<T>& gradients, const Kept<T>& kept) {
  const Index nq = tokens_of(in, in.q, in.query_prefix, query_blocks);
  const Index nk = tokens_of(in, in.k, in.key_prefix, key_blocks);
  const std::array<Index, 4> queries{in.q.batch(), nq, in.q.heads(), D};
  const std::array<Index, 4> keys{in.q.batch(), nk, in.q.heads(), D};
  std::array<Index, 4> outputs = queries, values = keys;
  outputs[3] = values[3] = E;
  const TensorView<T> out = bnhd<T>(nullptr, outputs);  // outputs of the forward call, not written
  GradientProblem problem{};
  problem.dout = token_tensor<const unsigned char>(function, "dout", dout, outputs);
  problem.forward = make_problem<D, E>(function, in, query_blocks, key_blocks, causal, op, out);
  problem.forward.o = {};
  const auto wanted = [&](const char* argument, const TensorView<T>& x,
                          const std::array<Index, 4>& shape) -> TokenTensor {
    if (x.absent()) return {};
    const TokenTensor tensor = token_tensor<unsigned char>(function, argument, x, shape);
    expect_distinct(function, argument, x);
    return tensor;
  };
  problem.dq = wanted("gradients.q", gradients.q, queries);
  problem.dk = wanted("gradients.k", gradients.k, keys);
  problem.dv = wanted("gradients.v", gradients.v, values);
  problem.dgate = wanted("gradients.gate", gradients.gate, outputs);
  if (!kept.out.absent()) {
    problem.out = token_tensor<const unsigned char>(function, "kept.out", kept.out, outputs);
  }
  problem.wants = {!gradients.q.absent(),     !gradients.k.absent(),   !gradients.v.absent(),
                   gradients.mixing.rows > 0, !gradients.gain.empty(), !kept.out.absent()};
  if (problem.wants.gain && gradients.gain.size() != E) {
    fail_shape(function, "gradients.gain",
               "has " + std::to_string(gradients.gain.size()) + " elements", std::to_string(E));
  }
  if (problem.wants.gain && !problem.forward.norm.normed) {
    fail_option(function, "gradients.gain", "is given without a gain", "none");
  }
  if (!gradients.gate.absent() && !problem.forward.norm.gated) {
    fail_option(function, "gradients.gate", "is given without a gate", "none");
  }
  problem.dgain = gradients.gain.data();
  if (problem.wants.mixing) {
    const MixingMatrices<float>& m = gradients.mixing;
    const Matrices matrices = problem.forward.op.matrices;
    expect_matrices(function, "gradients.mixing", m, matrices);
    const MixingShape shape = mixing_shape(problem.forward);
    expect_size(function, "gradients.mixing", m.rows, m.cols, shape.rows, shape.columns,
                shape.larger);
    if (m.col_stride != 1 && m.cols > 1) {
      fail_option(function, "gradients.mixing", "has column stride " + std::to_string(m.col_stride),
                  "1");
    }
    const Index items = matrices == Matrices::kPerItemAndHead ? problem.forward.batch : 1;
    const Index heads = matrices == Matrices::kShared ? 1 : problem.forward.heads;
    expect_distinct(function, "gradients.mixing", {items, heads, shape.rows, shape.columns},
                    {m.item_stride, m.head_stride, m.row_stride, 1});
    problem.dmixing = {m.data, m.row_stride, m.item_stride, m.head_stride};
  }
  return problem;
}

/// \throws option_error for absent data, which only a plan may leave out.
template <DeviceScalar T>
void expect_gradient_data(const char* function, const Inputs<T>& in, TensorView<const T> dout,
                          const Gradients<T>& gradients, const Kept<T>& kept) {
  expect_data(function, in, dout, "dout");
  const auto expect = [function](const char* argument, const auto& x) {
    if (!x.absent() && x.data == nullptr && x.batch() * x.tokens() * x.heads() > 0) {
      fail_option(function, argument, "is null", "a pointer to data");
    }
  };
  expect("gradients.q", gradients.q);
  expect("gradients.k", gradients.k);
  expect("gradients.v", gradients.v);
  expect("gradients.gate", gradients.gate);
  expect("kept.out", kept.out);
  if (gradients.mixing.rows > 0 && gradients.mixing.data == nullptr) {
    fail_option(function, "gradients.mixing", "is null", "a pointer to data");
  }
  if (!gradients.gain.empty() && gradients.gain.data() == nullptr) {
    fail_option(function, "gradients.gain", "is null", "a pointer to data");
  }
}

/// \throws option_error if the gradients differ in more than the addresses of their tensors.
inline void expect_same_gradient(const char* function, const GradientProblem& problem,
                                 const GradientProblem& prepared) {
  expect_same_layout(function, problem.forward, prepared.forward);
  const auto same = [](const auto& a, const auto& b) {
    return a.batch_stride == b.batch_stride && a.head_stride == b.head_stride &&
           a.token_stride == b.token_stride;
  };
  if (!same(problem.dout, prepared.dout) || !same(problem.out, prepared.out) ||
      !same(problem.dq, prepared.dq) || !same(problem.dk, prepared.dk) ||
      !same(problem.dv, prepared.dv) || !same(problem.dgate, prepared.dgate)) {
    fail_option(function, "dout, gradients and kept", "have other strides",
                "those that it was prepared for");
  }
  if (problem.wants != prepared.wants) {
    fail_option(function, "gradients and kept", "are others", "those that it was prepared for");
  }
}

}  // namespace detail
}  // namespace mhla::cuda

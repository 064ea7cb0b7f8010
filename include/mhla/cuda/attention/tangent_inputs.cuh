#pragma once

/// \file
/// The arguments of tangents on a device, and their checks. Nothing here reads device memory or
/// calls CUDA.

#include <algorithm>
#include <string>

#include "mhla/cuda/attention/inputs.cuh"
#include "mhla/cuda/attention/make_problem.cuh"
#include "mhla/cuda/launch/tangent.cuh"

namespace mhla::cuda {

/// Directions of the tensors of a call, along which its outputs are differentiated. Absent ones
/// count as zeros and cost nothing. They may share memory with inputs and with each other.
template <DeviceScalar T>
struct Tangents {
  TensorView<const T> q{};               ///< [B, Nq, H, D]
  TensorView<const T> k{};               ///< [B, Nk, H, D]
  TensorView<const T> v{};               ///< [B, Nk, H, E]
  MixingMatrices<const float> mixing{};  ///< as many matrices as `mixing` has, or [0, 0]
};

namespace detail {

/// \throws option_error for calls that have no tangents on a device.
template <DeviceScalar T>
void expect_tangent_form(const char* function, const Inputs<T>& in, const Operator& op,
                         bool causal) {
  expect_all_tokens(function, in, "none: tangents take all tokens");
  if (!in.gain.empty()) fail_option(function, "gain", "is given", "none: tangents take no norm");
  if (!in.gate.absent()) fail_option(function, "gate", "is given", "none: tangents take no gate");
  if (op.denominator == Denominator::kCrossQuery) {
    fail_option(function, "op", "has a cross-query denominator", "none or key sums in tangents");
  }
  if (causal && op.denominator != Denominator::kNone) {
    fail_option(function, "op", "has a denominator", "none in tangents of causal forms");
  }
  expect_decay_terms(function, op, false, "0: tangents take matrices of coefficients");
}

/// The tangent that the arguments describe.
/// \throws shape_error, option_error for what does not fit.
template <int D, int E, DeviceScalar T>
TangentProblem make_tangent(const char* function, const Inputs<T>& in,
                            const TokenBlocks& query_blocks, const TokenBlocks& key_blocks,
                            bool causal, const Operator& op, const Tangents<T>& tangents,
                            TensorView<T> out, TensorView<T> tangent) {
  expect_tangent_form(function, in, op, causal);
  TangentProblem problem{};
  problem.forward = make_problem<D, E>(function, in, query_blocks, key_blocks, causal, op, out);
  const auto direction = [&](const char* argument, const TensorView<const T>& x,
                             const TensorView<const T>& of) -> ConstTokenTensor {
    if (x.absent()) return {};
    return token_tensor<const unsigned char>(function, argument, x, of.shape);
  };
  problem.q = direction("tangents.q", tangents.q, in.q);
  problem.k = direction("tangents.k", tangents.k, in.k);
  problem.v = direction("tangents.v", tangents.v, in.v);
  problem.tangent = token_tensor<unsigned char>(function, "tangent", tangent, out.shape);
  expect_distinct(function, "tangent", tangent);
  const bool wanted[] = {!tangents.q.absent(), !tangents.k.absent(), !tangents.v.absent(),
                         tangents.mixing.rows > 0};
  std::copy_n(wanted, 4, problem.wants);
  if (wanted[3]) {
    const MixingShape shape = mixing_shape(problem.forward);
    expect_matrices(function, "tangents.mixing", tangents.mixing, op.matrices);
    expect_size(function, "tangents.mixing", tangents.mixing.rows, tangents.mixing.cols, shape.rows,
                shape.columns, shape.larger);
    if (tangents.mixing.col_stride != 1 && shape.columns > 1) {
      fail_option(function, "tangents.mixing",
                  "has column stride " + std::to_string(tangents.mixing.col_stride), "1");
    }
  }
  return problem;
}

/// \throws option_error for absent data, which only a plan may leave out.
template <DeviceScalar T>
void expect_tangent_data(const char* function, const Inputs<T>& in, const Tangents<T>& tangents,
                         TensorView<T> out, TensorView<T> tangent) {
  expect_data(function, in, out);
  expect_data(function, in, tangent, "tangent");
  const auto expect = [function](const char* argument, const TensorView<const T>& x) {
    if (!x.absent() && x.data == nullptr && x.batch() * x.tokens() * x.heads() > 0) {
      fail_option(function, argument, "is null", "a pointer to data");
    }
  };
  expect("tangents.q", tangents.q);
  expect("tangents.k", tangents.k);
  expect("tangents.v", tangents.v);
}

}  // namespace detail
}  // namespace mhla::cuda

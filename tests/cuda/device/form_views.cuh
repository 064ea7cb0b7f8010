#pragma once

/// \file
/// Converts the tensors of a FormCall or StreamCall to the library's arguments, and runs a
/// FormCall. For nvcc.

#include <utility>

#include "cuda/device/forms.hpp"
#include "mhla/cuda/attention/bidirectional.cuh"
#include "mhla/cuda/attention/causal.cuh"
#include "support/cuda/own_maps.hpp"

namespace device_test {

using mhla::Index;
using mhla::MatrixView;
using mhla::TensorView;
using mhla::cuda::bfloat16, mhla::cuda::half;  // MHLA_TYPE is these or float

template <class T>
struct number {
  using type = Eigen::bfloat16;
};
template <>
struct number<mhla::cuda::half> {
  using type = Eigen::half;
};
template <>
struct number<float> {
  using type = float;
};
template <class T>
using number_t = typename number<T>::type;

/// The view of a tensor [B, tokens, H, width].
template <class Number, class Byte>
TensorView<Number> view(const mhla::cuda::BasicTokenTensor<Byte>& x, Index batch, Index tokens,
                        Index heads, Index width) {
  constexpr Index kBytes = sizeof(Number);
  return {reinterpret_cast<Number*>(x.data),
          {batch, tokens, heads, width},
          {x.batch_stride / kBytes, x.token_stride / kBytes, x.head_stride / kBytes, 1}};
}

/// Inputs q, k and v of a call.
template <class T, int D, int E, class Call>
mhla::cuda::Inputs<number_t<T>> inputs(const Call& c, Index items, Index queries, Index keys) {
  using Number = const number_t<T>;
  return {view<Number>(c.q, items, queries, c.heads, D), view<Number>(c.k, items, keys, c.heads, D),
          view<Number>(c.v, items, keys, c.heads, E)};
}

/// A tensor [items, query rows, H, E] of a call.
template <class Number, int E, class Byte>
TensorView<Number> output_view(const FormCall& c, const mhla::cuda::BasicTokenTensor<Byte>& x) {
  return view<Number>(x, c.items(), c.query_rows(), c.heads, E);
}

/// Inputs with the gain, the gate, masks and offsets of a call.
template <class T, int D, int E>
mhla::cuda::Inputs<number_t<T>> inputs(const FormCall& c) {
  auto in = inputs<T, D, E>(c, c.items(), c.query_rows(), c.key_rows());
  in.query_prefix = c.query_prefix;
  in.key_prefix = c.key_prefix;
  if (c.gain != nullptr) in.gain = {c.gain, E};
  if (c.gate.data != nullptr) in.gate = output_view<const number_t<T>, E>(c, c.gate);
  if (c.query_mask != nullptr) in.query_mask = {c.query_mask, c.batch, c.queries(), c.queries()};
  if (c.key_mask != nullptr) in.key_mask = {c.key_mask, c.batch, c.keys(), c.keys()};
  if (c.offsets != nullptr) {
    in.query_offsets = in.key_offsets = {c.offsets, static_cast<std::size_t>(c.batch) + 1};
  }
  return in;
}

/// Rows and columns of a call's mixing matrices, or of their decaying terms.
inline std::pair<Index, Index> mixing_shape(const FormCall& c) {
  if (c.op.decay_terms > 0) return {2, c.op.decay_terms};
  return {c.rows(), c.columns()};
}

/// The mixing matrices of a call.
inline mhla::cuda::MixingMatrices<const float> mixing_of(const FormCall& c) {
  const auto [rows, columns] = mixing_shape(c);
  mhla::cuda::MixingMatrices<const float> mixing({c.mixing, rows, columns, columns}, c.head_stride,
                                                 c.item_stride);
  mixing.pattern = c.pattern;
  return mixing;
}

inline mhla::Workspace memory(void* begin, std::size_t bytes) {
  return {static_cast<std::byte*>(begin), bytes};
}

/// Calls work(op) with the operator of a call, or with maps of one's own.
template <class Call, class Work>
auto with_operator(const Call& c, const Work& work) {
  if (!c.own_maps) return work(c.op);
  return work(mhla::cuda::MappedOperator(c.op, cuda_test::Softplus{}, cuda_test::kSquaredRelu));
}

/// \tparam R  NoRotary or Rotary
template <class T, int D, int E, class R>
FormPlan plan_form(const FormCall& c, const R& rotary) {
  const auto in = inputs<T, D, E>(c);
  const auto out = output_view<number_t<T>, E>(c, c.o);
  const mhla::cuda::Plan plan = with_operator(c, [&](const auto& op) {
    if (c.causal) {
      return mhla::cuda::causal_plan<D, E>(in, c.query_blocks, op, out, c.device, rotary);
    }
    return mhla::cuda::bidirectional_plan<D, E>(in, c.query_blocks, c.key_blocks, op, out, c.device,
                                                rotary);
  });
  const bool split = plan.form == mhla::cuda::Form::kQuadratic &&
                     plan.quadratic == mhla::cuda::QuadraticKernel::kSplit;
  return {split ? "split keys" : mhla::cuda::name(plan.form), plan.workspace_bytes};
}

template <class T, int D, int E, class R>
void run_form(const FormCall& c, const R& rotary, cudaStream_t stream) {
  const auto in = inputs<T, D, E>(c);
  const auto out = output_view<number_t<T>, E>(c, c.o);
  const mhla::cuda::MixingMatrices<const float> mixing = mixing_of(c);
  const mhla::Workspace workspace = memory(c.workspace, c.workspace_bytes);
  with_operator(c, [&](const auto& op) {
    if (c.causal) {
      mhla::cuda::causal<D, E>(in, c.query_blocks, mixing, op, out, workspace, c.device, stream,
                               rotary);
    } else {
      mhla::cuda::bidirectional<D, E>(in, c.query_blocks, c.key_blocks, mixing, op, out, workspace,
                                      c.device, stream, rotary);
    }
  });
}

}  // namespace device_test

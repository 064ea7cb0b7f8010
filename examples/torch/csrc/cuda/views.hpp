#pragma once

/// \file
/// Arguments of mhla::cuda for elements of type T, from those of calls of any type, and the
/// comparison of calls that may share a preparation.

#include <mhla/core/tensor.hpp>
#include <mhla/cuda/attention/gradient_inputs.cuh>
#include <mhla/cuda/attention/inputs.cuh>
#include <mhla/cuda/attention/rotary_inputs.cuh>
#include <string>
#include <type_traits>
#include <utility>

#include "forms.hpp"

namespace mhla_torch {

template <class T, class Byte>
mhla::TensorView<T> of_type(const mhla::TensorView<Byte>& x) {
  return {reinterpret_cast<T*>(x.data), x.shape, x.strides};
}

template <class T>
mhla::cuda::Inputs<T> inputs(const Call& call) {
  return {.q = of_type<const T>(call.q),
          .k = of_type<const T>(call.k),
          .v = of_type<const T>(call.v),
          .gain = call.gain,
          .gate = of_type<const T>(call.gate),
          .query_mask = call.query_mask,
          .key_mask = call.key_mask,
          .query_offsets = call.query_offsets,
          .key_offsets = call.key_offsets,
          .query_prefix = call.query_prefix,
          .key_prefix = call.key_prefix};
}

/// Returns the rotary embedding of a call whose form takes one, or NoRotary.
template <class R>
R rotary(const Call& call) {
  if constexpr (std::is_same_v<R, mhla::cuda::Rotary>) {
    return *call.rotary;
  } else {
    return {};
  }
}

/// True if there are kernels that rotate D features of tensors of T.
template <class T, int D>
inline constexpr bool kRotates = D % 16 == 0 && !std::is_same_v<T, float>;

/// Calls work.operator()<R>() for the type R of the call's rotary embedding.
/// \throws option_error if there are no kernels that rotate D features of tensors of T.
template <class T, int D, class Work>
auto with_rotary(const Call& call, const Work& work) {
  if (!call.rotary) return work.template operator()<mhla::cuda::NoRotary>();
  if constexpr (kRotates<T, D>) {
    return work.template operator()<mhla::cuda::Rotary>();
  } else if constexpr (std::is_same_v<T, float>) {
    throw mhla::option_error(
        "mhla::cuda: query_angles is given for tensors of float, expected bfloat16 or half");
  } else {
    throw mhla::option_error("mhla::cuda: query_angles is given for D of " + std::to_string(D) +
                             ", expected a multiple of 16");
  }
}

template <class T>
mhla::cuda::Gradients<T> gradients(const GradientCall& call) {
  return {.q = of_type<T>(call.dq),
          .k = of_type<T>(call.dk),
          .v = of_type<T>(call.dv),
          .mixing = call.dmixing,
          .gain = call.dgain,
          .gate = of_type<T>(call.dgate)};
}

/// Returns true if two calls differ only in the addresses of their tensors.
inline bool same_layout(const Call& a, const Call& b) {
  const auto same = [](const auto& x, const auto& y) {
    return x.shape == y.shape && x.strides == y.strides;
  };
  const auto prefixes = [](const Call& x) { return std::pair(x.query_prefix, x.key_prefix); };
  return same(a.q, b.q) && same(a.k, b.k) && same(a.v, b.v) && same(a.out, b.out) &&
         same(a.gate, b.gate) && a.gain.size() == b.gain.size() &&
         a.query_mask.absent() == b.query_mask.absent() &&
         a.key_mask.absent() == b.key_mask.absent() &&
         a.query_offsets.size() == b.query_offsets.size() &&
         a.rotary.has_value() == b.rotary.has_value() && a.query_blocks == b.query_blocks &&
         a.key_blocks == b.key_blocks && prefixes(a) == prefixes(b) && a.causal == b.causal &&
         a.op == b.op;
}

inline bool same_layout(const GradientCall& a, const GradientCall& b) {
  const auto same = [](const auto& x, const auto& y) {
    return x.shape == y.shape && x.strides == y.strides;
  };
  return same_layout(a.forward, b.forward) && same(a.dout, b.dout) && same(a.out, b.out) &&
         same(a.dq, b.dq) && same(a.dk, b.dk) && same(a.dv, b.dv) && same(a.dgate, b.dgate) &&
         a.dgain.size() == b.dgain.size() && a.dmixing.rows == b.dmixing.rows &&
         a.dmixing.cols == b.dmixing.cols && a.dmixing.row_stride == b.dmixing.row_stride &&
         a.dmixing.head_stride == b.dmixing.head_stride &&
         a.dmixing.item_stride == b.dmixing.item_stride;
}

}  // namespace mhla_torch

#pragma once

/// \file
/// Arguments of mhla::cuda for elements of type T, from those of calls of any type.

#include <mhla/core/tensor.hpp>
#include <mhla/cuda/attention/gradient_inputs.cuh>
#include <mhla/cuda/attention/inputs.cuh>
#include <mhla/cuda/attention/rotary_inputs.cuh>
#include <string>
#include <type_traits>

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
          .key_offsets = call.key_offsets};
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

/// Calls work.operator()<R>() for the type R of the call's rotary embedding.
/// \throws option_error if there are no kernels that rotate D features.
template <int D, class Work>
auto with_rotary(const Call& call, const Work& work) {
  if (!call.rotary) return work.template operator()<mhla::cuda::NoRotary>();
  if constexpr (D == 64 || D == 128) {
    return work.template operator()<mhla::cuda::Rotary>();
  } else {
    throw mhla::option_error("mhla::cuda: query_angles is given for D of " + std::to_string(D) +
                             ", expected D of 64 or 128");
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

}  // namespace mhla_torch

#pragma once

/// \file
/// Directions of the tensors and parameters of a call, along which its output is differentiated
/// (forward mode). A tangent that is absent or empty counts as zeros and costs nothing. Tangents
/// may share memory with inputs and with each other, and strides may be 0: they are only read.

#include <concepts>
#include <span>

#include "mhla/core/arch.hpp"
#include "mhla/core/matrix.hpp"
#include "mhla/core/tensor.hpp"
#include "mhla/policy/mixing_view.hpp"

namespace mhla {
inline namespace MHLA_TARGET {

/// Directions of the tensors of one head, shaped as in Inputs. Rows of masked tokens are not read.
template <Scalar T>
struct Tangents {
  MatrixView<const T> q{};             ///< [Nq, width of q]
  MatrixView<const T> k{};             ///< [Nk, width of k]
  MatrixView<const T> v{};             ///< [Nk, E]
  MatrixView<const T> normalizer_q{};  ///< if the denominator has separate queries and keys
  MatrixView<const T> normalizer_k{};
};

/// Directions of the tensors of a batch, shaped as in BatchInputs.
template <Scalar T>
struct BatchTangents {
  TensorView<const T> q{};             ///< [B, Nq, H, width of q]
  TensorView<const T> k{};             ///< [B, Nk, H, width of k]
  TensorView<const T> v{};             ///< [B, Nk, H, E]
  TensorView<const T> normalizer_q{};  ///< if the denominator has separate queries and keys
  TensorView<const T> normalizer_k{};
};

/// Directions of the parameters. All sequences and heads share the maps, and a mixing matrix unless
/// each head, or each sequence and head, has its own.
template <Accumulator A>
struct ParameterTangents {
  MixingView<const A> mixing{};    ///< as many matrices as mixing has, of its shape and pattern
  std::span<const A> query_map{};  ///< the weights of the queries' map, as the map orders them
  std::span<const A> key_map{};    ///< the weights of the keys' map
};

/// Something and its tangent: outputs of a call, or its memory.
template <class X>
struct WithTangent {
  X value;
  X tangent;
};

}  // namespace MHLA_TARGET
}  // namespace mhla

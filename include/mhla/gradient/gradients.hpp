#pragma once

/// \file
/// Gradients that backward forms write. Backward adds to existing values, so that parameters
/// accumulate over calls and activations over their uses: start from zeros. Each element is summed
/// from zero in the accumulator type, in an order that neither strides nor threads change. Then it
/// is added to the existing value and rounded once: a call adds the value that it gives from zeros.
///
/// Absent views and empty spans are skipped. Elements are distinct: keys that heads share by a
/// stride of 0 need a gradient per head, for the caller to add up. A gradient must not overlap
/// itself, another gradient or data that the call reads.

#include <span>

#include "mhla/core/arch.hpp"
#include "mhla/core/error.hpp"
#include "mhla/core/matrix.hpp"
#include "mhla/core/tensor.hpp"
#include "mhla/policy/mixing_matrix.hpp"

namespace mhla {
inline namespace MHLA_TARGET {

/// Gradients of the tensors of one head, shaped as in Inputs. Rows of masked tokens, whose gradient
/// is exactly 0, stay unchanged.
template <Scalar T>
struct Gradients {
  MatrixView<T> q{};             ///< [Nq, width of q]
  MatrixView<T> k{};             ///< [Nk, width of k]
  MatrixView<T> v{};             ///< [Nk, E]
  MatrixView<T> normalizer_q{};  ///< if the denominator has separate queries and keys
  MatrixView<T> normalizer_k{};
};

/// Gradients of the tensors of a batch, shaped as in BatchInputs.
template <Scalar T>
struct BatchGradients {
  TensorView<T> q{};             ///< [B, Nq, H, width of q]
  TensorView<T> k{};             ///< [B, Nk, H, width of k]
  TensorView<T> v{};             ///< [B, Nk, H, E]
  TensorView<T> normalizer_q{};  ///< if the denominator has separate queries and keys
  TensorView<T> normalizer_k{};
};

/// Gradients of the parameters, summed in an order that does not depend on the number of threads.
/// All sequences and heads share the maps, and a mixing matrix unless each head, or each sequence
/// and head, has its own.
template <Accumulator A>
struct ParameterGradients {
  MixingView<A> mixing{};    ///< as many matrices as mixing has, of its shape and pattern
  std::span<A> query_map{};  ///< the weights of the queries' map, as the map orders them
  std::span<A> key_map{};    ///< the weights of the keys' map
};

}  // namespace MHLA_TARGET
}  // namespace mhla

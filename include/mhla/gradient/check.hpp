#pragma once

/// \file
/// Checks of the gradients that callers pass to the backward forms.

#include <span>
#include <string>

#include "mhla/attention/operator.hpp"
#include "mhla/core/arch.hpp"
#include "mhla/core/error.hpp"
#include "mhla/core/matrix.hpp"
#include "mhla/gradient/gradients.hpp"
#include "mhla/policy/mixing_matrix.hpp"

namespace mhla {
inline namespace MHLA_TARGET {
namespace detail {

/// Throws unless `gradient` is absent or [rows, cols].
template <class T>
void expect_gradient(const char* function, const char* argument, const MatrixView<T>& gradient,
                     Index rows, Index cols) {
  if (!gradient.absent()) expect_shape(function, argument, gradient, rows, cols);
}

/// Throws unless the gradients of one head are absent or shaped as its inputs.
template <Scalar T>
void expect_gradients(const char* function, const Inputs<T>& in, const Gradients<T>& gradients) {
  const auto expect = [&](const char* argument, const auto& gradient, const auto& of) {
    expect_gradient(function, argument, gradient, of.rows, of.cols);
  };
  expect("gradients.q", gradients.q, in.q);
  expect("gradients.k", gradients.k, in.k);
  expect("gradients.v", gradients.v, in.v);
  expect("gradients.normalizer_q", gradients.normalizer_q, in.normalizer_q);
  expect("gradients.normalizer_k", gradients.normalizer_k, in.normalizer_k);
}

/// Throws unless the gradients of the parameters are absent or as large as the parameters.
template <class A, class Op>
void expect_parameters(const char* function, const Band& mixing, const Op& op,
                       const ParameterGradients<A>& parameters) {
  const auto text = [](const Band& band) {
    return shape_text({band.rows(), band.cols()}) + " and rows of up to " +
           std::to_string(band.width());
  };
  if (!parameters.mixing.absent() && parameters.mixing.band() != mixing) {
    fail_shape(function, "parameters.mixing", "has shape " + text(parameters.mixing.band()),
               "the shape and the band of mixing, " + text(mixing));
  }
  const auto expect = [&](const char* argument, std::span<A> weights, Index count) {
    if (!weights.empty() && static_cast<Index>(weights.size()) != count) {
      fail_shape(function, argument, "has " + std::to_string(weights.size()) + " elements",
                 std::to_string(count) + " (the weights of the map) or none");
    }
  };
  expect("parameters.query_map", parameters.query_map, op.query_map.weights());
  expect("parameters.key_map", parameters.key_map, op.key_map.weights());
}

}  // namespace detail
}  // namespace MHLA_TARGET
}  // namespace mhla

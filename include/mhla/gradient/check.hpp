#pragma once

/// \file
/// Checks of the gradients that callers pass to the backward forms.

#include <span>
#include <string>

#include "mhla/attention/heads.hpp"
#include "mhla/attention/operator.hpp"
#include "mhla/attention/overlap.hpp"
#include "mhla/core/arch.hpp"
#include "mhla/core/error.hpp"
#include "mhla/core/matrix.hpp"
#include "mhla/core/overlap.hpp"
#include "mhla/core/tensor.hpp"
#include "mhla/gradient/gradients.hpp"
#include "mhla/policy/mixing_matrix.hpp"

namespace mhla {
inline namespace MHLA_TARGET {
namespace detail {

/// Throws unless `gradient` is absent or [rows, cols] of distinct elements.
template <class T>
void expect_gradient(const char* function, const char* argument, const MatrixView<T>& gradient,
                     Index rows, Index cols) {
  if (gradient.absent()) return;
  expect_shape(function, argument, gradient, rows, cols);
  expect_distinct(function, argument, gradient);
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

/// Throws unless the gradients or tangents of the parameters are absent or as large as the
/// parameters.
template <class A, class Op, class Parameters>
void expect_parameters(const char* function, const MixingView<A>& mixing, const Op& op,
                       const Parameters& parameters) {
  const auto text = [](const Pattern& p) {
    return shape_text({p.rows(), p.cols()}) + " and " +
           (p.sparse() ? std::to_string(p.size()) + " listed coefficients"
                       : "rows of up to " + std::to_string(p.width()));
  };
  const auto& own = parameters.mixing;
  if (!own.absent() && own.pattern() != mixing.pattern()) {
    fail_shape(function, "parameters.mixing", "has shape " + text(own.pattern()),
               "the shape and the pattern of mixing, " + text(mixing.pattern()));
  }
  if (!own.absent() && (own.sequences() != mixing.sequences() || own.heads() != mixing.heads())) {
    fail_shape(function, "parameters.mixing", "has " + matrices_text(own) + " matrices",
               matrices_text(mixing) + ", as many as mixing");
  }
  const auto expect = [&](const char* argument, auto weights, Index count) {
    if (!weights.empty() && static_cast<Index>(weights.size()) != count) {
      fail_shape(function, argument, "has " + std::to_string(weights.size()) + " elements",
                 std::to_string(count) + " (the weights of the map) or none");
    }
  };
  expect("parameters.query_map", parameters.query_map, op.query_map.weights());
  expect("parameters.key_map", parameters.key_map, op.key_map.weights());
}

/// Throws if a gradient shares an element with another gradient, the inputs, dout or the mixing
/// matrix. The mixing matrix is read after the first gradient is written.
/// \param mixing  its numbers (mixing_places)
template <class In, class Out, class G, class A>
void expect_separate_gradients(const char* function, const In& in, const Out& dout,
                               const G& gradients, const ParameterGradients<A>& parameters,
                               const TensorView<const scalar_of<In>>& mixing) {
  using T = scalar_of<In>;
  const MixingView<A>& dm = parameters.mixing;
  expect_distinct(function, "parameters.mixing", places_of<T>(dm));
  const NamedTensor<T> all[] = {{"gradients.q", as_batch(gradients.q)},
                                {"gradients.k", as_batch(gradients.k)},
                                {"gradients.v", as_batch(gradients.v)},
                                {"gradients.normalizer_q", as_batch(gradients.normalizer_q)},
                                {"gradients.normalizer_k", as_batch(gradients.normalizer_k)},
                                {"parameters.mixing", places_of<T>(dm)},
                                {"parameters.query_map", places_of<T, A>(parameters.query_map)},
                                {"parameters.key_map", places_of<T, A>(parameters.key_map)},
                                {"q", as_batch(in.q)},
                                {"k", as_batch(in.k)},
                                {"v", as_batch(in.v)},
                                {"normalizer_q", as_batch(in.normalizer_q)},
                                {"normalizer_k", as_batch(in.normalizer_k)},
                                {"dout", as_batch(dout)},
                                {"mixing", mixing}};
  expect_separate<T>(function, all, 8);
}

}  // namespace detail
}  // namespace MHLA_TARGET
}  // namespace mhla

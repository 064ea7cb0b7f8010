#pragma once

/// \file
/// Definitions of the activations in layer/activation.hpp.

#include <cmath>

#include "support/layer_run.hpp"

namespace mhla::test {

template <class A>
Dual<A> gelu_definition(const Dual<A>& x) {
  const Dual<A> u = std::sqrt(2 / 3.14159265358979323846L) * (x + 0.044715L * x * x * x);
  return x / 2 * (1 + tanh(u));
}

/// Twice the slope of erf bounds the effect of roundings of x.
template <class A>
Dual<A> erf(const Dual<A>& x) {
  const Wide slope = 2 / std::sqrt(3.14159265358979323846L) * std::exp(-x.value * x.value);
  return {std::erf(x.value), slope * x.tangent, 1 + slope * x.size,
          2 * (1 + x.size) * x.tangent_size};
}

template <class A>
Dual<A> erf_gelu_definition(const Dual<A>& x) {
  return x / 2 * (1 + erf(x / std::sqrt(2.0L)));
}

template <class A>
Dual<A> silu_definition(const Dual<A>& x) {
  return x / 2 * (1 + tanh(x / 2));
}

}  // namespace mhla::test

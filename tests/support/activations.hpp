#pragma once

/// \file
/// The definitions of the activations in layer/activation.hpp.

#include <cmath>

#include "contract/layer_run.hpp"

namespace mhla::test {

template <class A>
Dual<A> gelu_definition(const Dual<A>& x) {
  const Dual<A> u = std::sqrt(2 / 3.14159265358979323846L) * (x + 0.044715L * x * x * x);
  return x / 2 * (1 + tanh(u));
}

template <class A>
Dual<A> silu_definition(const Dual<A>& x) {
  return x / 2 * (1 + tanh(x / 2));
}

}  // namespace mhla::test

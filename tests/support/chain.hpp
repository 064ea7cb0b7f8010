#pragma once

/// \file
/// One step of the chain of multiply-adds that products promise for every element.

#include <cmath>

#include "mhla/core/arch.hpp"

namespace mhla::test {

/// Returns a * b + c, rounded as often as the target's multiply-add.
template <class A>
A step(A a, A b, A c) {
  if constexpr (kFusedMultiplyAdd) return std::fma(a, b, c);
  const A product = a * b;
  return product + c;
}

}  // namespace mhla::test

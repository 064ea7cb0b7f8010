#pragma once

/// \file
/// Scalars: what tensors store and what sums are kept in.
///
/// | stored          | accumulated in | unit roundoff of the accumulator |
/// |-----------------|----------------|----------------------------------|
/// | float           | float          | 2^-24                            |
/// | double          | double         | 2^-53                            |
/// | Eigen::half     | float          | 2^-24                            |
/// | Eigen::bfloat16 | float          | 2^-24                            |

#include <Eigen/Core>
#include <concepts>
#include <cstddef>

#include "mhla/core/arch.hpp"

namespace mhla {
inline namespace MHLA_TARGET {

/// Sizes, strides and positions; signed, 64 bits wide on 64-bit machines.
using Index = std::ptrdiff_t;

/// A type that sums are kept in.
template <class A>
concept Accumulator = std::same_as<A, float> || std::same_as<A, double>;

/// A type that tensors store.
template <class T>
concept Scalar = Accumulator<T> || std::same_as<T, Eigen::half> || std::same_as<T, Eigen::bfloat16>;

namespace detail {
template <Scalar T>
struct accumulator {
  using type = float;
};
template <>
struct accumulator<double> {
  using type = double;
};
}  // namespace detail

/// The type in which values stored as T are multiplied and summed.
template <Scalar T>
using accumulator_t = typename detail::accumulator<T>::type;

}  // namespace MHLA_TARGET
}  // namespace mhla

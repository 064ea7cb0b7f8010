#pragma once

/// \file
/// Scalars: the types that tensors store, and the types that sums are kept in.
///
/// Words of the library:
///   block    tokens that share a summary          summary  S_b [D,E] of a block, with z_b [D]
///   run      consecutive tokens of a block        mixture  S~_i, read by a query block
///   slot     place of a token in its block        group    query blocks mixed together
///   strip    up to 64 kept tokens                 slab     some features of all summaries
///   panel    some columns of a product            tile     some rows of it, in registers or packed
///   band     nonzero places of a mixing matrix    span     columns that a row of a band has
///   head     one [N,D] problem                    pair     one head of one sequence of a batch
///   form     a way to compute attention           unit     hardware for products: vectors, AMX
///   packet   a vector register of numbers         worker   one of an executor's threads
///   kept     not masked (token), or left for the backward form (summary)
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
#include <limits>

#include "mhla/core/arch.hpp"

namespace mhla {
inline namespace MHLA_TARGET {

/// Sizes, strides and positions; signed, 64 bits wide on 64-bit machines.
using Index = std::ptrdiff_t;

/// A type of sums.
template <class A>
concept Accumulator = std::same_as<A, float> || std::same_as<A, double>;

/// A type of tensor elements.
template <class T>
concept Scalar = Accumulator<T> || std::same_as<T, Eigen::half> || std::same_as<T, Eigen::bfloat16>;

namespace detail {

/// value / divisor, rounded up; value >= 0.
constexpr Index ceil_div(Index value, Index divisor) {
  return value / divisor + (value % divisor > 0 ? 1 : 0);
}
/// count * size, or the largest Index if that does not fit. No memory has as many bytes, so Arena
/// refuses it. count >= 0, size > 0.
constexpr Index product_or_largest(Index count, Index size) {
  constexpr Index kLargest = std::numeric_limits<Index>::max();
  return count <= kLargest / size ? count * size : kLargest;
}
/// The next multiple, or the largest Index.
constexpr Index round_up(Index value, Index multiple) {
  return product_or_largest(ceil_div(value, multiple), multiple);
}

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

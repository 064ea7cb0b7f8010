#pragma once

/// \file
/// Conversion of rows from storage numbers to accumulators and back. Widening is exact. Narrowing
/// rounds once, to nearest even, with the bits of a scalar cast.

#include <Eigen/Core>
#include <algorithm>
#include <bit>
#include <cstdint>
#include <type_traits>

#include "mhla/core/arch.hpp"
#include "mhla/core/scalar.hpp"
#include "mhla/kernel/packet.hpp"

namespace mhla {
inline namespace MHLA_TARGET {
namespace detail {

/// Calls f(x[j], y[j]) for all j, in groups of constant length on separate memory. g++ vectorises
/// these even without -O3.
template <class From, class To, class F>
MHLA_INLINE inline void convert(const From* __restrict x, To* __restrict y, Index count, F f) {
  constexpr Index kGroup = 16;
  Index j = 0;
  for (; j + kGroup <= count; j += kGroup) {
    for (Index i = 0; i < kGroup; ++i) f(x[j + i], y[j + i]);
  }
  for (; j < count; ++j) f(x[j], y[j]);
}

template <Scalar T, class A>
inline void widen(const T* x, A* y, Index count) {
  if constexpr (std::is_same_v<T, Eigen::bfloat16>) {
    convert(x, y, count, [](T from, A& to) {  // the upper half of a float
      to = std::bit_cast<float>(static_cast<std::uint32_t>(from.value) << 16);
    });
  } else if constexpr (std::is_same_v<T, Eigen::half>) {
    using Halves = Eigen::Array<T, Eigen::Dynamic, 1>;
    Eigen::Array<A, Eigen::Dynamic, 1>::Map(y, count) = Halves::Map(x, count).template cast<A>();
  } else {
    transform(x, y, count, [](auto p) { return p; });
  }
}

/// y[j] = x[j] rounded.
template <class A, Scalar T>
inline void narrow(const A* x, T* y, Index count) {
  if constexpr (std::is_same_v<T, Eigen::bfloat16>) {
    // Integer arithmetic, since the processor's conversion flushes subnormals to 0. Blending 32
    // bits, compared as signed numbers, takes two thirds of the instructions of blending halves.
    convert(x, y, count, [](A from, T& to) {
      const auto bits = std::bit_cast<std::int32_t>(from);
      const std::int32_t size = bits & 0x7FFFFFFF;
      const auto number = static_cast<std::uint32_t>(size);
      const std::uint32_t rounded = number + 0x7FFFu + ((number >> 16) & 1u);
      const std::uint32_t sign = static_cast<std::uint32_t>(bits) & 0x80000000u;
      const std::uint32_t upper = size > 0x7F800000 ? 0x7FC00000u : rounded;  // a NaN stays one
      to.value = static_cast<std::uint16_t>((upper | sign) >> 16);
    });
  } else if constexpr (std::is_same_v<T, Eigen::half>) {
    using Numbers = Eigen::Array<A, Eigen::Dynamic, 1>;
    Eigen::Array<T, Eigen::Dynamic, 1>::Map(y, count) = Numbers::Map(x, count).template cast<T>();
  } else {
    std::copy_n(x, count, y);
  }
}

}  // namespace detail
}  // namespace MHLA_TARGET
}  // namespace mhla

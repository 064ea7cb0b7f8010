#pragma once

/// \file
/// Rows of storage numbers to accumulators and back. Widening is exact; narrowing rounds once, to
/// nearest even, to the bits of a cast of each number.

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

template <Scalar T, class A>
inline void widen(const T* x, A* y, Index count) {
  if constexpr (std::is_same_v<T, Eigen::bfloat16>) {
    for (Index j = 0; j < count; ++j) {  // the upper half of a float
      y[j] = std::bit_cast<float>(static_cast<std::uint32_t>(x[j].value) << 16);
    }
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
    // In integers, which vectorise; the processor's own conversion flushes subnormals to 0.
    for (Index j = 0; j < count; ++j) {
      const auto bits = std::bit_cast<std::uint32_t>(x[j]);
      const std::uint32_t upper = bits >> 16;
      const std::uint32_t rounded = (bits + 0x7FFFu + (upper & 1u)) >> 16;
      const bool nan = static_cast<std::int32_t>(bits & 0x7FFFFFFFu) > 0x7F800000;
      y[j].value = static_cast<std::uint16_t>(nan ? (upper & 0x8000u) | 0x7FC0u : rounded);
    }
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

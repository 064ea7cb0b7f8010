#pragma once

/// \file
/// Division by a number that a grid shares: a product and a shift of 32 bits.
///
///     n / d = (2 n m / 2^32) / 2^l,   l = ceil(log2 d),   m = ceil(2^(31 + l) / d) < 2^32
///
/// exact for 0 <= n < 2^31, since m d - 2^(31 + l) < d <= 2^l. Source: Granlund and Montgomery,
/// Division by Invariant Integers using Multiplication, 1994, theorem 4.2.

#include <cstdint>

#include "mhla/cuda/arch.cuh"

namespace mhla::cuda {

class Divisor {
 public:
  MHLA_HOST_DEVICE constexpr Divisor() : Divisor(1) {}
  /// \param d  1 to 2^31 - 1
  MHLA_HOST_DEVICE explicit constexpr Divisor(std::int32_t d) : divisor_(d) {
    while ((std::int64_t{1} << shift_) < d) ++shift_;
    const std::uint64_t power = std::uint64_t{1} << (31 + shift_);
    const auto divisor = static_cast<std::uint64_t>(d);
    multiplier_ = static_cast<std::uint32_t>((power + divisor - 1) / divisor);
  }

  MHLA_HOST_DEVICE constexpr std::int32_t value() const { return divisor_; }

  /// n / d, for n >= 0.
  MHLA_HOST_DEVICE constexpr std::int32_t quotient(std::int32_t n) const {
    const std::uint64_t twice = 2 * static_cast<std::uint32_t>(n);
    return static_cast<std::int32_t>(static_cast<std::uint32_t>(twice * multiplier_ >> 32) >>
                                     shift_);
  }

 private:
  std::int32_t divisor_;
  std::int32_t shift_ = 0;
  std::uint32_t multiplier_ = 0;
};

}  // namespace mhla::cuda

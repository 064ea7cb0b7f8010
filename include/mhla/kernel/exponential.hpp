#pragma once

/// \file
/// e^x of packets: e^x = 2^n e^r with |r| <= ln(2) / 2.

#include <Eigen/Core>
#include <array>
#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "mhla/core/arch.hpp"
#include "mhla/core/scalar.hpp"
#include "mhla/kernel/packet.hpp"

MHLA_PACKETS_BEGIN

namespace mhla {
inline namespace MHLA_TARGET {
namespace detail {

/// Largest relative error of `exponential` where the result is a normal number, in units roundoff.
/// Rounding modes other than to nearest let |r| reach ln(2), and add up to 3e-6 (double: 2e-13).
inline constexpr double kExponentialRoundoffs = 4;

/// Addend that rounds a sum to a whole number: 1.5 times the first number without fractions.
template <class A>
inline constexpr A kWhole = std::same_as<A, float> ? A(0x1.8p23) : A(0x1.8p52);

/// Returns y 2^n, where y and the result are normal numbers.
/// \param shifted  n + kWhole, whose lowest bits are n
template <class P>
inline P times_power_of_two(P y, P shifted) {
  using namespace Eigen::internal;
  return pldexp(y, psub(shifted, pset1<P>(kWhole<typename unpacket_traits<P>::type>)));
}
#if defined(__GNUC__)
/// Packet version: adds n to the exponents of y. Eigen's pldexp multiplies by several powers of
/// two. Their product overflows if a compiler computes it first.
template <class P>
requires(!Accumulator<P>) inline P times_power_of_two(P y, P shifted) {
  using A = typename Eigen::internal::unpacket_traits<P>::type;
  using Lane = std::conditional_t<std::same_as<A, float>, std::uint32_t, std::uint64_t>;
  typedef Lane Lanes __attribute__((vector_size(sizeof(P))));
  const Lanes n = std::bit_cast<Lanes>(shifted) << (std::numeric_limits<A>::digits - 1);
  return std::bit_cast<P>(std::bit_cast<Lanes>(y) + n);
}
#endif

/// 1 / i! for i <= kDegree.
template <class A, std::size_t kDegree>
constexpr std::array<A, kDegree + 1> reciprocal_factorials() {
  std::array<A, kDegree + 1> all = {A(1)};
  double factorial = 1;
  for (std::size_t i = 1; i <= kDegree; ++i) {
    factorial *= static_cast<double>(i);
    all[i] = static_cast<A>(1 / factorial);
  }
  return all;
}

/// Returns e^x of x <= 0 lane by lane: 0 for subnormal results, NaN for NaN.
template <class P>
inline P exponential_below_zero(P x) {
  using A = typename Eigen::internal::unpacket_traits<P>::type;
  using namespace Eigen::internal;
  constexpr bool kSingle = std::same_as<A, float>;
  // x = n ln 2 + r with |r| <= ln(2) / 2; ln 2 in two parts, the first with trailing zeros.
  constexpr A kLog2E = A(1.442695040888963407);
  constexpr A kLn2High = kSingle ? A(0.693359375) : A(6.93145751953125e-1);
  constexpr A kLn2Low = kSingle ? A(-2.12194440e-4) : A(1.42860682030941723212e-6);
  constexpr A kSmallest = kSingle ? A(-87.3365402) : A(-708.396418532264106224);
  const P clamped = pmax(x, pset1<P>(kSmallest));  // keeps NaN
  const P shifted = as_rounded(multiply_add(clamped, pset1<P>(kLog2E), pset1<P>(kWhole<A>)));
  const P n = psub(shifted, pset1<P>(kWhole<A>));
  P r = as_rounded(multiply_add(n, pset1<P>(-kLn2High), clamped));
  r = multiply_add(n, pset1<P>(-kLn2Low), r);
  // Taylor's polynomial of e^r, the last term below half a unit roundoff of the sum.
  constexpr std::size_t kDegree = kSingle ? 7 : 13;
  constexpr auto kReciprocalFactorial = reciprocal_factorials<A, kDegree>();
  P y = pset1<P>(kReciprocalFactorial[kDegree]);
  MHLA_UNROLL
  for (std::size_t i = kDegree; i > 0; --i) {
    y = multiply_add(y, r, pset1<P>(kReciprocalFactorial[i - 1]));
  }
  const P other = psub(clamped, pset1<P>(kSmallest));  // 0 or NaN
  return pselect(pcmp_le(pset1<P>(kSmallest), x), times_power_of_two(y, shifted), other);
}

/// Returns e^x lane by lane: infinity above the range, 0 for subnormal results, NaN for NaN.
template <class P>
inline P exponential(P x) {
  using A = typename Eigen::internal::unpacket_traits<P>::type;
  using namespace Eigen::internal;
  constexpr A kLargest = std::same_as<A, float> ? A(88.7228317) : A(709.782712893383973096);
  const P y = exponential_below_zero(pmin(x, pset1<P>(kLargest)));
  return pselect(pcmp_lt(pset1<P>(kLargest), x), pset1<P>(std::numeric_limits<A>::infinity()), y);
}

}  // namespace detail
}  // namespace MHLA_TARGET
}  // namespace mhla

MHLA_PACKETS_END

#pragma once

/// \file
/// Numbers anywhere in memory, for functions that must not read or write outside them.

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "mhla/core/matrix.hpp"
#include "support/random.hpp"

namespace mhla::test {

template <class A>
inline constexpr A kNaN = std::numeric_limits<A>::quiet_NaN();

/// Half a unit in the last place: the relative error of one rounding.
template <class A>
inline constexpr long double kRoundoff = std::numeric_limits<A>::epsilon() / 2;

/// Bound of m successive roundings, relative to the sum of magnitudes.
template <class A>
long double roundings(Index m) {
  const long double mu = static_cast<long double>(m) * kRoundoff<A>;
  return mu / (1 - mu);
}

/// `count` random numbers in [low, high).
template <class A>
std::vector<A> numbers(Random& rng, Index count, double low = -1, double high = 1) {
  std::vector<A> x(static_cast<std::size_t>(count));
  for (A& value : x) value = static_cast<A>(rng.uniform(low, high));
  return x;
}

/// True for equal bits, and for two NaN.
template <class A>
bool same_number(A a, A b) {
  return std::memcmp(&a, &b, sizeof(A)) == 0 || (std::isnan(a) && std::isnan(b));
}

/// Values at an offset in [0, 16) from any alignment. Memory around them is NaN, and so is any
/// result computed from it.
template <class A>
class Placed {
 public:
  Placed(const std::vector<A>& values, Index offset)
      : all_(static_cast<std::size_t>(offset), kNaN<A>),
        offset_(offset),
        count_(std::ssize(values)) {
    all_.insert(all_.end(), values.begin(), values.end());
    all_.resize(values.size() + 32, kNaN<A>);
  }
  A* data() { return all_.data() + offset_; }
  const A* data() const { return all_.data() + offset_; }

  /// True if these are the values, and nothing was written outside them.
  bool holds(const std::vector<A>& values) const {
    return std::ssize(values) == count_ &&
           std::equal(all_.begin(), all_.end(), Placed(values, offset_).all_.begin(),
                      same_number<A>);
  }

 private:
  std::vector<A> all_;
  Index offset_, count_;
};

}  // namespace mhla::test

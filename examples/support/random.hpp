#pragma once

/// \file
/// Random numbers that are the same with every compiler and standard library: splitmix64.
/// Source: Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014.

#include <cmath>
#include <cstdint>
#include <mhla/core/scalar.hpp>
#include <numeric>
#include <utility>
#include <vector>

namespace examples {

using mhla::Index;

class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}

  std::uint64_t bits() {
    std::uint64_t z = state_ += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  /// Uniform in [0, 1), a multiple of 2^-53.
  double uniform() { return static_cast<double>(bits() >> 11) * 0x1p-53; }
  /// Uniform in [0, count); the bias for counts far below 2^53 is negligible.
  Index below(Index count) { return static_cast<Index>(uniform() * static_cast<double>(count)); }

  /// Sum of 12 uniform numbers less 6: mean 0, variance 1, at most 6 in magnitude. It uses sums and
  /// products alone, so the bits do not depend on a mathematical library.
  double normal() {
    double sum = -6;
    for (int i = 0; i < 12; ++i) sum += uniform();
    return sum;
  }

  /// The numbers [0, count) in random order.
  std::vector<Index> permutation(Index count) {
    std::vector<Index> order(static_cast<std::size_t>(count));
    std::iota(order.begin(), order.end(), Index{0});
    for (Index i = count - 1; i > 0; --i) {
      std::swap(order[static_cast<std::size_t>(i)], order[static_cast<std::size_t>(below(i + 1))]);
    }
    return order;
  }

 private:
  std::uint64_t state_;
};

}  // namespace examples

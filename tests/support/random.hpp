#pragma once

/// \file
/// Random numbers that are the same on every compiler and standard library: a counter through a
/// mixing function (splitmix64). A seed printed by a failing test reproduces it anywhere.

#include <cmath>
#include <cstdint>
#include <memory>

#include "mhla/core/matrix.hpp"

namespace mhla::test {

class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed * 0x9E3779B97F4A7C15u + 0x2545F4914F6CDD1Du) {}

  std::uint64_t bits() {
    std::uint64_t z = (state_ += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }
  /// In [0, 1).
  double uniform() { return static_cast<double>(bits() >> 11) * 0x1p-53; }
  double uniform(double low, double high) { return low + (high - low) * uniform(); }
  /// In [low, high], both included.
  Index integer(Index low, Index high) {
    return low + static_cast<Index>(bits() % static_cast<std::uint64_t>(high - low + 1));
  }
  bool chance(double probability) { return uniform() < probability; }
  /// Mean 0, variance 1.
  double normal() {
    const double radius = std::sqrt(-2 * std::log(1 - uniform()));
    return radius * std::cos(6.283185307179586 * uniform());
  }

  /// [rows,cols] uniform numbers in [low, high), rounded to T.
  template <class T>
  Matrix<T> matrix(Index rows, Index cols, double low = -1, double high = 1) {
    Matrix<T> m(rows, cols);
    for (Index r = 0; r < rows; ++r) {
      for (Index c = 0; c < cols; ++c) {
        m(r, c) = static_cast<T>(static_cast<accumulator_t<T>>(uniform(low, high)));
      }
    }
    return m;
  }

 private:
  std::uint64_t state_;
};

/// Keeps each of some tokens with a probability.
struct RandomMask {
  std::unique_ptr<bool[]> keep;
  Mask mask;

  RandomMask(Random& rng, Index tokens, double probability)
      : keep(new bool[static_cast<std::size_t>(tokens)]), mask{keep.get(), tokens} {
    for (Index t = 0; t < tokens; ++t) keep[static_cast<std::size_t>(t)] = rng.chance(probability);
  }
};

}  // namespace mhla::test

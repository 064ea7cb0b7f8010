#pragma once

/// \file
/// Random numbers that are the same on every compiler and standard library: a counter through a
/// mixing function (splitmix64). A seed printed by a failing test reproduces it anywhere.
///
/// Every call of Random is a choice, and choices of a thread are numbered. MHLA_SIMPLE lists
/// numbers of choices, such as 3-7,12, that become simple ones: the smallest integer, false, one
/// half. campaign.py shrinks a failing problem so.

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <utility>
#include <vector>

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
  double uniform() {
    const double x = fraction();
    return simple() ? 0.5 : x;
  }
  double uniform(double low, double high) { return low + (high - low) * uniform(); }
  /// In [low, high], both included.
  Index integer(Index low, Index high) {
    const std::uint64_t x = bits() % static_cast<std::uint64_t>(high - low + 1);
    return simple() ? low : low + static_cast<Index>(x);
  }
  bool chance(double probability) {
    const double x = fraction();
    return !simple() && x < probability;
  }
  /// Mean 0, variance 1.
  double normal() {
    const double radius = std::sqrt(-2 * std::log(1 - uniform()));
    return radius * std::cos(6.283185307179586 * uniform());
  }

  /// [rows,cols] uniform numbers in [low, high), rounded to T; one choice.
  template <class T>
  Matrix<T> matrix(Index rows, Index cols, double low = -1, double high = 1) {
    Matrix<T> m(rows, cols);
    const bool equal = simple();
    for (Index r = 0; r < rows; ++r) {
      for (Index c = 0; c < cols; ++c) {
        const double x = fraction();
        m(r, c) =
            static_cast<T>(static_cast<accumulator_t<T>>(low + (high - low) * (equal ? 0.75 : x)));
      }
    }
    return m;
  }

  static void restart_choices() { choice_ = 0; }

 private:
  /// In [0, 1); no choice.
  double fraction() { return static_cast<double>(bits() >> 11) * 0x1p-53; }

  /// True if the next choice is a simple one.
  static bool simple() {
    static const std::vector<std::pair<long, long>> ranges = [] {
      std::vector<std::pair<long, long>> all;
      const char* text = std::getenv("MHLA_SIMPLE");
      for (char* end = nullptr; text != nullptr && *text != '\0'; text = end + (*end == ',')) {
        const long first = std::strtol(text, &end, 10);
        if (end == text) break;  // no number
        all.emplace_back(first, *end == '-' ? std::strtol(end + 1, &end, 10) : first);
      }
      return all;
    }();
    const long number = choice_++;
    for (const auto& [first, last] : ranges) {
      if (first <= number && number <= last) return true;
    }
    return false;
  }

  static inline thread_local long choice_ = 0;

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

#pragma once

/// \file
/// Problems with numbers at the edges of a type.

#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>

#include "support/problem.hpp"

namespace mhla::test {

enum class Special {
  kTiny,      ///< zeros of both signs, subnormal numbers, the smallest normal number
  kHuge,      ///< the largest number, and numbers whose products overflow
  kInfinite,  ///< infinities and NaN
};

/// Replaces some numbers in half of the rows.
template <class T>
void make_special(Random& rng, Special special, Matrix<T>& m) {
  using Limits = std::numeric_limits<T>;
  using A = accumulator_t<T>;
  const auto number = [](T x) { return static_cast<double>(static_cast<A>(x)); };
  const double least = number(Limits::denorm_min()), normal = number((Limits::min)()),
               most = number((Limits::max)()), infinite = std::numeric_limits<double>::infinity();
  const std::array<double, 5> of_kind[] = {
      {0, -0.0, least, normal / 2, -normal},
      {most, -most, most / 16, std::sqrt(most), -std::sqrt(most)},
      {infinite, -infinite, std::numeric_limits<double>::quiet_NaN(), 0, 1}};
  const auto& numbers = of_kind[static_cast<std::size_t>(special)];
  for (Index t = 0; t < m.rows(); ++t) {
    if (!rng.chance(0.5)) continue;
    for (Index j = 0; j < m.cols(); ++j) {
      if (rng.chance(0.4))
        m(t, j) =
            static_cast<T>(static_cast<A>(numbers[static_cast<std::size_t>(rng.integer(0, 4))]));
    }
  }
}

/// True for the tenth of the seeds whose problems are special.
constexpr bool is_special(std::uint64_t seed) { return seed % 10 == 9; }

/// Makes a tenth of the problems special, by their seeds.
/// \param matrices  of the problem
template <class T>
void make_tenth_special(std::uint64_t seed, std::span<Matrix<T>* const> matrices,
                        bool infinite = true) {
  if (!is_special(seed)) return;
  Random rng(seed);
  const Special special = infinite && rng.chance(0.4) ? Special::kInfinite
                          : rng.chance(0.2)           ? Special::kHuge
                                                      : Special::kTiny;
  for (Matrix<T>* const m : matrices) make_special(rng, special, *m);
}

}  // namespace mhla::test

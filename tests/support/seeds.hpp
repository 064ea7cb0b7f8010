#pragma once

/// \file
/// Seeds of random problems. A test takes the first ones; a round of a campaign (campaign.py) takes
/// the next ones, and prints them.
///
///     MHLA_ROUND=R  a test of `count` seeds takes seeds [R count, (R + 1) count)
///     MHLA_SEED=S   a test takes seed S alone

#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "support/random.hpp"

namespace mhla::test {

/// Consecutive seeds. clang++ 14 does not compile std::views::iota of libstdc++.
struct Seeds {
  struct Iterator {
    std::uint64_t seed;
    std::uint64_t operator*() const { return seed; }
    Iterator& operator++() {
      ++seed;
      return *this;
    }
    bool operator==(const Iterator&) const = default;
  };
  std::uint64_t first, count;

  Iterator begin() const { return {first}; }
  Iterator end() const { return {first + count}; }
};

/// The seeds of a test, after which choices (random.hpp) are numbered anew.
inline Seeds seeds(std::uint64_t count) {
  const char* const one = std::getenv("MHLA_SEED");
  const char* const round = std::getenv("MHLA_ROUND");
  std::uint64_t first = 0;
  if (one != nullptr) {
    first = std::strtoull(one, nullptr, 10);
    count = 1;
  } else if (round != nullptr) {
    first = std::strtoull(round, nullptr, 10) * count;
    std::printf("seeds %llu to %llu\n", static_cast<unsigned long long>(first),
                static_cast<unsigned long long>(first + count - 1));
  }
  Random::restart_choices();
  return {first, count};
}

}  // namespace mhla::test

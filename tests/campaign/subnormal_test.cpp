// The time of subnormal inputs over that of ordinary ones, with and without flush to zero.

#include <gtest/gtest.h>

#include <algorithm>
#include <cfenv>
#include <chrono>
#include <functional>
#include <iostream>
#include <limits>

#include "mhla/mhla.hpp"
#include "support/environment.hpp"
#include "support/random.hpp"

namespace mhla::test {
namespace {

/// The shortest of nine times of a call, in seconds.
double time_of(const std::function<void()>& f) {
  double shortest = std::numeric_limits<double>::infinity();
  for (int i = 0; i < 9; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    f();
    const std::chrono::duration<double> time = std::chrono::steady_clock::now() - begin;
    shortest = std::min(shortest, time.count());
  }
  return shortest;
}

TEST(Subnormal, InputsAreFastWithFlushToZero) {
  constexpr Index kTokens = 2048, kWidth = 64;
  const auto mixing = uniform_causal<float>(32);
  const ContiguousBlocks blocks{64};
  const Operator plain{Identity{}, Identity{}, NoNormalizer{}};
  Matrix<float> out(kTokens, kWidth);
  const auto times = [&](float size, const char* name, auto&& form) {
    Random rng(1);
    const Matrix<float> x = size * rng.matrix<float>(kTokens, kWidth, 0.5, 1);
    const double seconds = time_of([&] { form(inputs(x, x, x)); });
    std::cout << name << " of numbers of about " << size << ": " << 1e3 * seconds << " ms\n";
    return seconds;
  };
  const auto compare = [&](const char* name, auto&& form) {
    const double ordinary = times(1, name, form);
    times(1e-40F, name, form);
    const Environment flushes(FE_TONEAREST, true);
    EXPECT_LE(times(1e-40F, name, form), 3 * ordinary) << name;
  };
  compare("bidirectional", [&](const auto& in) { bidirectional(in, blocks, mixing, plain, out); });
  compare("causal", [&](const auto& in) { causal(in, blocks, mixing, plain, out); });
  compare("softmax_causal", [&](const auto& in) { softmax_causal(in, out); });
  std::cout << "3 cases\n";
}

}  // namespace
}  // namespace mhla::test

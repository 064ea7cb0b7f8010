// Checks that two translation units of the library in one program agree.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdio>

#include "unit.hpp"

namespace {

std::vector<float> waves(float frequency) {
  std::vector<float> values(kTokens * kFeatures);
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = std::sin(frequency * static_cast<float>(i));
  }
  return values;
}

}  // namespace

int main() {
#if defined(MHLA_NEEDS_AVX2)
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) {
    std::puts("skipped: this processor has no AVX2 and FMA");
    return 77;
  }
#endif
  const std::vector<float> q = waves(0.7f);
  const std::vector<float> k = waves(1.3f);
  const std::vector<float> v = waves(0.1f);
  const std::vector<float> a = first(q, k, v);
  const std::vector<float> b = second(q, k, v);
  float largest = 0;
  for (const float x : a) largest = std::max(largest, std::abs(x));
  bool agree = a.size() == b.size() && largest > 0;
  for (std::size_t i = 0; agree && i < a.size(); ++i) {
    agree = std::abs(a[i] - b[i]) <= 1e-4f * largest;  // false for NaN
    if (!agree) {
      std::printf("output %zu: %g and %g\n", i, static_cast<double>(a[i]),
                  static_cast<double>(b[i]));
    }
  }
  return agree ? 0 : 1;
}

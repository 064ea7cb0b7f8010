// Units of one program with different instruction sets, optimisation, assertions, debug library and
// link-time optimisation: each has right outputs and gradients, in any order of calls.

#include <gtest/gtest.h>

#include <cmath>
#include <iostream>
#include <vector>

#include "unit.hpp"

namespace {

struct NamedUnit {
  const char* name;
  Unit* run;
  const char* needs;
};
const NamedUnit kUnits[] = {{"v1_debug", v1_debug, ""},
                            {"v2_assert", v2_assert, "sse4.2"},
                            {"v2_small", v2_small, "sse4.2"},
                            {"v3_fast", v3_fast, "avx2"},
                            {"v3_lto", v3_lto, "avx2"},
                            {"v4_fast", v4_fast, "avx512bw"},
                            {"v4_library", v4_library, "avx512bw"},
                            {"native", native_fast, ""}};

bool runs(const NamedUnit& unit) {
  const std::string needs = unit.needs;
  return needs.empty() || (needs == "sse4.2" && __builtin_cpu_supports("sse4.2")) ||
         (needs == "avx2" && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) ||
         (needs == "avx512bw" && __builtin_cpu_supports("avx512bw") &&
          __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq"));
}

TEST(Flags, UnitsOfOneProgramAgree) {
  constexpr std::size_t kNumbers = kTokens * kWidth;
  std::vector<float> q(kNumbers), k(kNumbers), v(kNumbers), first, first_dv;
  for (std::size_t i = 0; i < kNumbers; ++i) {
    const auto x = static_cast<float>(i);
    q[i] = std::sin(0.7f * x), k[i] = std::sin(1.3f * x), v[i] = std::sin(0.1f * x);
  }
  int cases = 0;
  for (int round = 0; round < 20; ++round) {
    for (const NamedUnit& unit : kUnits) {
      if (!runs(unit)) continue;
      std::vector<float> out(kNumbers), dv(kNumbers);
      unit.run(q.data(), k.data(), v.data(), out.data(), dv.data());
      if (first.empty()) first = out, first_dv = dv;
      for (std::size_t i = 0; i < kNumbers; ++i) {
        ASSERT_LE(std::abs(out[i] - first[i]), 1e-5) << unit.name;
        ASSERT_LE(std::abs(dv[i] - first_dv[i]), 1e-4) << unit.name;
      }
      ++cases;
    }
  }
  std::cout << cases << " cases\n";
}

}  // namespace

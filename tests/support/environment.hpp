#pragma once

/// \file
/// Floating-point environments of tests.

#include <cfenv>

namespace mhla::test {

inline constexpr int kRoundingModes[] = {FE_TONEAREST, FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO};

/// A floating-point environment until the end of a scope: a rounding mode, and on x86 whether
/// subnormal numbers count as 0.
class Environment {
 public:
  explicit Environment(int rounding, bool flush) {
    std::fegetenv(&saved_);
    std::fesetround(rounding);
#if defined(__SSE__)
    if (flush) __builtin_ia32_ldmxcsr(__builtin_ia32_stmxcsr() | 0x8040u);
#else
    static_cast<void>(flush);
#endif
  }
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;
  ~Environment() { std::fesetenv(&saved_); }

 private:
  std::fenv_t saved_;
};

}  // namespace mhla::test

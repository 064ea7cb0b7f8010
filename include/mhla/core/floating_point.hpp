#pragma once

/// \file
/// The floating-point environment of a thread, for threads that work on behalf of another: the
/// rounding mode, flush to zero, and which exceptions trap.

#include <cfenv>

#include "mhla/core/arch.hpp"

namespace mhla {
inline namespace MHLA_TARGET {
namespace detail {

/// The environment of the thread that constructs it.
class FloatingPoint {
 public:
  FloatingPoint() { std::fegetenv(&environment_); }
  /// Gives it to this thread.
  void set() const { std::fesetenv(&environment_); }

 private:
  std::fenv_t environment_;
};

/// Gives this thread an environment, and its own one back at the end.
class FloatingPointScope {
 public:
  explicit FloatingPointScope(const FloatingPoint& environment) { environment.set(); }
  FloatingPointScope(const FloatingPointScope&) = delete;
  FloatingPointScope& operator=(const FloatingPointScope&) = delete;
  ~FloatingPointScope() { own_.set(); }

 private:
  FloatingPoint own_;
};

}  // namespace detail
}  // namespace MHLA_TARGET
}  // namespace mhla

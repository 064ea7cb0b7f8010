#pragma once

/// \file
/// The floating-point environment of a thread: the rounding mode, flush to zero, and the exceptions
/// that trap. Threads that work on behalf of another thread take over its environment.

#include <cfenv>

#include "mhla/core/arch.hpp"

namespace mhla {
inline namespace MHLA_TARGET {
namespace detail {

/// The environment of the thread that constructs this object.
class FloatingPoint {
 public:
  FloatingPoint() { std::fegetenv(&environment_); }
  /// Sets this environment for the calling thread.
  void set() const { std::fesetenv(&environment_); }

 private:
  std::fenv_t environment_;
};

/// Sets an environment for this thread, and restores the previous one at the end.
class FloatingPointScope {
 public:
  explicit FloatingPointScope(const FloatingPoint& environment) { environment.set(); }
  FloatingPointScope(const FloatingPointScope&) = delete;
  FloatingPointScope& operator=(const FloatingPointScope&) = delete;
  ~FloatingPointScope() { saved_.set(); }

 private:
  FloatingPoint saved_;
};

}  // namespace detail
}  // namespace MHLA_TARGET
}  // namespace mhla

#pragma once

/// \file
/// Requirements of every backward form. The test file of a form (support/gradient_forms.hpp) adds
/// their tests:
///
///     TEST_GRADIENT(Causal, CausalForm, float, double);
///
/// adds Causal/Gradient/float.* and others. The tests are in gradient.cpp. They call a form through
/// AnyGradient, so they are compiled once per type of numbers.

#include <string>

#include "support/any_gradient.hpp"

namespace mhla::test {

/// Adds tests whose names begin with `prefix`.
template <class T>
void add_gradient_tests(const std::string& prefix, const AnyGradient<T>& form);
template <class Form, class... T>
bool test_gradient(const std::string& prefix) {
  (add_gradient_tests<T>(prefix, kGradientOn<Form, T>), ...);
  return true;
}

/// Adds the tests of a form in some types of numbers.
#define TEST_GRADIENT(prefix, ...) \
  [[maybe_unused]] const bool kTestedGradient##prefix = test_gradient<__VA_ARGS__>(#prefix)

}  // namespace mhla::test

#pragma once

/// \file
/// Tests that are added by a call instead of a macro.

#include <gtest/gtest.h>

#include <Eigen/Core>
#include <functional>
#include <string>
#include <type_traits>
#include <utility>

namespace mhla::test {

/// Name of a type of numbers in the names of tests.
template <class T>
std::string name_of() {
  return std::is_same_v<T, float>         ? "float"
         : std::is_same_v<T, double>      ? "double"
         : std::is_same_v<T, Eigen::half> ? "half"
                                          : "bfloat16";
}

/// Adds a test before main begins.
/// \param file, line  place of the test
inline void add_test(const std::string& suite, const char* name, const char* file, int line,
                     std::function<void()> body) {
  struct Added : testing::Test {
    std::function<void()> body;
    explicit Added(const std::function<void()>& f) : body(f) {}
    void TestBody() override { body(); }
  };
  testing::RegisterTest(suite.c_str(), name, nullptr, nullptr, file, line,
                        [body = std::move(body)] { return new Added(body); });
}

/// Adds a member function of `laws` as a test.
#define MHLA_ADD_TEST(suite, laws, law) \
  add_test(suite, #law, __FILE__, __LINE__, [laws] { laws.law(); })

}  // namespace mhla::test

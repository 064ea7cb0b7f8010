#pragma once

/// \file
/// Tests without a framework, which build if only CUDA is there: expectations that count failures,
/// and a program that runs functions by name.

#include <cuda_runtime.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <initializer_list>
#include <string>

namespace device_test {

/// Exit status of a program that cannot run its tests. ctest reports them as skipped.
inline constexpr int kSkipped = 77;

inline int& failures() {
  static int count = 0;
  return count;
}

/// Counts failed expectations and prints the first 20.
inline void expect(bool so, const std::string& what) {
  if (so) return;
  if (++failures() <= 20) std::printf("  FAILED: %s\n", what.c_str());
}

/// First seed of random numbers: MHLA_TEST_SEED, or 1.
inline std::uint64_t first_seed() {
  const char* const seed = std::getenv("MHLA_TEST_SEED");
  return seed != nullptr ? std::strtoull(seed, nullptr, 10) : 1;
}

struct Test {
  const char* name;
  void (*run)();
};

/// Type and widths of the tests, such as "bfloat16_64_64", or empty for all.
inline std::string& kind() {
  static std::string text;
  return text;
}

/// Runs tests one after another. The first argument selects tests whose names contain it, the
/// second sets kind(). --list prints the names instead.
inline int run_tests(std::initializer_list<Test> tests, int count, char** arguments) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  if (count > 1 && std::strcmp(arguments[1], "--list") == 0) {
    for (const Test& test : tests) std::printf("%s\n", test.name);
    return 0;
  }
  if (count > 2) kind() = arguments[2];
  int devices = 0;
  const cudaError_t status = cudaGetDeviceCount(&devices);
  if (status != cudaSuccess || devices == 0) {
    std::printf("no CUDA device is there (%s): the tests are skipped\n",
                cudaGetErrorString(status));
    return kSkipped;
  }
  int failed = 0, run = 0;
  for (const Test& test : tests) {
    if (count > 1 && std::strstr(test.name, arguments[1]) == nullptr) continue;
    failures() = 0;
    ++run;
    try {
      test.run();
    } catch (const std::exception& error) {
      expect(false, error.what());
    }
    std::printf("%s %s\n", failures() == 0 ? "passed" : "FAILED", test.name);
    failed += failures() != 0;
  }
  std::printf("%d passed, %d failed\n", run - failed, failed);
  return failed == 0 && run > 0 ? 0 : 1;
}

}  // namespace device_test

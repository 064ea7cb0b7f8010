#include "mhla/core/version.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <string>

namespace mhla {
namespace {

TEST(Version, IsThreeNumbers) {
  int major = -1, minor = -1, patch = -1, end = 0;
  EXPECT_EQ(std::sscanf(kVersion, "%d.%d.%d%n", &major, &minor, &patch, &end), 3);
  EXPECT_EQ(static_cast<std::size_t>(end), std::string(kVersion).size());
  EXPECT_GE(std::min({major, minor, patch}), 0);
}

}  // namespace
}  // namespace mhla

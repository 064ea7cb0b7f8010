#include "mhla/core/arch.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <typeinfo>

#include "mhla/kernel/packet.hpp"
#include "mhla/kernel/rows.hpp"

namespace mhla {
namespace {

TEST(Arch, NamesOfTypesTellTheVersionAndTheInstructionSet) {
  const std::string mangled = typeid(detail::Rows<float>).name();
  std::string names = "v" + std::string(kVersion) + "_" + kInstructionSet;
  std::replace(names.begin(), names.end(), '.', '_');
  EXPECT_NE(mangled.find(names), std::string::npos) << mangled;
}

/// A class that holds containers has another layout in libstdc++'s debug mode.
TEST(Arch, NamesOfTypesTellTheDebugLibraryAndItsInstructionSetStays) {
#if defined(_GLIBCXX_DEBUG)
  constexpr bool kDebug = true;
#else
  constexpr bool kDebug = false;
#endif
  const std::string mangled = typeid(detail::Rows<float>).name(), suffix = "_debug_library";
  EXPECT_EQ(mangled.find(kInstructionSet + suffix) != std::string::npos, kDebug) << mangled;
  EXPECT_EQ(std::string(kInstructionSet).find(suffix), std::string::npos);
}

TEST(Arch, FusedMultiplyAddRoundsOnceWhereItIsSaidTo) {
  volatile float a = 1 + 0x1p-12f;  // a * a = 1 + 2^-11 + 2^-24, the last term lost in a product
  const float once = detail::multiply_add(float(a), float(a), -1.0f);
  EXPECT_EQ(once == 0x1p-11f + 0x1p-24f, kFusedMultiplyAdd);
}

}  // namespace
}  // namespace mhla

#include "mhla/core/arch.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <string>
#include <typeinfo>

#include "mhla/kernel/packet.hpp"
#include "mhla/kernel/product.hpp"

namespace mhla {
namespace {

#define MHLA_TEST_TEXT_OF(name) #name
#define MHLA_TEST_TEXT(name) MHLA_TEST_TEXT_OF(name)

TEST(Arch, NamesOfTypesTellTheInstructionSet) {
  const std::string mangled = typeid(detail::Target<float>).name();
  EXPECT_NE(mangled.find(MHLA_TEST_TEXT(MHLA_TARGET)), std::string::npos) << mangled;
}

TEST(Arch, FusedMultiplyAddRoundsOnceWhereItIsSaidTo) {
  volatile float a = 1 + 0x1p-12f;  // a * a = 1 + 2^-11 + 2^-24, the last term lost in a product
  const float once = detail::multiply_add(float(a), float(a), -1.0f);
  EXPECT_EQ(once == 0x1p-11f + 0x1p-24f, kFusedMultiplyAdd);
}

TEST(Arch, WhatIsComputedAnewIsTheSame) {
  const double x = 0;
  for (const Index value : {Index{0}, Index{-3}, std::numeric_limits<Index>::max()}) {
    EXPECT_EQ(detail::computed_anew(value), value);
  }
  EXPECT_EQ(detail::computed_anew(&x), &x);
}

TEST(Arch, PrefetchTakesAnyAddress) {
  for (const std::uintptr_t address : {std::uintptr_t{0}, std::uintptr_t{1}, ~std::uintptr_t{0}}) {
    detail::prefetch_second(reinterpret_cast<const void*>(address));
  }
}

TEST(Arch, AFullTileFitsTheRegisters) {
  constexpr int kInUse = detail::kTileRows * detail::kTileVectors + detail::kTileVectors + 1;
  static_assert(kInUse <= kVectorRegisters);
}

}  // namespace
}  // namespace mhla

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>

#include "mhla/cuda/tile/not_finite.cuh"
#include "support/cuda/in_block.hpp"
#include "support/cuda/problem.hpp"

namespace mhla::cuda {
namespace {

template <class T>
void expect_bits() {
  for (std::uint32_t x = 0; x < 0x10000; ++x) {
    const bool finite = std::isfinite(cuda_test::to_double(T{static_cast<std::uint16_t>(x)}));
    for (const std::uint32_t other : {0u, 0x8001u}) {  // both finite
      ASSERT_EQ(not_finite_bits<T>(x | other << 16) & 0x80008000u, finite ? 0u : 0x8000u) << x;
      ASSERT_EQ(not_finite_bits<T>(x << 16 | other) & 0x80008000u, finite ? 0u : 0x80000000u) << x;
    }
    ASSERT_EQ(not_finite_bits<T>(x << 16 | x) & 0x80008000u, finite ? 0u : 0x80008000u) << x;
  }
}

TEST(NotFinite, BitsAreThoseOfInfinitiesAndNan) {
  expect_bits<bfloat16>();
  expect_bits<half>();
}

TEST(NotFinite, AllThreadsOfTheWarpKnow) {
  for (const std::uint32_t bits : {0u, 0x7FFF7FFFu, 0x8000u, 0x80000000u}) {
    for (std::uint32_t thread = 0; thread < 64; thread += 9) {
      emulator::Device device(thread);
      cuda_test::in_block<64>(device, [&](std::uint32_t own) {
        const bool expected = (bits & 0x80008000u) != 0 && own / 32 == thread / 32;
        EXPECT_EQ(any_not_finite(own == thread ? bits : 0u), expected) << own << " " << thread;
      });
    }
  }
}

}  // namespace
}  // namespace mhla::cuda

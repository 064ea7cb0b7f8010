#pragma once

/// \file
/// The emulation of ptx/wgmma.cuh.

#include <cstdint>

#include "emulator/async_products.hpp"
#include "emulator/async_registers.hpp"
#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/ptx/convert.cuh"

namespace emulator {

/// An instruction of the whole warp that does `act(products)` once.
template <class Act>
void call_products(const char* instruction, std::uint64_t parameter, const Act& act) {
  struct {
  } none;
  call_together<32>(instruction, parameter, none, [&](auto&) { act(current().part<Products>()); });
}

template <class T, int kTransposed, int kCount>
void multiply_add(float (&c)[kCount], std::uint32_t a0, std::uint32_t a1, std::uint32_t a2,
                  std::uint32_t a3, std::uint64_t b) {
  ProductCall mine{c,
                   {a0, a1, a2, a3},
                   b,
                   2 * kCount,
                   kTransposed != 0,
                   &mhla::cuda::ptx::low<T>,
                   &mhla::cuda::ptx::high<T>};
  call_together<32>("wgmma", b, mine, [](ProductCall* const(&calls)[32]) {
    current().part<Products>().issue(calls);
  });
}

}  // namespace emulator

namespace mhla::cuda::ptx {

MHLA_DEVICE void group_begin() {
  emulator::call_products("wgmma.fence", 0, [](auto& products) { products.begin(); });
}

MHLA_DEVICE void group_commit() {
  emulator::call_products("wgmma.commit_group", 0, [](auto& products) { products.commit(); });
}

template <int kPending>
MHLA_DEVICE void group_wait() {
  static_assert(kPending >= 0 && kPending <= 7);
  emulator::call_products("wgmma.wait_group", kPending,
                          [](auto& products) { products.wait(kPending); });
}

template <int kCount>
MHLA_DEVICE void keep_order(float (&)[kCount]) {}

template <int kTransposed>
MHLA_DEVICE void group_multiply_add(float (&c)[32], std::uint32_t a0, std::uint32_t a1,
                                    std::uint32_t a2, std::uint32_t a3, std::uint64_t b, bfloat16) {
  emulator::multiply_add<bfloat16, kTransposed>(c, a0, a1, a2, a3, b);
}

template <int kTransposed>
MHLA_DEVICE void group_multiply_add(float (&c)[32], std::uint32_t a0, std::uint32_t a1,
                                    std::uint32_t a2, std::uint32_t a3, std::uint64_t b, half) {
  emulator::multiply_add<half, kTransposed>(c, a0, a1, a2, a3, b);
}

template <int kTransposed>
MHLA_DEVICE void group_multiply_add(float (&c)[64], std::uint32_t a0, std::uint32_t a1,
                                    std::uint32_t a2, std::uint32_t a3, std::uint64_t b, bfloat16) {
  emulator::multiply_add<bfloat16, kTransposed>(c, a0, a1, a2, a3, b);
}

template <int kTransposed>
MHLA_DEVICE void group_multiply_add(float (&c)[64], std::uint32_t a0, std::uint32_t a1,
                                    std::uint32_t a2, std::uint32_t a3, std::uint64_t b, half) {
  emulator::multiply_add<half, kTransposed>(c, a0, a1, a2, a3, b);
}

template <int kCount>
MHLA_DEVICE void give_registers() {
  static_assert(kCount % 8 == 0 && kCount >= 24 && kCount <= 256);
  emulator::current().part<emulator::RegisterPool>().set(kCount, false);
}

template <int kCount>
MHLA_DEVICE void take_registers() {
  static_assert(kCount % 8 == 0 && kCount >= 24 && kCount <= 256);
  emulator::current().part<emulator::RegisterPool>().set(kCount, true);
}

}  // namespace mhla::cuda::ptx

#pragma once

/// \file
/// ptx/wgmma.cuh in the emulator.

#include <cstdint>

#include "mhla/cuda/ptx/convert.cuh"

namespace emulator {

void group_wait(int pending);
void set_registers(int count, bool take);

/// C[64, 2 count] += A[64, 16] B[16, 2 count], by a group of four warps.
template <class T>
void group_multiply_add(float* c, int count, const std::uint32_t (&a)[4], std::uint64_t b,
                        bool transposed);

}  // namespace emulator

namespace mhla::cuda::ptx {

void group_begin();
void group_commit();

template <int kPending>
void group_wait() {
  static_assert(kPending >= 0 && kPending <= 7);
  emulator::group_wait(kPending);
}

template <int kCount>
void keep_order(float (&)[kCount]) {}

template <int kTransposed, int kCount, class T>
void group_multiply_add(float (&c)[kCount], std::uint32_t a0, std::uint32_t a1, std::uint32_t a2,
                        std::uint32_t a3, std::uint64_t b, T) {
  static_assert(kCount == 32 || kCount == 64);
  emulator::group_multiply_add<T>(c, kCount, {a0, a1, a2, a3}, b, kTransposed != 0);
}

template <int kCount>
void give_registers() {
  static_assert(kCount % 8 == 0 && kCount >= 24 && kCount <= 256);
  emulator::set_registers(kCount, false);
}

template <int kCount>
void take_registers() {
  static_assert(kCount % 8 == 0 && kCount >= 24 && kCount <= 256);
  emulator::set_registers(kCount, true);
}

}  // namespace mhla::cuda::ptx

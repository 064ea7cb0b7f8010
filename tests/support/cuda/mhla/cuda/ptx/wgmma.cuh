#pragma once

/// \file
/// ptx/wgmma.cuh in the emulator.

#include <cstdint>

#include "mhla/cuda/ptx/convert.cuh"

namespace emulator {

void group_wait(int pending);
void set_registers(int count, bool take);

/// The thread's `count` registers from `begin` on are in order.
void keep_order(const void* begin, int count);

/// C[64, 2 count] += A[64, 16] B[16, 2 count], by a group of four warps.
template <class T>
void group_multiply_add(float* c, int count, const std::uint32_t* a, std::uint64_t b,
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

template <class Register, int kCount>
void keep_order(Register (&x)[kCount]) {
  static_assert(sizeof(Register) == 4);
  emulator::keep_order(x, kCount);
}

template <int kTransposed, int kCount, class T>
void group_multiply_add(float (&c)[kCount], const std::uint32_t* a, std::uint64_t b, T) {
  static_assert(kCount == 32 || kCount == 64);
  emulator::group_multiply_add<T>(c, kCount, a, b, kTransposed != 0);
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

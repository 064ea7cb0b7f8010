#pragma once

/// \file
/// ptx/wgmma.cuh in the emulator.

#include <cstdint>

#include "mhla/cuda/ptx/convert.cuh"

namespace emulator {

void wgmma_wait_group(int pending);
void set_registers(int count, bool take);

/// Records the thread's `count` registers from `begin` on, as fence_registers does.
void fence_registers(const void* begin, int count);

/// Computes C[64, 2 count] += A[64, 16] B[16, 2 count], or C = A B without `adds`, by a warpgroup.
template <class T>
void wgmma_m64k16(float* c, int count, const std::uint32_t* a, std::uint64_t b, bool transposed,
                  bool adds);

}  // namespace emulator

namespace mhla::cuda::ptx {

void wgmma_fence();
void wgmma_commit_group();

template <int kPending>
void wgmma_wait_group() {
  static_assert(kPending >= 0 && kPending <= 7);
  emulator::wgmma_wait_group(kPending);
}

template <class Register, int kCount>
void fence_registers(Register (&x)[kCount]) {
  emulator::fence_registers(x, sizeof(x) / 4);
}

template <int kTransposed, int kAdds = 1, int kTiles, class T>
void wgmma_m64k16(float (&c)[kTiles][4], const std::uint32_t* a, std::uint64_t b, T) {
  static_assert(kTiles == 8 || kTiles == 16);
  emulator::wgmma_m64k16<T>(c[0], 4 * kTiles, a, b, kTransposed != 0, kAdds != 0);
}

template <int kCount>
void setmaxnreg_dec() {
  static_assert(kCount % 8 == 0 && kCount >= 24 && kCount <= 256);
  emulator::set_registers(kCount, false);
}

template <int kCount>
void setmaxnreg_inc() {
  static_assert(kCount % 8 == 0 && kCount >= 24 && kCount <= 256);
  emulator::set_registers(kCount, true);
}

}  // namespace mhla::cuda::ptx

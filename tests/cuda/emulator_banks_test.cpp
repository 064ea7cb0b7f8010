/// \file
/// Bank conflicts by the rule of the hardware: 32 banks of 4 bytes, phases of 32, 16 or 8 threads.

#include <gtest/gtest.h>

#include "emulator/planted.hpp"
#include "mhla/cuda/ptx/barrier.cuh"
#include "mhla/cuda/ptx/copy_async.cuh"
#include "mhla/cuda/ptx/index.cuh"
#include "mhla/cuda/ptx/matrix.cuh"
#include "mhla/cuda/ptx/shared.cuh"

namespace emulator {
namespace {

namespace ptx = mhla::cuda::ptx;

std::uint32_t me() { return ptx::tid_x(); }
std::uint32_t at(std::uint32_t byte) { return ptx::shared_begin() + byte % 4096; }

template <int kThreads = 32>
std::uint64_t conflicts(Body body) {
  const Outcome first = run_planted<kThreads>(body);
  EXPECT_EQ(first.fault, "");
  for (std::uint64_t seed = 1; seed < 5; ++seed) {
    const Outcome other = run_planted<kThreads>(body, false, seed);
    EXPECT_EQ(other.report.bank_conflicts, first.report.bank_conflicts);
  }
  return first.report.bank_conflicts;
}

template <std::uint32_t kStride>
void store_4(const Arrays&) {
  ptx::st_shared(at(kStride * me()), 0);
}
template <std::uint32_t kStride>
void store_16(const Arrays&) {
  ptx::st_shared_v4(at(kStride * me()), {});
}
template <std::uint32_t kStride>
void load_4(const Arrays&) {
  for (std::uint32_t i = me(); i < 256; i += 32) ptx::st_shared_v4(at(16 * i), {});
  ptx::bar_warp_sync();
  ptx::ld_shared_f32(at(kStride * me()));
}
template <std::uint32_t kStride>
void load_8(const Arrays&) {
  for (std::uint32_t i = me(); i < 256; i += 32) ptx::st_shared_v4(at(16 * i), {});
  ptx::bar_warp_sync();
  ptx::ld_shared_v2(at(kStride * me()));
}
TEST(EmulatorBanks, AccessesByStride) {
  EXPECT_EQ(conflicts(store_4<4>), 0u);
  EXPECT_EQ(conflicts(store_4<8>), 1u);
  EXPECT_EQ(conflicts(store_4<128>), 31u);
  EXPECT_EQ(conflicts(store_4<132>), 0u);
  EXPECT_EQ(conflicts(store_16<16>), 0u);
  EXPECT_EQ(conflicts(store_16<32>), 4u);    // two passes for each of four quarters
  EXPECT_EQ(conflicts(store_16<128>), 28u);  // eight passes
  EXPECT_EQ(conflicts(load_4<0>), 0u);       // one word for all
  EXPECT_EQ(conflicts(load_4<128>), 31u);
  EXPECT_EQ(conflicts(load_8<8>), 0u);
  EXPECT_EQ(conflicts(load_8<16>), 2u);  // two passes for each half
  EXPECT_EQ(conflicts(load_8<128>), 30u);
}

template <std::uint32_t kStride>
void matrices(const Arrays&) {
  for (std::uint32_t i = me(); i < 256; i += 32) ptx::st_shared_v4(at(16 * i), {});
  ptx::bar_warp_sync();
  ptx::ldmatrix_x4(at(kStride * me()));
  ptx::ldmatrix_x2_trans(at(kStride * me()));
}
void swizzled_matrices(const Arrays&) {
  for (std::uint32_t i = me(); i < 256; i += 32) ptx::st_shared_v4(at(16 * i), {});
  ptx::bar_warp_sync();
  ptx::ldmatrix_x4(at(128 * me() + 16 * (3 ^ me() % 8)));
}
TEST(EmulatorBanks, MatrixLoads) {
  EXPECT_EQ(conflicts(matrices<16>), 0u);
  EXPECT_EQ(conflicts(matrices<128>), 6u * 7);
  EXPECT_EQ(conflicts(matrices<64>), 6u * 3);
  EXPECT_EQ(conflicts(matrices<144>), 0u);
  EXPECT_EQ(conflicts(swizzled_matrices), 0u);
}

template <std::uint32_t kStride>
void copies(const Arrays& a) {
  ptx::cp_async_16(at(kStride * me()), a.in + 4 * me(), 16);
}
TEST(EmulatorBanks, Copies) {
  EXPECT_EQ(conflicts(copies<16>), 0u);
  EXPECT_EQ(conflicts(copies<128>), 28u);
}

// Threads of a warp that skip an access stay matched with the others after it.
void skipped(const Arrays&) {
  if (me() % 2 == 0) ptx::st_shared(at(4 * me()), 0);
  ptx::st_shared(at(256 + 4 * me()), 0);
  for (std::uint32_t i = me(); i < 40; i += 32) ptx::st_shared(at(512 + 4 * i), 0);
  ptx::st_shared(at(1024 + 8 * (me() % 32)), 0);  // one conflict
}
// Two accesses of half a warp each, to the same banks.
void branches(const Arrays&) {
  if (me() % 2 == 0) {
    ptx::st_shared(at(4 * me()), 0);
  } else {
    ptx::st_shared_f32(at(128 + 4 * (me() - 1)), 0);
  }
}
// Two warps are counted apart.
void two_warps(const Arrays&) {
  ptx::st_shared(at(8 * me()), 0);
  ptx::bar_sync();
  ptx::st_shared(at(4 * me()), 0);
}
TEST(EmulatorBanks, ThreadsOfAWarpAreMatched) {
  EXPECT_EQ(conflicts(skipped), 1u);
  EXPECT_EQ(conflicts(branches), 0u);
  EXPECT_EQ(conflicts<64>(two_warps), 2u);
}

}  // namespace
}  // namespace emulator

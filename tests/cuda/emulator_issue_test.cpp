/// \file
/// What warps issue, as the emulation counts it.

#include <gtest/gtest.h>

#include <cstdint>

#include "emulator/device.hpp"
#include "mhla/cuda/ptx/barrier.cuh"
#include "mhla/cuda/ptx/index.cuh"
#include "mhla/cuda/ptx/matrix.cuh"
#include "mhla/cuda/ptx/shared.cuh"

namespace emulator {
namespace {

namespace ptx = mhla::cuda::ptx;

/// Thread t of warp w writes 1 word, or 5 where t = 7; warp 1 then loads matrices, 2 and 1, with a
/// row of words in between.
struct Uneven {
  struct Params {};
  static constexpr int kThreads = 64, kSharedBytes = 1024;

  void operator()(const Params&) const {
    const std::uint32_t thread = ptx::tid_x(), own = ptx::shared_begin() + 16 * thread;
    for (std::uint32_t i = 0; i < 4; ++i) ptx::st_shared(own + 4 * i, thread);
    if (thread % 32 == 7) ptx::st_shared(own, thread);
    ptx::bar_sync();
    if (thread < 32) return;
    ptx::ldmatrix_x4(own);
    ptx::ldmatrix_x4(own);
    ptx::ld_shared_v4(own);
    ptx::ldmatrix_x2(own);
  }
};

TEST(IssuedInstructions, AreThoseOfTheThreadWithMostAndOnceForTheWarp) {
  const Report report = Device().launch<Uneven>(3, {});
  for (const std::size_t warp : {0u, 1u}) {
    EXPECT_EQ(report.issued(warp, "shared stores").times, 3 * 5u);
    EXPECT_EQ(report.issued(warp, "words of shared stores").times, 3 * 5u);
  }
  EXPECT_EQ(report.issued(0, "matrix loads").times, 0u);
  EXPECT_EQ(report.issued(1, "matrix loads").times, 3 * 3u);
  EXPECT_EQ(report.issued(1, "shared loads").times, 3 * 1u);
  EXPECT_EQ(report.issued(1, "words of shared loads").times, 3 * 4u);
}

TEST(IssuedInstructions, AreOfTheBlocksThatRun) {
  Device device;
  device.run_only({4, 2});
  EXPECT_EQ(device.launch<Uneven>(100, {}).issued(0, "shared stores").times, 2 * 5u);
  device.run_only({});
  EXPECT_EQ(device.launch<Uneven>(7, {}).issued(0, "shared stores").times, 7 * 5u);
}

}  // namespace
}  // namespace emulator

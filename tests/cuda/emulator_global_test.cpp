/// \file
/// Faults of device memory: accesses outside of it, and races.

#include <gtest/gtest.h>

#include <vector>

#include "emulator/planted.hpp"
#include "mhla/cuda/ptx/barrier.cuh"
#include "mhla/cuda/ptx/copy_async.cuh"
#include "mhla/cuda/ptx/global.cuh"
#include "mhla/cuda/ptx/index.cuh"
#include "mhla/cuda/ptx/shared.cuh"

namespace emulator {
namespace {

namespace ptx = mhla::cuda::ptx;

std::uint32_t me() { return ptx::tid_x(); }

void load_beyond(const Arrays& a) {
  ptx::ld_global_nc_f32(a.in + 1024 - 64 + me() + (a.bug ? 1 : 0));
}
void copy_beyond(const Arrays& a) {
  ptx::cp_async_16(ptx::shared_begin() + 16 * me(), a.in + 1024 - 256 + 4 * me() + (a.bug ? 4 : 0),
                   16);
}
void store_before(const Arrays& a) { ptx::st_global_f32(a.out + me() - (a.bug ? 1 : 0), 0); }
void store_where_only_reads_go(const Arrays& a) {
  if (me() == 5) ptx::st_global_f32(a.bug ? const_cast<float*>(a.in) : a.out, 0);
}
void load_askew(const Arrays& a) { ptx::ld_global_nc_v4(a.in + 4 * me() + (a.bug ? 2 : 0)); }
TEST(EmulatorGlobal, DeviceMemoryOutsideOrAskew) {
  const auto kinds = {Kind::kOutside};
  EXPECT_EQ(planted(load_beyond, kinds), "");
  EXPECT_EQ(planted(copy_beyond, kinds), "");
  EXPECT_EQ(planted(store_before, kinds), "");
  EXPECT_EQ(planted(store_where_only_reads_go, kinds), "");
  EXPECT_EQ(planted(load_askew, kinds), "");
}

void two_threads_write(const Arrays& a) {
  ptx::st_global_f32(a.out + (a.bug ? me() / 2 : me()), 0);
}
void two_blocks_write(const Arrays& a) {
  ptx::st_global_f32(a.out + me() + (a.bug ? 63 : 64) * ptx::ctaid_x(), 0);
}
// Ordered within a block, but the other block does the same.
void block_writes_in_turn(const Arrays& a) {
  float* const out = a.out + (a.bug ? 0 : 64 * ptx::ctaid_x());
  ptx::st_global_f32(out + me(), 1);
  ptx::bar_sync();
  ptx::st_global_f32(out + (me() ^ 32), ptx::ld_global_f32(out + (me() ^ 32)));
}
void reload_of_another_thread(const Arrays& a) {
  ptx::st_global_f32(a.out + me(), 1);
  if (!a.bug) ptx::bar_sync();
  ptx::ld_global_f32(a.out + (me() ^ 32));
}
void store_after_reloads(const Arrays& a) {
  ptx::ld_global_f32(a.out);
  if (!a.bug) ptx::bar_sync();
  if (me() == 17) ptx::st_global_f32(a.out, 1);
}
// All have read when the one writes, but in time only.
void warp_reloads_then_one_stores(const Arrays& a) {
  ptx::ld_global_f32(a.out);
  a.bug ? void(ptx::shfl_bfly(0, 1)) : ptx::bar_warp_sync();
  if (me() == 5) ptx::st_global_f32(a.out, 1);
}
void constant_of_own(const Arrays& a) {
  ptx::st_global_f32(a.out + me(), 1);
  a.bug ? ptx::ld_global_nc_f32(a.out + me()) : ptx::ld_global_f32(a.out + me());
}
void store_to_constant(const Arrays& a) {
  a.bug ? ptx::ld_global_nc_f32(a.out + me()) : ptx::ld_global_f32(a.out + me());
  ptx::st_global_f32(a.out + me(), 1);
}
void reload_of_another_block(const Arrays& a) {
  if (ptx::ctaid_x() == 0) ptx::st_global_f32(a.out + me(), 1);
  if (ptx::ctaid_x() == 1) ptx::ld_global_f32(a.out + me() + (a.bug ? 0 : 64));
}
// The source of a copy is overwritten after the copy has begun; the bug is not to wait first.
void source_overwritten(const Arrays& a) {
  ptx::cp_async_16(ptx::shared_begin() + 16 * me(), a.out + 4 * me(), 16);
  ptx::cp_async_commit_group();
  if (!a.bug) ptx::cp_async_wait_group<0>();
  ptx::bar_sync();
  ptx::st_global_f32(a.out + 4 * (me() ^ 32), 1);
  ptx::cp_async_wait_group<0>();
}
TEST(EmulatorGlobal, RacesInDeviceMemory) {
  const auto kinds = {Kind::kRaceGlobal};
  EXPECT_EQ(planted(two_threads_write, kinds), "");
  EXPECT_EQ(planted(two_blocks_write, kinds, 2), "");
  EXPECT_EQ(planted(block_writes_in_turn, kinds, 2), "");
  EXPECT_EQ(planted(reload_of_another_thread, kinds), "");
  EXPECT_EQ(planted(store_after_reloads, kinds), "");
  EXPECT_EQ(planted<32>(warp_reloads_then_one_stores, kinds), "");
  EXPECT_EQ(planted(constant_of_own, kinds), "");
  EXPECT_EQ(planted(store_to_constant, kinds), "");
  EXPECT_EQ(planted(reload_of_another_block, kinds, 2), "");
  EXPECT_EQ(planted(source_overwritten, kinds), "");
}

struct CopyAndIncrement {
  using Params = Arrays;
  static constexpr int kThreads = 64, kSharedBytes = 0;
  void operator()(const Params& p) const {
    ptx::st_global_f32(p.out + me(), 1 + ptx::ld_global_nc_f32(p.in + me()));
  }
};
TEST(EmulatorGlobal, LaunchesAreOrdered) {
  std::vector<float> x(64), y(64);
  const Arrays there{x.data(), y.data()}, back{y.data(), x.data()};
  Device device(1);
  device.track("x", x.data(), 256, Access::kReadWrite);
  device.track("y", y.data(), 256, Access::kReadWrite);
  for (int i = 0; i < 3; ++i) {
    device.launch<CopyAndIncrement>(1, there);
    const Report r = device.launch<CopyAndIncrement>(1, back);
    EXPECT_EQ(r.bytes_read("y"), 256u);
    EXPECT_EQ(r.bytes_written("y"), 0u);
  }
  EXPECT_EQ(x[63], 6.0f);
}

}  // namespace
}  // namespace emulator

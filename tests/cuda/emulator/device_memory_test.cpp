// Faults of device memory: accesses outside of it, races, and kernels that begin early.

#include <gtest/gtest.h>

#include <initializer_list>
#include <string>

#include "cuda/emulator/steps.hpp"

namespace emulator::planted {
namespace {

TEST(PlantedBugs, OfDeviceMemory) {
  const Step copy_last = [] { ptx::cp_async_16(word(4 * me()), in + 768 + 4 * me(), 16); };
  const Step copy_beyond = [] { ptx::cp_async_16(word(4 * me()), in + 772 + 4 * me(), 16); };
  const Step copy_out = [] { ptx::cp_async_16(word(4 * me()), out + 4 * me(), 16); };
  const Step store_at_half = [] { ptx::st_global_f32(out + me() / 2, 0); };
  const auto load_4 = [](int i) -> Step {
    return [=] { ptx::ld_global_nc_v4(in + 4 * me() + i); };
  };
  const auto store_of_block = [](std::uint32_t stride, std::uint32_t x = 0) -> Step {
    return [=] { ptx::st_global_f32(out + (me() ^ x) + stride * ptx::ctaid_x(), 1); };
  };
  const Step load_behind = [] { ptx::ld_global_f32(out + 64 + me()); };
  const Step before = [] { ptx::st_global_f32(out + me() - 1, 0); };
  const Step to_in = by(5, [] { ptx::st_global_f32(in, 0); });
  const Step load_5 = [] { ptx::ld_global_f32(out + 5); };
  const Step store_4 = [] { ptx::st_global_f32(out + 4 * (me() ^ 32), 1); };
  const Step in_own_half = in_block(1, load_behind), in_other_half = in_block(1, load_out());
  const Step at_64 = store_of_block(64), back = store_of_block(64, 32);
  const char* const kRace = "race in device memory";
  const Bug bugs[] = {
      {"load beyond", "outside", {instead(load_in(961), load_in(960))}},
      {"copy beyond", "outside", {instead(copy_beyond, copy_last)}},
      {"store before", "outside", {instead(before, store_out())}},
      {"store where only reads go", "outside", {instead(to_in, by(5, store_out()))}},
      {"misaligned load", "outside", {instead(load_4(2), load_4(0))}},
      {"two threads write", kRace, {instead(store_at_half, store_out())}},
      {"load of another thread's", kRace, {store_out(), without(barrier), load_out(32)}},
      {"store after loads", kRace, {load_5, without(barrier), by(5, store_out())}},
      {"constant of the thread's own",
       kRace,
       {store_out(), instead(load_constant_out, load_out())}},
      {"store to a constant", kRace, {instead(load_constant_out, load_out()), store_out()}},
      {"source of a copy", kRace, {copy_out, commit, without(wait), barrier, store_4, wait}}};
  expect_found(bugs);
  const Bug of_two_blocks[] = {
      {"both write", kRace, {instead(store_of_block(63), at_64)}},
      {"both write in turn",
       kRace,
       {instead(store_of_block(0), at_64), barrier, instead(store_of_block(0, 32), back)}},
      {"load of the other's",
       kRace,
       {in_block(0, store_out()), instead(in_other_half, in_own_half)}}};
  expect_found(of_two_blocks, {64, 2});
  const Bug of_one_warp[] = {{"store after loads in time only",
                              kRace,
                              {load_5, instead(shuffle, warp_barrier), by(5, store_out())}}};
  expect_found(of_one_warp, {32});
}

TEST(EmulatedLaunches, AreOrdered) {
  alignas(16) static float x[64], y[64];
  const auto next = [](float* to, const float* from) -> Kernel {
    return {[=] { ptx::st_global_f32(to + me(), 1 + ptx::ld_global_nc_f32(from + me())); }};
  };
  Device device(1);
  device.track("x", x, sizeof(x), Access::kReadWrite);
  device.track("y", y, sizeof(y), Access::kReadWrite);
  for (int i = 0; i < 3; ++i) {
    launch(device, next(y, x), false);
    const Report r = launch(device, next(x, y), false);
    EXPECT_EQ(r.bytes_read("y"), 256u);
    EXPECT_EQ(r.bytes_written("y"), 0u);
  }
  EXPECT_EQ(x[63], 6.0f);
}

// ---- kernels that begin before the one before has ended ----------------------------------------

/// The thread's place among those of all blocks.
std::uint32_t place() { return 64 * ptx::ctaid_x() + me(); }
const Step grid_wait = [] { ptx::griddepcontrol_wait(); };
const Step launch_dependents = [] { ptx::griddepcontrol_launch_dependents(); };
const Step load_placed = [] { ptx::ld_global_f32(out + place()); };
const Step load_placed_constant = [] { ptx::ld_global_nc_f32(out + place()); };
const Step store_placed = [] { ptx::st_global_f32(out + place(), 1); };
const Step store_behind = [] { ptx::st_global_f32(out + 128 + place(), 1); };
/// Writes out[0..127] and reads out[128..255].
const Kernel write_some = {
    [] { ptx::st_global_f32(out + place(), ptx::ld_global_f32(out + 128 + place())); }};

/// The fault of the last of some launches of two blocks, the second and those after it early.
std::string fault_of(std::initializer_list<Kernel> kernels, bool early, bool bug) {
  Device device(1);
  track_numbers(device);
  for (const Kernel& kernel : kernels) {
    const bool first = &kernel == kernels.begin(), last = &kernel + 1 == kernels.end();
    try {
      launch(device, kernel, bug, {64, 2}, early && !first);
    } catch (const Fault& fault) {
      return (last ? "" : "not the last: ") + std::string(fault.what());
    }
  }
  return "";
}

TEST(PlantedBugs, OfKernelsThatBeginEarly) {
  const char* const kReads = "wrote is not ordered after griddepcontrol.wait";
  const char* const kWrites = "uses is not ordered after griddepcontrol.wait";
  const Bug bugs[] = {
      {"read before the wait", kReads, {without(grid_wait), load_placed, only_wrong(grid_wait)}},
      {"read before the wait of block 1",
       kReads,
       {instead(in_block(0, grid_wait), grid_wait), load_placed, only_wrong(grid_wait)}},
      {"read before the wait of block 0",
       kReads,
       {instead(in_block(1, grid_wait), grid_wait), load_placed, only_wrong(grid_wait)}},
      {"read after the wait of another thread",
       kReads,
       {by(0, grid_wait), without(barrier), load_placed, only_wrong(barrier)}},
      {"constant",
       "as constant of what a kernel wrote that may run with this one",
       {grid_wait, instead(load_placed_constant, load_placed)}},
      {"write of what was written",
       kWrites,
       {without(grid_wait), store_placed, only_wrong(grid_wait)}},
      {"write of what was read",
       kWrites,
       {without(grid_wait), store_behind, only_wrong(grid_wait)}},
      {"no wait of a block",
       "ends without griddepcontrol.wait",
       {instead(in_block(0, grid_wait), grid_wait)}},
      {"launch before the wait",
       "launch_dependents is not ordered after griddepcontrol.wait",
       {only_wrong(launch_dependents), grid_wait, launch_dependents}}};
  for (const Bug& bug : bugs) {
    const std::string wrong = fault_of({write_some, bug.kernel}, true, true);
    EXPECT_TRUE(says(wrong, bug.report)) << bug.name << ": " << wrong;
    EXPECT_EQ(fault_of({write_some, bug.kernel}, true, false), "") << bug.name;
    EXPECT_EQ(fault_of({write_some, bug.kernel}, false, true), "") << bug.name;
  }
}

TEST(EmulatedLaunches, MayReadBeforeTheWaitWhatIsNotWritten) {
  const Kernel inputs = {load_in(0), [] { ptx::ld_global_f32(out + 512 + place()); }, grid_wait};
  EXPECT_EQ(fault_of({write_some, inputs}, true, false), "");
  // The second waits for the first, so the third may read the first's numbers without a wait.
  EXPECT_EQ(fault_of({write_some, {grid_wait}, {load_placed_constant, grid_wait}}, true, false),
            "");
}

}  // namespace
}  // namespace emulator::planted

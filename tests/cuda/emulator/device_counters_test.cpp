// Faults of counters in device memory, by which blocks of a grid order themselves.

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <utility>

#include "cuda/emulator/steps.hpp"
#include "mhla/cuda/ptx/counter.cuh"

namespace emulator::planted {
namespace {

/// Counters of the grid, 0 at first: blocks that have begun, and blocks whose numbers are written.
alignas(128) std::uint32_t counters[32];

/// The block's number in the order in which blocks begin, which its first thread takes.
const Step take_number = by(0, [] { ptx::st_shared(word(256), ptx::atom_add(counters)); });
/// A step of the block that took number `n`.
Step of_taker(std::uint32_t n, Step s) {
  return [=, s = std::move(s)] {
    if (ptx::ld_shared(word(256)) == n) s();
  };
}

const Step release = by(0, [] { ptx::red_add_release(counters + 1); });
const Step release_other = by(0, [] { ptx::red_add_release(counters + 2); });
Step acquire(std::uint32_t count) {
  return by(0, [=] { ptx::wait_acquire(counters + 1, count); });
}

/// The second block reads what the first one wrote.
const Kernel kExchange = {
    {"take", take_number},
    {"number", barrier},
    {"write", of_taker(0, store_out())},
    {"written", barrier},
    {"release", of_taker(0, release)},
    {"acquire", of_taker(1, acquire(1))},
    {"acquired", barrier},
    {"read", of_taker(1, load_out(32))},
};

Outcome exchanged(const Kernel& kernel, bool bug, std::uint64_t seed) {
  for (std::uint32_t& counter : counters) counter = 0;
  return run_planted(kernel, bug,
                     {.blocks = 2,
                      .track =
                          [](Device& device) {
                            device.track("counters", counters, sizeof(counters),
                                         Access::kReadWrite);
                          }},
                     seed);
}

TEST(PlantedBugs, OfCountersInDeviceMemory) {
  const char* const kRace = "race in device memory";
  const Bug bugs[] = {
      {"no barrier before the release", kRace, changed(kExchange, "written")},
      {"no wait", kRace, changed(kExchange, "acquire")},
      {"no barrier after the wait", kRace, changed(kExchange, "acquired")},
      {"a wait for nothing", kRace, changed(kExchange, "acquire", of_taker(1, acquire(0)))},
      {"the number of another thread", "race|uninitialized", changed(kExchange, "number")},
      {"a release of another counter", "deadlock",
       changed(kExchange, "release", of_taker(0, release_other))},
      {"no release", "deadlock", changed(kExchange, "release")},
      {"a wait for a later block", "deadlock",
       changed(kExchange, "acquire", of_taker(0, acquire(2)))},
      {"a constant read", kRace,
       changed(kExchange, "read", of_taker(1, [] { ptx::ld_global_nc_f32(out + (me() ^ 32)); }))},
      {"a plain read of a counter", kRace,
       inserted(
           kExchange, "take",
           by(1, [] { ptx::ld_global_s64(reinterpret_cast<const std::int64_t*>(counters)); }))},
      {"a store after the release", kRace,
       inserted(kExchange, "acquire", of_taker(0, store_out()))}};
  for (const Bug& bug : bugs) {
    for (std::uint64_t seed = 0; seed < kSchedules; ++seed) {
      const Outcome wrong = exchanged(bug.kernel, true, seed);
      EXPECT_TRUE(says(wrong.fault, bug.report))
          << bug.name << ", schedule " << seed << ": expected " << bug.report << ", found "
          << wrong.fault;
      EXPECT_EQ(exchanged(bug.kernel, false, seed).fault, "") << bug.name;
    }
  }
}

TEST(DeviceCounters, AreCounted) {
  const Report report = exchanged(kExchange, false, 3).report;
  EXPECT_EQ(report.count("counter instructions"),
            4u);  // two blocks take, one releases, one waits
  EXPECT_EQ(counters[0], 2u);
  EXPECT_EQ(counters[1], 1u);
}

}  // namespace
}  // namespace emulator::planted

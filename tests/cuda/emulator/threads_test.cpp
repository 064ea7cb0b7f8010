// Grids, schedules and shuffles, and faults of threads that wait: for barriers, phases, registers.

#include <gtest/gtest.h>

#include <cstdint>
#include <set>
#include <stdexcept>
#include <vector>

#include "cuda/emulator/steps.hpp"
#include "mhla/cuda/ptx/wgmma.cuh"

namespace emulator::planted {
namespace {

// ---- grids and schedules -----------------------------------------------------------------------

/// Numbers in the grid of the threads of 12 blocks, in the order of their ends.
std::vector<std::uint32_t> ends(std::uint64_t seed) {
  std::vector<std::uint32_t> log;
  const Step note = [&] {
    const std::uint32_t i = 64 * (ptx::nctaid_x() - 1 - ptx::ctaid_x()) + me();
    ptx::st_global_f32(out + i, static_cast<float>(i + 1));
    ptx::bar_warp_sync();
    log.push_back(i);
  };
  const Outcome o = run_planted({note}, false, {64, 12}, seed);
  EXPECT_EQ(o.fault, "");
  EXPECT_EQ(o.report.bytes_written("out"), 4u * 12 * 64);
  EXPECT_EQ(o.report.bytes_read("out"), 0u);
  EXPECT_EQ(o.report.count("warp barriers"), 24u);
  EXPECT_EQ(o.report.count("global stores"), 12u * 64);
  EXPECT_EQ(o.report.count("mma"), 0u);
  EXPECT_THROW(o.report.count("products"), std::invalid_argument);
  return log;
}

// Seeds 2 and 3 run one warp to its end if they can, seed 1 does not.
TEST(EmulatedGrid, RunsAllThreadsInAnOrderOfTheSeed) {
  std::set<std::vector<std::uint32_t>> orders;
  for (std::uint64_t seed = 0; seed < 7; ++seed) {
    const std::vector<std::uint32_t> log = ends(seed);
    for (int i = 0; i < 12 * 64; ++i) EXPECT_EQ(out[i], static_cast<float>(i + 1));
    EXPECT_EQ(std::set<std::uint32_t>(log.begin(), log.end()).size(), 12u * 64);
    EXPECT_EQ(log, ends(seed));
    orders.insert(log);
    int changes = 0;  // from a warp to another
    for (std::size_t i = 1; i < log.size(); ++i) changes += log[i] / 32 != log[i - 1] / 32;
    EXPECT_TRUE(seed != 1 || changes > 24) << changes;
    EXPECT_TRUE((seed != 2 && seed != 3) || changes == 23) << changes;
  }
  EXPECT_EQ(orders.size(), 7u);
}

TEST(EmulatedGrid, HasTheSharedBytesOfTheLaunch) {
  EXPECT_EQ(run_planted({write}, false, {64, 1, 256}).report.count("shared stores"), 64u);
  EXPECT_TRUE(says(run_planted({write}, false, {64, 1, 252}).fault, "outside"));
  EXPECT_TRUE(says(run_planted({}, false, {64, 1, 232448 + 1}).fault, "outside"));
}

TEST(EmulatedGrid, HasRangesThatDoNotOverlap) {
  Device device(0);
  device.track("a", out, 16, Access::kRead);
  device.track("b", out + 4, 16, Access::kRead);
  EXPECT_THROW(device.track("c", out + 3, 8, Access::kRead), std::invalid_argument);
}

TEST(EmulatedGrid, ExceptionsLeaveTheLaunch) {
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    EXPECT_THROW(run_planted({by(33, [] { throw std::domain_error("x"); })}, false, {}, seed),
                 std::domain_error);
  }
}

// ---- barriers of threads -----------------------------------------------------------------------

Step of_lanes(std::uint32_t begin, std::uint32_t end, Step s) {
  return [=] {
    if (me() % 32 >= begin && me() % 32 < end) s();
  };
}
Step shuffle_by(std::uint32_t mask) {
  return [=] { ptx::shfl_bfly(1, mask); };
}
/// Writes the number of another lane of the warp; thread 40 asks for `lane`.
Step number_of_lane(std::uint32_t lane) {
  return [=] {
    const std::uint32_t x = ptx::shfl_idx(me(), me() == 40 ? lane : (me() * 5 + 3) % 32);
    ptx::st_global_f32(out + me(), static_cast<float>(x));
  };
}

TEST(PlantedBugs, OfThreadsThatMeet) {
  const auto crosswise = [](std::uint32_t first) -> Step {
    return [=] { ptx::bar_sync(me() < 32 ? first : 3 - first, 64); };
  };
  const Step some_mask = [] { ptx::shfl_bfly(1, me() % 32 == 31 ? 2 : 1); };
  const Step some_shuffle = [] { (me() % 32 == 3 ? shuffle : warp_barrier)(); };
  const Step some_count = [] { ptx::bar_sync(1, me() < 32 ? 64 : 32); };
  const Bug bugs[] = {
      {"a warp does not come", "deadlock", {instead(in_warp(0, barrier), barrier)}},
      {"crosswise",
       "0 to 31 in barrier 1; 32 to 63 in barrier 2",
       {instead(crosswise(1), meet(1, 64)), instead(crosswise(2), meet(2, 64))}},
      {"half a warp", "divergent", {instead(of_lanes(0, 16, warp_barrier), warp_barrier)}},
      {"all but one thread", "divergent", {instead(not_by(0, warp_barrier), warp_barrier)}},
      {"another mask", "divergent", {instead(some_mask, shuffle_by(1))}},
      {"another instruction", "divergent", {instead(some_shuffle, warp_barrier)}},
      // If the lone warp comes first, its barrier ends, and the others wait for ever.
      {"another count", "divergent|deadlock", {instead(some_count, meet(1, 64))}},
      {"no such barrier", "outside", {instead(meet(16, 64), meet(15, 64))}},
      {"half a warp of threads", "outside", {instead(meet(1, 48), meet(1, 64))}},
      {"no such lane", "outside", {instead(number_of_lane(32), number_of_lane(11))}}};
  expect_found(bugs);
  const Bug of_three_warps[] = {
      {"a warp ends before",
       "deadlock",
       {instead(of_threads(0, 64, meet(1, 96)), of_threads(0, 64, meet(1, 64)))}}};
  expect_found(of_three_warps, {96});
}

TEST(EmulatedShuffles, ExchangeNumbers) {
  const Step sum = [] {
    float x = in[me()];
    for (std::uint32_t mask = 16; mask > 0; mask /= 2) x += ptx::shfl_bfly(x, mask);
    ptx::st_global_f32(out + me(), x);
  };
  EXPECT_EQ(run_planted({sum}, false, {}, 1).report.count("shuffles"), 10u);
  for (int i = 0; i < 64; ++i) EXPECT_EQ(out[i], i < 32 ? 496.0f : 496.0f + 1024.0f);
  run_planted({number_of_lane(11)}, false, {}, 1);
  for (int i = 0; i < 64; ++i) {
    EXPECT_EQ(out[i], static_cast<float>(i / 32 * 32 + (i * 5 + 3) % 32));
  }
}

// ---- phases of barriers in shared memory -------------------------------------------------------

/// The barrier of planted kernels in shared memory, after numbers of 128 threads.
std::uint32_t phase() { return word(128); }
Step begin_phases(std::uint32_t arrivals, std::uint32_t offset = 0) {
  return by(0, [=] { ptx::mbarrier_init(phase() + offset, arrivals); });
}
const Step publish = by(0, [] { ptx::fence_mbarrier_init(); });
const Step arrive = [] { ptx::mbarrier_arrive(phase()); };
Step pass(std::uint32_t parity) {
  return [=] { ptx::mbarrier_wait(phase(), parity); };
}
/// Threads add to a number in turn, each after the phase in which the one before arrived.
Step turns(std::uint32_t more_parity = 0) {
  return [=] {
    for (std::uint32_t turn = 0; turn < 32; ++turn) {
      if (turn == me()) {
        ptx::st_shared(word(0), ptx::ld_shared(word(0)) + 1);
        arrive();
      }
      pass(turn % 2 + more_parity)();
      ptx::bar_warp_sync();  // before the next phase can end
    }
  };
}
/// Thread 0 reads the numbers of all others.
const Step read_all = by(0, [] {
  for (std::uint32_t i = 1; i < 64; ++i) EXPECT_EQ(ptx::ld_shared(word(i)), i);
});

TEST(PlantedBugs, OfPhases) {
  const Step zero = by(0, store(0)), init = begin_phases(1), init_63 = begin_phases(63);
  const Step others_write = not_by(0, write), others_arrive = not_by(0, arrive);
  const Step second = by(0, pass(1)), first = by(0, pass(0));
  const Kernel gather = {{"init", init_63},   {"publish", publish},
                         {"", barrier},       {"", others_write},
                         {"", others_arrive}, {"", first},
                         {"", read_all},      {"", barrier},
                         {"", others_write},  {"arrive", others_arrive},
                         {"pass", second},    {"", read_all}};
  const Bug bugs[] = {
      {"not published", "race", {init, without(publish), zero, barrier, turns()}, {32}},
      {"misaligned",
       "outside",
       {instead(begin_phases(1, 4), init), publish, zero, barrier, turns()},
       {32}},
      {"no arrivals",
       "bytes",
       {instead(begin_phases(0), init), publish, zero, barrier, turns()},
       {32}},
      {"no parity", "bytes", {init, publish, zero, barrier, instead(turns(2), turns())}, {32}},
      {"not made", "uninitialized", {without(init), publish, zero, barrier, turns()}, {32}},
      {"no wait for others", "race", changed(gather, "pass")},
      {"the reader arrives for another", "race",
       changed(gather, "arrive",
               [] {
                 if (me() != 40) arrive();
               })},
      {"parity of the phase before", "race", changed(gather, "pass", first)}};
  expect_found(bugs);
  const Bug of_three_warps[] = {
      {"a phase that two warps wait for tells only what the third did",
       "race|uninitialized",
       {init, publish, barrier, by(40, store(0)), of_threads(0, 64, meet(1, 64)), without(barrier),
        by(65, arrive), by(0, pass(0)), by(64, pass(0)), by(64, load(0))}}};
  expect_found(of_three_warps, {96});
}

// ---- registers that groups of warps give and take ----------------------------------------------

template <int kCount>
Step give(std::uint32_t threads = 128) {
  return of_threads(0, threads, [] { ptx::setmaxnreg_dec<kCount>(); });
}
template <int kCount>
Step take() {
  return of_threads(128, 384, [] { ptx::setmaxnreg_inc<kCount>(); });
}

// Each of 384 threads begins with 168.
TEST(PlantedBugs, OfRegistersThatChangeHands) {
  const Step give_24 = give<24>(), take_240 = take<240>();
  const Step take_first = of_threads(0, 128, [] { ptx::setmaxnreg_inc<24>(); });
  const Bug bugs[] = {
      {"more taken than given", "deadlock", {give<40>(), instead(take<240>(), take<232>())}},
      {"the giver waits for the takers",
       "deadlock",
       {only_wrong(of_threads(0, 128, barrier)), give_24, take_240,
        only_wrong(of_threads(128, 384, barrier))}},
      {"given by one warp", "divergent", {instead(give<24>(32), give_24), take_240}},
      {"given by taking", "registers", {instead(take_first, give_24), take_240}},
      {"given more than there are",
       "registers",
       {instead(give<176>(), give_24), instead(take<168>(), take_240)}}};
  expect_found(bugs, {384});
}

}  // namespace
}  // namespace emulator::planted

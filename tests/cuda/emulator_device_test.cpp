/// \file
/// The front of the emulator: grids, counts, schedules, barriers, and their faults.

#include <gtest/gtest.h>

#include <set>
#include <stdexcept>
#include <vector>

#include "emulator/planted.hpp"
#include "mhla/cuda/ptx/barrier.cuh"
#include "mhla/cuda/ptx/global.cuh"
#include "mhla/cuda/ptx/index.cuh"
#include "mhla/cuda/ptx/shared.cuh"

namespace emulator {
namespace {

namespace ptx = mhla::cuda::ptx;

std::uint32_t me() { return ptx::tid_x(); }
std::uint32_t warp() { return me() / 32; }

// -------------------------------------------------------------------------------------------------
// Grids

/// Each thread writes its number in the grid; the log keeps the order in which threads end.
struct Numbering {
  struct Params {
    std::uint32_t* out;
    std::vector<std::uint32_t>* log;
    int shared;
  };
  static constexpr int kThreads = 64;
  static int shared_bytes(const Params& p) { return p.shared; }
  void operator()(const Params& p) const {
    const std::uint32_t i = 64 * (ptx::nctaid_x() - 1 - ptx::ctaid_x()) + me();
    ptx::st_global(p.out + i, i + 1);
    if (p.shared > 0) ptx::st_shared(ptx::shared_begin() + 4 * me(), i);
    ptx::bar_warp_sync();
    p.log->push_back(i);
  }
};

struct Numbers {
  std::vector<std::uint32_t> out = std::vector<std::uint32_t>(24 * 64);
  std::vector<std::uint32_t> log;
  Report report;

  explicit Numbers(std::uint64_t seed, int shared = 0) {
    Device device(seed);
    device.track("out", out.data(), 4 * out.size(), Access::kWrite);
    report = device.launch<Numbering>(24, {out.data(), &log, shared});
  }
};

TEST(Emulator, RunsAllThreadsOfAllBlocks) {
  for (std::uint64_t seed = 0; seed < 7; ++seed) {
    const Numbers n(seed);
    for (std::size_t i = 0; i < n.out.size(); ++i) EXPECT_EQ(n.out[i], i + 1);
    EXPECT_EQ(std::set<std::uint32_t>(n.log.begin(), n.log.end()).size(), n.out.size());
    EXPECT_EQ(n.report.bytes_written("out"), 4 * n.out.size());
    EXPECT_EQ(n.report.bytes_read("out"), 0u);
    EXPECT_EQ(n.report.count("warp barriers"), 48u);
    EXPECT_EQ(n.report.count("global stores"), n.out.size());
    EXPECT_EQ(n.report.count("mma"), 0u);
    EXPECT_THROW(n.report.count("products"), std::invalid_argument);
  }
}

TEST(Emulator, SeedsAreSchedules) {
  std::set<std::vector<std::uint32_t>> orders;
  for (std::uint64_t seed = 0; seed < 7; ++seed) {
    const Numbers n(seed);
    EXPECT_EQ(n.log, Numbers(seed).log);
    orders.insert(n.log);
  }
  EXPECT_EQ(orders.size(), 7u);
}

// Seeds 2 and 3 run one warp to its end if they can, seed 1 does not.
TEST(Emulator, WarpsGoByRank) {
  for (const std::uint64_t seed : {1, 2, 3}) {
    const Numbers n(seed);
    int changes = 0;  // from a warp to another
    for (std::size_t i = 1; i < n.log.size(); ++i) changes += n.log[i] / 32 != n.log[i - 1] / 32;
    if (seed == 1) {
      EXPECT_GT(changes, 48);
    } else {
      EXPECT_EQ(changes, 47);
    }
  }
}

TEST(Emulator, SharedBytesMayDependOnTheLaunch) {
  EXPECT_EQ(Numbers(0, 256).report.count("shared stores"), 24u * 64);
  EXPECT_THROW(Numbers(0, 252), Fault);
  EXPECT_THROW(Numbers(0, 232448 + 1), Fault);
}

TEST(Emulator, RangesDoNotOverlap) {
  std::vector<float> x(8);
  Device device(0);
  device.track("a", x.data(), 16, Access::kRead);
  device.track("b", x.data() + 4, 16, Access::kRead);
  EXPECT_THROW(device.track("c", x.data() + 3, 8, Access::kRead), std::invalid_argument);
}

// -------------------------------------------------------------------------------------------------
// Barriers

void one_warp_does_not_come(const Arrays& a) {
  if (!a.bug || warp() == 0) ptx::bar_sync();
}
void one_warp_ends_before(const Arrays& a) {
  if (warp() == 0) ptx::bar_sync(1, a.bug ? 96 : 64);
  if (warp() == 1) ptx::bar_sync(1, a.bug ? 96 : 64);
}
void crosswise(const Arrays& a) {
  ptx::bar_sync(warp() == 0 || !a.bug ? 1 : 2, 64);
  ptx::bar_sync(warp() == 0 || !a.bug ? 2 : 1, 64);
}
TEST(Emulator, Deadlocks) {
  EXPECT_EQ(planted(one_warp_does_not_come, {Kind::kDeadlock}), "");
  EXPECT_EQ(planted<96>(one_warp_ends_before, {Kind::kDeadlock}), "");
  EXPECT_EQ(planted(crosswise, {Kind::kDeadlock}), "");
  EXPECT_NE(run_planted(crosswise, true)
                .fault.find("0 to 31 in barrier 1; 32 to 63 in barrier "
                            "2"),
            std::string::npos)
      << run_planted(crosswise, true).fault;
}

void half_a_warp(const Arrays& a) {
  if (!a.bug || me() % 32 < 16) ptx::bar_warp_sync();
}
void all_but_one(const Arrays& a) {
  if (!a.bug || me() != 0) ptx::bar_warp_sync();
}
void other_mask(const Arrays& a) { ptx::shfl_bfly(1, a.bug && me() % 32 == 31 ? 2 : 1); }
void other_instruction(const Arrays& a) {
  a.bug&& me() % 32 == 3 ? void(ptx::shfl_bfly(1, 1)) : ptx::bar_warp_sync();
}
void other_count(const Arrays& a) { ptx::bar_sync(1, a.bug && warp() == 1 ? 32 : 64); }
TEST(Emulator, DivergentThreads) {
  const auto kinds = {Kind::kDivergent};
  EXPECT_EQ(planted(half_a_warp, kinds), "");
  EXPECT_EQ(planted(all_but_one, kinds), "");
  EXPECT_EQ(planted(other_mask, kinds), "");
  EXPECT_EQ(planted(other_instruction, kinds), "");
  // If the lone warp comes first, its barrier ends, and the others wait for ever.
  EXPECT_EQ(planted(other_count, {Kind::kDivergent, Kind::kDeadlock}), "");
}

void barrier_number(const Arrays& a) { ptx::bar_sync(a.bug ? 16 : 15, 64); }
void half_a_warp_of_threads(const Arrays& a) { ptx::bar_sync(1, a.bug ? 48 : 64); }
TEST(Emulator, BarriersThatAreNone) {
  EXPECT_EQ(planted(barrier_number, {Kind::kOutside}), "");
  EXPECT_EQ(planted(half_a_warp_of_threads, {Kind::kOutside}), "");
}

void sum_of_warp(const Arrays& a) {
  float x = a.in[me()];
  for (std::uint32_t mask = 16; mask > 0; mask /= 2) x += ptx::shfl_bfly(x, mask);
  ptx::st_global_f32(a.out + me(), x);
}
TEST(Emulator, ShufflesExchange) {
  const Outcome o = run_planted(sum_of_warp, false, 1);
  for (std::size_t i = 0; i < 64; ++i) EXPECT_EQ(o.out[i], i < 32 ? 496.0f : 496.0f + 1024.0f);
  EXPECT_EQ(o.report.count("shuffles"), 10u);
}

void number_of_lane(const Arrays& a) {
  const std::uint32_t lane = (me() * 5 + 3) % 32;
  const std::uint32_t x = ptx::shfl_idx(me(), a.bug && me() == 40 ? 32 : lane);
  ptx::st_global_f32(a.out + me(), static_cast<float>(x));
}
TEST(Emulator, ShufflesAskALane) {
  EXPECT_EQ(planted(number_of_lane, {Kind::kOutside}), "");
  const Outcome o = run_planted(number_of_lane, false, 1);
  for (std::size_t i = 0; i < 64; ++i) {
    EXPECT_EQ(o.out[i], static_cast<float>(i / 32 * 32 + (i * 5 + 3) % 32));
  }
}

void throws(const Arrays&) {
  if (me() == 33) throw std::domain_error("x");
}
TEST(Emulator, ExceptionsLeaveTheLaunch) {
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    EXPECT_THROW(run_planted(throws, false, seed), std::domain_error);
  }
}

}  // namespace
}  // namespace emulator

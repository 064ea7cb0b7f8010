#include "cuda/model/issue_slots.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "cuda/model/control_flow.hpp"

namespace {

using emulator::Counter;
using emulator::Issued;
using mhla::cuda::model::Instruction;
using mhla::cuda::model::issue_slots;
using mhla::cuda::model::runs_of;

constexpr std::uint64_t kAlways = 7, kIfP0 = 0;

constexpr Instruction plain(std::uint64_t opcode, std::uint64_t guard = kAlways) {
  return {opcode | guard << 12, 0};
}
/// A branch over `instructions` more, of sm_80 or sm_90.
constexpr Instruction branch(std::int64_t instructions, std::uint64_t guard, int arch = 90) {
  const std::int64_t bytes = 16 * instructions;
  const auto high = static_cast<std::uint64_t>(arch >= 90 ? bytes >> 10 : bytes / 4);
  const auto low = static_cast<std::uint64_t>(arch >= 90 ? bytes >> 2 & 0xff : 0);
  return {0x947 | guard << 12 | low << 16 | high << 34,
          std::uint64_t{7} << 23 | (high >> 30 & 0x3ffff)};
}
constexpr Instruction add() { return plain(0x221); }
constexpr Instruction mma() { return plain(0x23c); }
constexpr Instruction matrix() { return plain(0x83b); }
constexpr Instruction load(std::uint64_t guard = kAlways) { return plain(0x981, guard); }
constexpr Instruction exponential() { return {0x308 | 7 << 12, 2 << 10}; }
constexpr Instruction end() { return plain(0x94d); }

std::vector<Issued> issued(std::initializer_list<std::pair<const char*, std::uint64_t>> counts) {
  std::vector<Issued> all(Counter::names().size());
  for (const auto& [name, times] : counts) all[Counter::index_of(name)] = {times};
  return all;
}

TEST(ControlFlow, BranchesLeadBackAndForth) {
  for (const int arch : {80, 90}) {
    const std::vector<Instruction> code{add(), branch(1, kIfP0, arch),  add(),
                                        add(), branch(-5, kIfP0, arch), end()};
    const auto runs = runs_of(code, arch);
    ASSERT_EQ(runs.size(), 4u);
    EXPECT_EQ(runs[0].next, (std::vector<std::size_t>{2, 1}));
    EXPECT_EQ(runs[1].next, (std::vector<std::size_t>{2}));
    EXPECT_EQ(runs[2].next, (std::vector<std::size_t>{0, 3}));
    EXPECT_TRUE(runs[3].next.empty());
    EXPECT_TRUE(runs[3].ends);
  }
}

TEST(ControlFlow, OnlyBranchesWithoutConditionsAlwaysJump) {
  Instruction divergent = branch(1, kAlways);
  divergent.high |= std::uint64_t{1} << 27;  // .DIV
  EXPECT_EQ(runs_of({branch(1, kAlways), add(), end()}, 90)[0].next, (std::vector<std::size_t>{2}));
  EXPECT_EQ(runs_of({divergent, add(), end()}, 90)[0].next, (std::vector<std::size_t>{2, 1}));
}

TEST(IssueSlots, LoopsRunAsOftenAsWhatTheyHold) {
  // 3 instructions, a loop of 6 with 2 products, a loop of 4 with a load, and the end.
  const std::vector<Instruction> code{
      add(), add(), add(),  //
      mma(), add(), add(), mma(), add(), branch(-6, kIfP0), load(), add(), add(), branch(-4, kIfP0),
      end()};
  const auto slots = issue_slots(code, 90, 4, issued({{"mma", 4 * 20}, {"global loads", 4 * 7}}));
  EXPECT_NEAR(slots.slots, 4 * (3 + 10 * 6 + 7 * 4 + 1), 0.1);
  EXPECT_NEAR(slots.missed, 0, 0.01);
}

TEST(IssueSlots, SeriesOfTheMachineCodeWaitOnce) {
  // A loop that loads twice, multiplies twice with an addition in between, loads and multiplies.
  const std::vector<Instruction> code{matrix(), matrix(),          mma(), add(), mma(), matrix(),
                                      mma(),    branch(-8, kIfP0), end()};
  const auto slots = issue_slots(code, 90, 1, issued({{"mma", 3 * 10}, {"matrix loads", 3 * 10}}));
  EXPECT_NEAR(slots.waits, 10 * (33 + 33 + 33 + 33), 0.1);
}

TEST(IssueSlots, WgmmaStartedTogetherWaitOnce) {
  // Fence and wait are 0x1c5. What is multiplied meanwhile is a series of its own.
  const Instruction wgmma = plain(0xdf0), bound = plain(0x9c5);
  const std::vector<Instruction> code{bound, wgmma, mma(), wgmma, mma(),
                                      bound, wgmma, bound, end()};
  const auto slots = issue_slots(code, 90, 1, issued({{"mma", 2}, {"wgmma of a warp", 3}}));
  EXPECT_NEAR(slots.waits, 60 + 33 + 60, 0.1);
}

TEST(IssueSlots, WhatWasNotCountedIsNotOnTheWay) {
  // Either 2 exponentials or 5 additions.
  const std::vector<Instruction> code{branch(3, kIfP0),
                                      exponential(),
                                      exponential(),
                                      branch(5, kAlways),
                                      add(),
                                      add(),
                                      add(),
                                      add(),
                                      add(),
                                      end()};
  EXPECT_NEAR(issue_slots(code, 90, 1, issued({})).slots, 7, 0.01);
  EXPECT_NEAR(issue_slots(code, 90, 1, issued({{"exponentials", 2}})).slots, 5, 0.01);
}

TEST(IssueSlots, GuardedInstructionsMayHaveRunOrNot) {
  const std::vector<Instruction> code{load(kIfP0), load(kIfP0), end()};
  for (const std::uint64_t times : {0, 1, 2}) {
    const auto slots = issue_slots(code, 90, 1, issued({{"global loads", times}}));
    EXPECT_NEAR(slots.slots, 3, 0.01);
    EXPECT_NEAR(slots.missed, 0, 0.01);
  }
}

TEST(IssueSlots, SayWhatTheCodeDoesNotExplain) {
  const auto slots = issue_slots({load(), end()}, 90, 1, issued({{"global loads", 5}}));
  EXPECT_NEAR(slots.missed, 4, 0.01);
  EXPECT_NEAR(slots.counted, 5, 0.01);
}

}  // namespace

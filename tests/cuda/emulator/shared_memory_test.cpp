// Faults of shared memory, and of asynchronous copies into it.

#include <gtest/gtest.h>

#include <cstdint>

#include "cuda/emulator/steps.hpp"

namespace emulator::planted {
namespace {

const Step write_one = store(0), read_one = load(0);
const Step copy_piece = [] { ptx::cp_async_16(word(4 * me()), in + 4 * me(), 16); };
const Step wait_for_older = [] { ptx::cp_async_wait_group<1>(); };

TEST(PlantedBugs, OfSharedMemory) {
  const Step write_even = [] { ptx::st_shared(word(2 * me()), 1); };
  const Step write_odd = [] { ptx::st_shared(word(2 * me() + 1), 1); };
  const Step read_both = [] { ptx::ld_shared_v2(word(2 * me())); };
  const Step two_matrices = [] { ptx::ldmatrix_x2(word(4 * (me() ^ 32))); };
  const Step last = [] { store(1024 - 64 + me())(); }, beyond = [] { store(1024 - 63 + me())(); };
  const Step before = by(9, [] { ptx::st_shared(word(0) - 4, 0); });
  const Step write_askew = [] { ptx::st_shared_v4(word(4 * me() + 1), {}); };
  const Step write_more = [] { ptx::st_shared(word(256 + me()), 0); };
  const Step rows_askew = [] { ptx::ldmatrix_x4(word(5 * me())); };
  const char* const kUnordered = "race|uninitialized";
  const Bug bugs[] = {
      {"no value", "uninitialized", {instead(not_by(7, write), write), read(0)}},
      {"half a value", "uninitialized", {write_even, without(write_odd), read_both}},
      {"no row of a matrix",
       "uninitialized",
       {instead(not_by(13, write_slot), write_slot), warp_barrier, read_matrices(0)}},
      {"read of another warp", kUnordered, {write, without(barrier), read(32)}},
      {"read of a neighbour", kUnordered, {write, without(warp_barrier), read(1)}},
      {"matrix load", kUnordered, {write_slot, without(barrier), read_matrices(32)}},
      {"write after read", "race", {write, barrier, read(32), without(barrier), write}},
      {"write after matrix load",
       "race",
       {write_slot, barrier, two_matrices, without(barrier), write_slot}},
      {"write after write", "race", {by(40, write_one), without(barrier), by(3, write_one)}},
      {"write after reads of all",
       "race",
       {by(0, write_one), barrier, read_one, without(barrier), by(5, write_one)}},
      {"a shuffle is no barrier", "race", {write, instead(shuffle, warp_barrier), read(1)}},
      {"beyond the end", "outside", {instead(beyond, last)}},
      {"before the begin", "outside", {instead(before, by(9, store(0)))}},
      {"misaligned", "outside", {instead(write_askew, write_slot)}},
      {"misaligned row",
       "outside",
       {write_slot, write_more, barrier, instead(rows_askew, read_matrices(0))}}};
  expect_found(bugs);
  const Bug of_blocks[] = {
      {"an earlier block wrote", "uninitialized", {instead(in_block(0, write), write), read(0)}}};
  expect_found(of_blocks, {64, 3});
  const Bug of_one_warp[] = {
      {"write after reads in time only",
       "race",
       {by(0, write_one), barrier, read_one, instead(shuffle, warp_barrier), by(5, write_one)}}};
  expect_found(of_one_warp, {32});
  const Step told = in_warp(2, meet(2, 64));
  const Bug of_three_warps[] = {
      {"warp 1 tells warp 2 what warp 0 wrote",
       kUnordered,
       {in_warp(0, write), of_threads(0, 64, meet(1, 64)), in_warp(1, meet(2, 64)), without(told),
        in_warp(2, read(64)), only_wrong(told)}},
      {"write of one of four words that two warps read",
       "race",
       {by(0, write_slot), barrier, by(0, read_slot(0)), by(32, read_slot(32)), barrier,
        by(33, load(0)), by(64, load(1)), instead(by(64, store(0)), by(64, store(1)))}}};
  expect_found(of_three_warps, {96});
}

// Warps read a word in any order, and the last warp writes it. It has met all of them but one.
TEST(PlantedBugs, OfWordsThatSeveralWarpsRead) {
  const auto meet_of = [](std::uint32_t one, std::uint32_t other, std::uint32_t id) -> Step {
    return [=] { in_warp(one, meet(id, 64))(), in_warp(other, meet(id, 64))(); };
  };
  const auto read_by = [](std::uint32_t warp) { return by(32 * warp, load(0)); };
  const Bug two_readers[] = {{"has not met the second",
                              "race",
                              {by(0, store(0)), barrier, read_by(0), read_by(1), meet_of(0, 2, 1),
                               without(meet_of(1, 2, 2)), by(64, store(0))}}};
  expect_found(two_readers, {96});
  const Bug three_readers[] = {
      {"has met the third, which has met the first",
       "race",
       {by(0, store(0)), barrier, read_by(0), read_by(1), meet_of(0, 2, 1), read_by(2),
        meet_of(2, 3, 2), without(meet_of(1, 3, 3)), by(96, store(0))}}};
  expect_found(three_readers, {128});
}

TEST(PlantedBugs, OfCopies) {
  const Bug bugs[] = {
      {"no wait", "early read", {copy(0), commit, without(wait), read_slot(0)}},
      {"no group", "early read", {copy(0), without(commit), wait, read_slot(0)}},
      {"wait for the group before",
       "early read",
       {copy(0), commit, copy(0, 16, 64), commit, wait_for_older,
        instead(read_slot(64), read_slot(0)), wait, read_slot(64)}},
      {"copy of another thread",
       "early read|uninitialized",
       {copy(0), commit, wait, without(barrier), read_slot(33)}},
      {"wait after the barrier",
       "early read",
       {copy(0), commit, without(wait), barrier, only_wrong(wait), read_slot(32)}},
      {"refilled",
       "slot in use|early read",
       {copy_piece, commit, wait, barrier, read_slot(32), without(barrier),  //
        copy_piece, commit, wait, barrier, read_slot(32), without(barrier), copy_piece}},
      {"store into a copy", "slot in use", {copy(0), commit, without(wait), write_slot}},
      {"copy into a copy", "slot in use", {copy(0), commit, without(wait), copy(4)}},
      {"store after a copy of another thread",
       "slot in use",
       {by(0, copy(0)), by(0, commit), by(0, wait), without(barrier), by(40, write_one)}},
      {"misaligned copy", "outside", {instead(copy(2), copy(4))}},
      {"half a copy", "outside", {instead(copy(0, 8), copy(0, 16))}}};
  expect_found(bugs);
  EXPECT_EQ(run_planted({copy(0), commit, read_slot(0)}).fault,
            "early read: block 0, thread 0: ld.shared at shared address 1024 (byte 0) of "
            "bytes that a copy of thread 0 will write");
}

TEST(EmulatedCopies, BringMemoryOrZeros) {
  const Kernel even_copy_odd_fill = {
      [] { ptx::cp_async_16(word(4 * me()), in + 4 * me(), me() % 2 == 0 ? 16 : 0); }, commit, wait,
      [] { ptx::st_global_v4(out + 4 * me(), ptx::ld_shared_v4(word(4 * me()))); }};
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    const Outcome o = run_planted(even_copy_odd_fill, false, {}, seed);
    ASSERT_EQ(o.fault, "");
    for (int i = 0; i < 256; ++i) {
      EXPECT_EQ(out[i], i / 4 % 2 == 0 ? static_cast<float>(i) : 0.0f);
    }
    EXPECT_EQ(o.report.count("copies"), 64u);
    EXPECT_EQ(o.report.bytes_read("in"), 32u * 16);
    EXPECT_EQ(o.report.bytes_written("out"), 64u * 16);
  }
}

}  // namespace
}  // namespace emulator::planted

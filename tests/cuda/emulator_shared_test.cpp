/// \file
/// Faults of shared memory and of asynchronous copies into it.

#include <gtest/gtest.h>

#include "emulator/planted.hpp"
#include "mhla/cuda/ptx/barrier.cuh"
#include "mhla/cuda/ptx/copy_async.cuh"
#include "mhla/cuda/ptx/global.cuh"
#include "mhla/cuda/ptx/index.cuh"
#include "mhla/cuda/ptx/matrix.cuh"
#include "mhla/cuda/ptx/shared.cuh"

namespace emulator {
namespace {

namespace ptx = mhla::cuda::ptx;

std::uint32_t word(std::uint32_t i) { return ptx::shared_begin() + 4 * i; }
std::uint32_t me() { return ptx::tid_x(); }

void unwritten(const Arrays& a) {
  if (!a.bug || me() != 7) ptx::st_shared(word(me()), 1);
  ptx::ld_shared(word(me()));
}
void partly_written(const Arrays& a) {
  ptx::st_shared(word(2 * me()), 1);
  if (!a.bug) ptx::st_shared(word(2 * me() + 1), 1);
  ptx::ld_shared_v2(word(2 * me()));
}
void unwritten_row(const Arrays& a) {
  if (!a.bug || me() != 13) ptx::st_shared_v4(word(4 * me()), {});
  ptx::bar_warp_sync();
  ptx::ldmatrix_x4(word(4 * me()));
}
TEST(EmulatorShared, ReadsOfWhatNothingHasWritten) {
  EXPECT_EQ(planted(unwritten, {Kind::kUninitialized}), "");
  EXPECT_EQ(planted(partly_written, {Kind::kUninitialized}), "");
  EXPECT_EQ(planted(unwritten_row, {Kind::kUninitialized}), "");
}

void written_by_first_block(const Arrays& a) {
  if (!a.bug || ptx::ctaid_x() == 0) ptx::st_shared(word(me()), 1);
  ptx::ld_shared(word(me()));
}
TEST(EmulatorShared, EachBlockBeginsWithNothingWritten) {
  EXPECT_EQ(planted(written_by_first_block, {Kind::kUninitialized}, 3), "");
}

// The barrier that a bug drops lies between accesses of different warps, or of one.
void write_then_read(const Arrays& a) {
  ptx::st_shared(word(me()), me());
  if (!a.bug) ptx::bar_sync();
  ptx::ld_shared(word(me() ^ 32));
}
void write_then_read_in_warp(const Arrays& a) {
  ptx::st_shared(word(me()), me());
  if (!a.bug) ptx::bar_warp_sync();
  ptx::ld_shared(word(me() ^ 1));
}
void write_then_load_matrices(const Arrays& a) {
  ptx::st_shared_v4(word(4 * me()), {});
  if (!a.bug) ptx::bar_sync();
  ptx::ldmatrix_x4(word(4 * (me() ^ 32)));
}
void read_then_write(const Arrays& a) {
  ptx::st_shared(word(me()), me());
  ptx::bar_sync();
  ptx::ld_shared(word(me() ^ 32));
  if (!a.bug) ptx::bar_sync();
  ptx::st_shared(word(me()), 0);
}
void load_matrices_then_write(const Arrays& a) {
  ptx::st_shared_v4(word(4 * me()), {});
  ptx::bar_sync();
  ptx::ldmatrix_x2(word(4 * (me() ^ 32)));
  if (!a.bug) ptx::bar_sync();
  ptx::st_shared_v4(word(4 * me()), {});
}
void write_then_write(const Arrays& a) {
  if (me() == 40) ptx::st_shared(word(0), 1);
  if (!a.bug) ptx::bar_sync();
  if (me() == 3) ptx::st_shared(word(0), 2);
}
void all_read_then_one_writes(const Arrays& a) {
  if (me() == 0) ptx::st_shared(word(0), 1);
  ptx::bar_sync();
  ptx::ld_shared(word(0));
  if (!a.bug) ptx::bar_sync();
  if (me() == 5) ptx::st_shared(word(0), 2);
}
// All have read when the one writes, but in time only.
void warp_reads_then_one_writes(const Arrays& a) {
  if (me() == 0) ptx::st_shared(word(0), 1);
  ptx::bar_sync();
  ptx::ld_shared(word(0));
  a.bug ? void(ptx::shfl_bfly(0, 1)) : ptx::bar_warp_sync();
  if (me() == 5) ptx::st_shared(word(0), 2);
}
TEST(EmulatorShared, AccessesThatNoBarrierOrders) {
  EXPECT_EQ(planted(write_then_read, {Kind::kRace, Kind::kUninitialized}), "");
  EXPECT_EQ(planted(write_then_read_in_warp, {Kind::kRace, Kind::kUninitialized}), "");
  EXPECT_EQ(planted(write_then_load_matrices, {Kind::kRace, Kind::kUninitialized}), "");
  EXPECT_EQ(planted(read_then_write, {Kind::kRace}), "");
  EXPECT_EQ(planted(load_matrices_then_write, {Kind::kRace}), "");
  EXPECT_EQ(planted(write_then_write, {Kind::kRace}), "");
  EXPECT_EQ(planted(all_read_then_one_writes, {Kind::kRace}), "");
}

// Warp 0 writes and tells warp 1, which tells warp 2; the bug is that warp 2 does not wait.
void told_in_turn(const Arrays& a) {
  const std::uint32_t warp = me() / 32;
  if (warp == 0) {
    ptx::st_shared(word(me()), me());
    ptx::bar_sync(1, 64);
  } else if (warp == 1) {
    ptx::bar_sync(1, 64);
    ptx::bar_sync(2, 64);
  } else {
    if (!a.bug) ptx::bar_sync(2, 64);
    ptx::ld_shared(word(me() - 64));
    if (a.bug) ptx::bar_sync(2, 64);
  }
}
void shuffled(const Arrays& a) {
  ptx::st_shared(word(me()), me());
  a.bug ? void(ptx::shfl_bfly(0, 1)) : ptx::bar_warp_sync();
  ptx::ld_shared(word(me() ^ 1));
}
TEST(EmulatorShared, WhatOrdersAndWhatDoesNot) {
  EXPECT_EQ(planted<32>(warp_reads_then_one_writes, {Kind::kRace}), "");
  EXPECT_EQ(planted<96>(told_in_turn, {Kind::kRace, Kind::kUninitialized}), "");
  EXPECT_EQ(planted(shuffled, {Kind::kRace}), "");
}

void copy(std::uint32_t slot, const float* from, std::uint32_t bytes = 16) {
  ptx::cp_async_16(word(4 * slot), from, bytes);
}

void copy_without_wait(const Arrays& a) {
  copy(me(), a.in + 4 * me());
  ptx::cp_async_commit_group();
  if (!a.bug) ptx::cp_async_wait_group<0>();
  ptx::ld_shared(word(4 * me()));
}
void copy_without_group(const Arrays& a) {
  copy(me(), a.in + 4 * me());
  if (!a.bug) ptx::cp_async_commit_group();
  ptx::cp_async_wait_group<0>();
  ptx::ld_shared(word(4 * me()));
}
void copy_of_later_group(const Arrays& a) {
  copy(me(), a.in);
  ptx::cp_async_commit_group();
  copy(64 + me(), a.in);
  ptx::cp_async_commit_group();
  ptx::cp_async_wait_group<1>();
  ptx::ld_shared(word(4 * (me() + (a.bug ? 64 : 0))));
}
void copy_of_another_thread(const Arrays& a) {
  copy(me(), a.in + 4 * me());
  ptx::cp_async_commit_group();
  ptx::cp_async_wait_group<0>();
  if (!a.bug) ptx::bar_sync();
  ptx::ld_shared_v4(word(4 * (me() ^ 33)));
}
// The barrier is there, but before the wait.
void wait_after_barrier(const Arrays& a) {
  copy(me(), a.in + 4 * me());
  ptx::cp_async_commit_group();
  if (!a.bug) ptx::cp_async_wait_group<0>();
  ptx::bar_sync();
  if (a.bug) ptx::cp_async_wait_group<0>();
  ptx::ld_shared_v4(word(4 * (me() ^ 32)));
}
TEST(EmulatorShared, EarlyReadsOfCopies) {
  const auto kinds = {Kind::kEarlyRead};
  EXPECT_EQ(planted(copy_without_wait, kinds), "");
  EXPECT_EQ(planted(copy_without_group, kinds), "");
  EXPECT_EQ(planted(copy_of_later_group, kinds), "");
  const auto unless_first = {Kind::kEarlyRead, Kind::kUninitialized};
  EXPECT_EQ(planted(copy_of_another_thread, unless_first), "");
  EXPECT_EQ(planted(wait_after_barrier, kinds), "");
}

// A ring of one slot for each thread, that its neighbour in another warp reads.
void refilled(const Arrays& a) {
  for (std::uint32_t i = 0; i < 3; ++i) {
    copy(me(), a.in + 4 * (me() + 64 * i));
    ptx::cp_async_commit_group();
    ptx::cp_async_wait_group<0>();
    ptx::bar_sync();
    ptx::ld_shared_v4(word(4 * (me() ^ 32)));
    if (!a.bug) ptx::bar_sync();
  }
}
void store_into_copy(const Arrays& a) {
  copy(me(), a.in);
  ptx::cp_async_commit_group();
  if (!a.bug) ptx::cp_async_wait_group<0>();
  ptx::st_shared(word(4 * me() + 3), 0);
}
void copy_into_copy(const Arrays& a) {
  copy(me(), a.in);
  ptx::cp_async_commit_group();
  if (!a.bug) ptx::cp_async_wait_group<0>();
  copy(me(), a.in + 4);
}
void store_after_copy_of_another(const Arrays& a) {
  if (me() == 0) {
    copy(0, a.in);
    ptx::cp_async_commit_group();
    ptx::cp_async_wait_group<0>();
  }
  if (!a.bug) ptx::bar_sync();
  if (me() == 40) ptx::st_shared(word(0), 0);
}
TEST(EmulatorShared, SlotsInUse) {
  EXPECT_EQ(planted(refilled, {Kind::kSlotInUse, Kind::kEarlyRead}), "");
  EXPECT_EQ(planted(store_into_copy, {Kind::kSlotInUse}), "");
  EXPECT_EQ(planted(copy_into_copy, {Kind::kSlotInUse}), "");
  EXPECT_EQ(planted(store_after_copy_of_another, {Kind::kSlotInUse}), "");
}

void beyond(const Arrays& a) { ptx::st_shared(word(1024 - 64 + me() + (a.bug ? 1 : 0)), 0); }
void below(const Arrays& a) {
  if (me() == 9) ptx::st_shared(word(0) - (a.bug ? 4 : 0), 0);
}
void askew(const Arrays& a) { ptx::st_shared_v4(word(4 * me() + (a.bug ? 1 : 0)), {}); }
void askew_row(const Arrays& a) {
  for (std::uint32_t i = 0; i < 5; ++i) ptx::st_shared(word(5 * me() + i), 0);
  ptx::bar_sync();
  ptx::ldmatrix_x4(word(a.bug ? 5 * me() : 4 * me()));
}
void askew_copy(const Arrays& a) { copy(me(), a.in + (a.bug ? 2 : 4)); }
void half_a_copy(const Arrays& a) { copy(me(), a.in, a.bug ? 8 : 16); }
TEST(EmulatorShared, AddressesOutsideOrAskew) {
  EXPECT_EQ(planted(beyond, {Kind::kOutside}), "");
  EXPECT_EQ(planted(below, {Kind::kOutside}), "");
  EXPECT_EQ(planted(askew, {Kind::kOutside}), "");
  EXPECT_EQ(planted(askew_row, {Kind::kOutside}), "");
  EXPECT_EQ(planted(askew_copy, {Kind::kOutside}), "");
  EXPECT_EQ(planted(half_a_copy, {Kind::kOutside}), "");
}

// Even threads copy, odd ones fill with zeros.
void copy_or_zeros(const Arrays& a) {
  copy(me(), a.in + 4 * me(), me() % 2 == 0 ? 16 : 0);
  ptx::cp_async_commit_group();
  ptx::cp_async_wait_group<0>();
  ptx::st_global_v4(a.out + 4 * me(), ptx::ld_shared_v4(word(4 * me())));
}
TEST(EmulatorShared, CopiesBringMemoryOrZeros) {
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    const Outcome o = run_planted(copy_or_zeros, false, seed);
    ASSERT_EQ(o.fault, "");
    for (std::size_t i = 0; i < 256; ++i) {
      EXPECT_EQ(o.out[i], i / 4 % 2 == 0 ? static_cast<float>(i) : 0.0f);
    }
    EXPECT_EQ(o.report.count("copies"), 64u);
    EXPECT_EQ(o.report.bytes_read("in"), 32u * 16);
    EXPECT_EQ(o.report.bytes_written("out"), 64u * 16);
  }
}

TEST(EmulatorShared, MessagesSayWhereAndWhat) {
  const std::string text = run_planted(copy_without_wait, true).fault;
  EXPECT_EQ(text,
            "early read: block 0, thread 0: ld.shared at shared address 1024 (byte 0) of "
            "bytes that a copy of thread 0 will write");
}

}  // namespace
}  // namespace emulator

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
std::uint32_t me() { return ptx::thread_index(); }

template <bool kBug>
void unwritten(const Arrays&) {
  if (!kBug || me() != 7) ptx::store_shared(word(me()), 1);
  ptx::load_shared(word(me()));
}
template <bool kBug>
void partly_written(const Arrays&) {
  ptx::store_shared(word(2 * me()), 1);
  if (!kBug) ptx::store_shared(word(2 * me() + 1), 1);
  ptx::load_shared_2(word(2 * me()));
}
template <bool kBug>
void unwritten_row(const Arrays&) {
  if (!kBug || me() != 13) ptx::store_shared_4(word(4 * me()), {});
  ptx::meet_warp();
  ptx::load_matrices_4(word(4 * me()));
}
TEST(EmulatorShared, ReadsOfWhatNothingHasWritten) {
  EXPECT_EQ((planted<unwritten<true>, unwritten<false>>({Kind::kUninitialized})), "");
  EXPECT_EQ((planted<partly_written<true>, partly_written<false>>({Kind::kUninitialized})), "");
  EXPECT_EQ((planted<unwritten_row<true>, unwritten_row<false>>({Kind::kUninitialized})), "");
}

template <bool kBug>
void written_by_first_block(const Arrays&) {
  if (!kBug || ptx::block_index_x() == 0) ptx::store_shared(word(me()), 1);
  ptx::load_shared(word(me()));
}
TEST(EmulatorShared, EachBlockBeginsWithNothingWritten) {
  EXPECT_EQ((planted<written_by_first_block<true>, written_by_first_block<false>>(
                {Kind::kUninitialized}, {3, 1, 1})),
            "");
}

// The barrier that a bug drops lies between accesses of different warps, or of one.
template <bool kBug>
void write_then_read(const Arrays&) {
  ptx::store_shared(word(me()), me());
  if (!kBug) ptx::meet_block();
  ptx::load_shared(word(me() ^ 32));
}
template <bool kBug>
void write_then_read_in_warp(const Arrays&) {
  ptx::store_shared(word(me()), me());
  if (!kBug) ptx::meet_warp();
  ptx::load_shared(word(me() ^ 1));
}
template <bool kBug>
void write_then_load_matrices(const Arrays&) {
  ptx::store_shared_4(word(4 * me()), {});
  if (!kBug) ptx::meet_block();
  ptx::load_matrices_4(word(4 * (me() ^ 32)));
}
template <bool kBug>
void read_then_write(const Arrays&) {
  ptx::store_shared(word(me()), me());
  ptx::meet_block();
  ptx::load_shared(word(me() ^ 32));
  if (!kBug) ptx::meet_block();
  ptx::store_shared(word(me()), 0);
}
template <bool kBug>
void load_matrices_then_write(const Arrays&) {
  ptx::store_shared_4(word(4 * me()), {});
  ptx::meet_block();
  ptx::load_matrices_2(word(4 * (me() ^ 32)));
  if (!kBug) ptx::meet_block();
  ptx::store_shared_4(word(4 * me()), {});
}
template <bool kBug>
void write_then_write(const Arrays&) {
  if (me() == 40) ptx::store_shared(word(0), 1);
  if (!kBug) ptx::meet_block();
  if (me() == 3) ptx::store_shared(word(0), 2);
}
template <bool kBug>
void all_read_then_one_writes(const Arrays&) {
  if (me() == 0) ptx::store_shared(word(0), 1);
  ptx::meet_block();
  ptx::load_shared(word(0));
  if (!kBug) ptx::meet_block();
  if (me() == 5) ptx::store_shared(word(0), 2);
}
// All have read when the one writes, but in time only.
template <bool kBug>
void warp_reads_then_one_writes(const Arrays&) {
  if (me() == 0) ptx::store_shared(word(0), 1);
  ptx::meet_block();
  ptx::load_shared(word(0));
  kBug ? void(ptx::shuffle_xor(0, 1)) : ptx::meet_warp();
  if (me() == 5) ptx::store_shared(word(0), 2);
}
TEST(EmulatorShared, AccessesThatNoBarrierOrders) {
  EXPECT_EQ(
      (planted<write_then_read<true>, write_then_read<false>>({Kind::kRace, Kind::kUninitialized})),
      "");
  EXPECT_EQ((planted<write_then_read_in_warp<true>, write_then_read_in_warp<false>>(
                {Kind::kRace, Kind::kUninitialized})),
            "");
  EXPECT_EQ((planted<write_then_load_matrices<true>, write_then_load_matrices<false>>(
                {Kind::kRace, Kind::kUninitialized})),
            "");
  EXPECT_EQ((planted<read_then_write<true>, read_then_write<false>>({Kind::kRace})), "");
  EXPECT_EQ(
      (planted<load_matrices_then_write<true>, load_matrices_then_write<false>>({Kind::kRace})),
      "");
  EXPECT_EQ((planted<write_then_write<true>, write_then_write<false>>({Kind::kRace})), "");
  EXPECT_EQ(
      (planted<all_read_then_one_writes<true>, all_read_then_one_writes<false>>({Kind::kRace})),
      "");
}

// Warp 0 writes and tells warp 1, which tells warp 2; the bug is that warp 2 does not wait.
template <bool kBug>
void told_in_turn(const Arrays&) {
  const std::uint32_t warp = me() / 32;
  if (warp == 0) {
    ptx::store_shared(word(me()), me());
    ptx::pass(1, 64);
  } else if (warp == 1) {
    ptx::meet(1, 64);
    ptx::pass(2, 64);
  } else {
    kBug ? ptx::pass(2, 64) : ptx::meet(2, 64);
    ptx::load_shared(word(me() - 64));
  }
}
template <bool kBug>
void shuffled(const Arrays&) {
  ptx::store_shared(word(me()), me());
  kBug ? void(ptx::shuffle_xor(0, 1)) : ptx::meet_warp();
  ptx::load_shared(word(me() ^ 1));
}
TEST(EmulatorShared, WhatOrdersAndWhatDoesNot) {
  EXPECT_EQ((planted<warp_reads_then_one_writes<true>, warp_reads_then_one_writes<false>, 32>(
                {Kind::kRace})),
            "");
  EXPECT_EQ(
      (planted<told_in_turn<true>, told_in_turn<false>, 96>({Kind::kRace, Kind::kUninitialized})),
      "");
  EXPECT_EQ((planted<shuffled<true>, shuffled<false>>({Kind::kRace})), "");
}

void copy(std::uint32_t slot, const float* from, std::uint32_t bytes = 16) {
  ptx::copy_16(word(4 * slot), from, bytes);
}

template <bool kBug>
void copy_without_wait(const Arrays& a) {
  copy(me(), a.in + 4 * me());
  ptx::commit_copies();
  if (!kBug) ptx::wait_copies<0>();
  ptx::load_shared(word(4 * me()));
}
template <bool kBug>
void copy_without_group(const Arrays& a) {
  copy(me(), a.in + 4 * me());
  if (!kBug) ptx::commit_copies();
  ptx::wait_copies<0>();
  ptx::load_shared(word(4 * me()));
}
template <bool kBug>
void copy_of_later_group(const Arrays& a) {
  copy(me(), a.in);
  ptx::commit_copies();
  copy(64 + me(), a.in);
  ptx::commit_copies();
  ptx::wait_copies<1>();
  ptx::load_shared(word(4 * (me() + (kBug ? 64 : 0))));
}
template <bool kBug>
void copy_of_another_thread(const Arrays& a) {
  copy(me(), a.in + 4 * me());
  ptx::commit_copies();
  ptx::wait_copies<0>();
  if (!kBug) ptx::meet_block();
  ptx::load_shared_4(word(4 * (me() ^ 33)));
}
// The barrier is there, but before the wait.
template <bool kBug>
void wait_after_barrier(const Arrays& a) {
  copy(me(), a.in + 4 * me());
  ptx::commit_copies();
  if (!kBug) ptx::wait_copies<0>();
  ptx::meet_block();
  if (kBug) ptx::wait_copies<0>();
  ptx::load_shared_4(word(4 * (me() ^ 32)));
}
TEST(EmulatorShared, EarlyReadsOfCopies) {
  const auto kinds = {Kind::kEarlyRead};
  EXPECT_EQ((planted<copy_without_wait<true>, copy_without_wait<false>>(kinds)), "");
  EXPECT_EQ((planted<copy_without_group<true>, copy_without_group<false>>(kinds)), "");
  EXPECT_EQ((planted<copy_of_later_group<true>, copy_of_later_group<false>>(kinds)), "");
  const auto unless_first = {Kind::kEarlyRead, Kind::kUninitialized};
  EXPECT_EQ((planted<copy_of_another_thread<true>, copy_of_another_thread<false>>(unless_first)),
            "");
  EXPECT_EQ((planted<wait_after_barrier<true>, wait_after_barrier<false>>(kinds)), "");
}

// A ring of one slot for each thread, that its neighbour in another warp reads.
template <bool kBug>
void refilled(const Arrays& a) {
  for (std::uint32_t i = 0; i < 3; ++i) {
    copy(me(), a.in + 4 * (me() + 64 * i));
    ptx::commit_copies();
    ptx::wait_copies<0>();
    ptx::meet_block();
    ptx::load_shared_4(word(4 * (me() ^ 32)));
    if (!kBug) ptx::meet_block();
  }
}
template <bool kBug>
void store_into_copy(const Arrays& a) {
  copy(me(), a.in);
  ptx::commit_copies();
  if (!kBug) ptx::wait_copies<0>();
  ptx::store_shared(word(4 * me() + 3), 0);
}
template <bool kBug>
void copy_into_copy(const Arrays& a) {
  copy(me(), a.in);
  ptx::commit_copies();
  if (!kBug) ptx::wait_copies<0>();
  copy(me(), a.in + 4);
}
template <bool kBug>
void store_after_copy_of_another(const Arrays& a) {
  if (me() == 0) {
    copy(0, a.in);
    ptx::commit_copies();
    ptx::wait_copies<0>();
  }
  if (!kBug) ptx::meet_block();
  if (me() == 40) ptx::store_shared(word(0), 0);
}
TEST(EmulatorShared, SlotsInUse) {
  EXPECT_EQ((planted<refilled<true>, refilled<false>>({Kind::kSlotInUse, Kind::kEarlyRead})), "");
  EXPECT_EQ((planted<store_into_copy<true>, store_into_copy<false>>({Kind::kSlotInUse})), "");
  EXPECT_EQ((planted<copy_into_copy<true>, copy_into_copy<false>>({Kind::kSlotInUse})), "");
  EXPECT_EQ((planted<store_after_copy_of_another<true>, store_after_copy_of_another<false>>(
                {Kind::kSlotInUse})),
            "");
}

template <bool kBug>
void beyond(const Arrays&) {
  ptx::store_shared(word(1024 - 64 + me() + (kBug ? 1 : 0)), 0);
}
template <bool kBug>
void below(const Arrays&) {
  if (me() == 9) ptx::store_shared(word(0) - (kBug ? 4 : 0), 0);
}
template <bool kBug>
void askew(const Arrays&) {
  ptx::store_shared_4(word(4 * me() + (kBug ? 1 : 0)), {});
}
template <bool kBug>
void askew_row(const Arrays&) {
  for (std::uint32_t i = 0; i < 5; ++i) ptx::store_shared(word(5 * me() + i), 0);
  ptx::meet_block();
  ptx::load_matrices_4(word(kBug ? 5 * me() : 4 * me()));
}
template <bool kBug>
void askew_copy(const Arrays& a) {
  copy(me(), a.in + (kBug ? 2 : 4));
}
template <bool kBug>
void half_a_copy(const Arrays& a) {
  copy(me(), a.in, kBug ? 8 : 16);
}
TEST(EmulatorShared, AddressesOutsideOrAskew) {
  EXPECT_EQ((planted<beyond<true>, beyond<false>>({Kind::kOutside})), "");
  EXPECT_EQ((planted<below<true>, below<false>>({Kind::kOutside})), "");
  EXPECT_EQ((planted<askew<true>, askew<false>>({Kind::kOutside})), "");
  EXPECT_EQ((planted<askew_row<true>, askew_row<false>>({Kind::kOutside})), "");
  EXPECT_EQ((planted<askew_copy<true>, askew_copy<false>>({Kind::kOutside})), "");
  EXPECT_EQ((planted<half_a_copy<true>, half_a_copy<false>>({Kind::kOutside})), "");
}

// Even threads copy, odd ones fill with zeros.
void copy_or_zeros(const Arrays& a) {
  copy(me(), a.in + 4 * me(), me() % 2 == 0 ? 16 : 0);
  ptx::commit_copies();
  ptx::wait_copies<0>();
  ptx::store_global_4(a.out + 4 * me(), ptx::load_shared_4(word(4 * me())));
}
TEST(EmulatorShared, CopiesBringMemoryOrZeros) {
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    const Outcome o = run_planted<copy_or_zeros>(seed);
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
  const std::string text = run_planted<copy_without_wait<true>>().fault;
  EXPECT_EQ(text,
            "early read: block (0, 0, 0), thread 0: ld.shared at shared address 1024 (byte 0) of "
            "bytes that a copy of thread 0 will write");
}

}  // namespace
}  // namespace emulator

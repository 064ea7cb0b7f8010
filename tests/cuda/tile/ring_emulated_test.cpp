#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "emulator/async_box.hpp"
#include "mhla/cuda/ptx/tensor_copy.cuh"
#include "mhla/cuda/tile/ring.cuh"
#include "support/cuda/in_block.hpp"
#include "support/cuda/problem.hpp"

namespace mhla::cuda {
namespace {

/// The cursor wraps around, and its parity changes at every wrap.
constexpr bool goes_around(std::uint32_t count) {
  RingCursor at;
  for (std::uint32_t i = 0; i < 5 * count; ++i) {
    if (at.slot != i % count || at.parity != i / count % 2) return false;
    for (std::uint32_t further = 0; further <= count; ++further) {
      const RingCursor there = at.after(further, count);
      if (there.slot != (i + further) % count) return false;
      if (there.parity != (i + further) / count % 2) return false;
    }
    at = at.after(1, count);
  }
  return true;
}
static_assert(goes_around(1) && goes_around(2) && goes_around(3) && goes_around(7));

constexpr Ring kRing{4096, 2048, 1024, 3};
static_assert(kRing.slot({2, 1}) == 4096 + 2 * 2048);
static_assert(kRing.full({2, 0}) == 1024 + 32 && kRing.empty({2, 0}) == 1024 + 40);

/// One warp loads boxes of 8 rows of 64 numbers into a ring; two warps read each of them.
TEST(Ring, ReadersGetEveryBoxInOrder) {
  constexpr std::uint32_t kBoxes = 11, kSlots = 3;
  cuda_test::Array<bfloat16> rows(kBoxes * 8 * 64);
  for (std::int64_t i = 0; i < rows.size(); ++i) rows[i].bits = static_cast<std::uint16_t>(i);
  const TensorMap map = emulator::tensor_map(
      {rows.data(), {64, kBoxes * 8, 1, 1, 1}, {128, 128, 128, 128}, {64, 8, 1, 1, 1}});
  for (std::uint64_t seed = 0; seed < 6; ++seed) {
    std::vector<std::uint32_t> seen(kBoxes * 64);
    emulator::Device device(seed);
    device.track("rows", rows.data(), rows.bytes(), emulator::Access::kRead);
    const auto report = cuda_test::in_block<96>(device, [&](std::uint32_t thread) {
      const std::uint32_t begin = ptx::shared_begin();
      const Ring ring{begin + 1024, 1024, begin, kSlots};
      if (thread == 0) {
        ring.init_barriers(2);
        ptx::fence_mbarrier_init();
      }
      ptx::bar_sync();
      RingCursor at;
      for (std::uint32_t box = 0; box < kBoxes; ++box, at = at.after(1, kSlots)) {
        if (thread >= 64) {
          if (thread == 64) {
            ring.producer_acquire(at, 1024);
            ptx::cp_async_bulk_tensor(ring.slot(at), map,
                                      {{0, static_cast<std::int32_t>(8 * box), 0, 0, 0}},
                                      ring.full(at));
          }
        } else {
          ring.consumer_wait(at);
          seen[box * 64 + thread] = ptx::ld_shared(ring.slot(at) + 4 * thread);
          ring.consumer_release(at, thread % 32);
        }
      }
    });
    EXPECT_EQ(report.bytes_read("rows"), rows.bytes());
    for (std::uint32_t box = 0; box < kBoxes; ++box) {
      for (std::uint32_t i = 0; i < 32; ++i) {  // row 0 lies as it is
        const std::uint32_t first = box * 512 + 2 * i;
        ASSERT_EQ(seen[box * 64 + i], first | (first + 1) << 16) << "box " << box;
      }
    }
  }
}

/// Two warps write a slot together, and a third warp reads it.
TEST(Ring, AReaderGetsWhatAllWritersHaveCommitted) {
  constexpr std::uint32_t kTurns = 7, kSlots = 2;
  for (std::uint64_t seed = 0; seed < 6; ++seed) {
    std::vector<std::uint32_t> seen(kTurns * 64);
    emulator::Device device(seed);
    cuda_test::in_block<96>(device, [&](std::uint32_t thread) {
      const std::uint32_t begin = ptx::shared_begin();
      const Ring ring{begin + 1024, 1024, begin, kSlots};
      if (thread == 0) {
        ring.init_barriers(1, 2);
        ptx::fence_mbarrier_init();
      }
      ptx::bar_sync();
      RingCursor at;
      for (std::uint32_t turn = 0; turn < kTurns; ++turn, at = at.after(1, kSlots)) {
        if (thread < 64) {
          ring.producer_wait(at);
          ptx::st_shared(ring.slot(at) + 4 * thread, 64 * turn + thread);
          ring.producer_commit(at, thread % 32);
        } else {
          ring.consumer_wait(at);
          for (std::uint32_t i = thread - 64; i < 64; i += 32) {
            seen[turn * 64 + i] = ptx::ld_shared(ring.slot(at) + 4 * i);
          }
          ring.consumer_release(at, thread % 32);
        }
      }
    });
    for (std::uint32_t i = 0; i < kTurns * 64; ++i) ASSERT_EQ(seen[i], i);
  }
}

/// Loads boxes of 16 rows of kColumns numbers, one panel into each of three slots, and reads the
/// rows from 8 on.
/// \param shift  bytes from an aligned address to the ring
template <int kColumns>
void expect_panels_in_slots(std::uint32_t shift) {
  using Box = RingBox<kColumns>;
  constexpr std::int32_t kBoxes = 4;
  constexpr std::uint32_t kSlots = 3, kSlotBytes = 16 * Box::kRowBytes;
  cuda_test::Array<bfloat16> rows(kBoxes * 16 * kColumns);
  for (std::int64_t i = 0; i < rows.size(); ++i) rows[i].bits = static_cast<std::uint16_t>(i);
  const auto columns = static_cast<std::uint32_t>(box_columns(kColumns));
  const TensorMap map =
      emulator::tensor_map({rows.data(),
                            {kColumns, kBoxes * 16, 1, 1, 1},
                            {2 * kColumns, 2 * kColumns, 2 * kColumns, 2 * kColumns},
                            {columns, 16, 1, 1, 1}});
  emulator::Device device(1);
  device.track("rows", rows.data(), rows.bytes(), emulator::Access::kRead);
  cuda_test::in_block<32>(device, [&](std::uint32_t thread) {
    const std::uint32_t begin = ptx::shared_begin();
    const Ring ring{begin + 1024 + shift, kSlotBytes, begin, kSlots};
    if (thread == 0) {
      ring.init_barriers(1);
      ptx::fence_mbarrier_init();
    }
    ptx::bar_sync();
    RingCursor at;
    for (std::int32_t box = 0; box < kBoxes; ++box, at = at.after(Box::kPanels, kSlots)) {
      for (int panel = 0; thread == 0 && panel < Box::kPanels; ++panel) {
        const RingCursor cursor = at.after(static_cast<std::uint32_t>(panel), kSlots);
        ring.producer_acquire(cursor, kSlotBytes);
        ptx::cp_async_bulk_tensor(ring.slot(cursor), map,
                                  {{static_cast<std::int32_t>(columns) * panel, 16 * box, 0, 0, 0}},
                                  ring.full(cursor));
      }
      ring.consumer_wait<Box::kPanels>(at);
      const Box lower(ring, at, 8);
      for (std::uint32_t i = thread; i < 8 * Box::kPieces; i += 32) {
        const std::uint32_t row = i / Box::kPieces, piece = i % Box::kPieces;
        const std::uint32_t number =
            (16 * static_cast<std::uint32_t>(box) + 8 + row) * kColumns + 8 * piece;
        EXPECT_EQ(ptx::ld_shared(lower.piece(row, piece)), number | (number + 1) << 16);
      }
      ring.consumer_release<Box::kPanels>(at, thread);
    }
  });
}

TEST(RingBox, FindsTheRowsOfPanelsInSlots) {
  expect_panels_in_slots<64>(0);
  expect_panels_in_slots<72>(0);
  expect_panels_in_slots<128>(0);
}

TEST(RingBox, SwizzledPanelsBeginAtMultiplesOf1024OthersOf128) {
  expect_panels_in_slots<72>(128);
  EXPECT_THROW(expect_panels_in_slots<72>(64), emulator::Fault);
  EXPECT_THROW(expect_panels_in_slots<64>(128), emulator::Fault);
}

}  // namespace
}  // namespace mhla::cuda

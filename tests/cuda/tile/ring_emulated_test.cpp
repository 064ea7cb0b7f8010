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

/// The cursor goes around, and its parity changes at each begin.
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

}  // namespace
}  // namespace mhla::cuda

#include "mhla/layer/graph_plan.hpp"

#include <gtest/gtest.h>

#include <array>

namespace mhla::test {
namespace {

TEST(SharedMemory, IsSharedByValuesThatNoStepNeedsTogether) {
  detail::SharedMemory memory;
  std::array<Index, 9> before{};
  memory.add(before[0], 32, false, 0, 2);
  memory.add(before[1], 32, false, 2, 3);  // needed with the first
  memory.add(before[2], 16, false, 3, 6);  // in the place of the first
  memory.add(before[3], 16, true, 4, 4);   // a row per item
  memory.add(before[4], 48, false, 5, 6);  // after the one before it, over the second
  memory.add(before[5], 16, false, 6, 7);
  memory.add(before[6], 16, true, 5, 9);
  memory.add(before[7], 16, false, 7, 9);
  memory.add(before[8], 72, false, 7, 8);  // too wide for the place between two others
  memory.place();
  EXPECT_EQ(before, (std::array<Index, 9>{0, 32, 0, 0, 16, 64, 0, 0, 80}));
  EXPECT_EQ(memory.numbers_at(1), 32);
  EXPECT_EQ(memory.numbers_at(2), 64);
  EXPECT_EQ(memory.numbers_at(4), 16);
  EXPECT_EQ(memory.numbers_at(6), 64 + 16);
  EXPECT_EQ(memory.numbers_at(8), 80 + 72);
  EXPECT_EQ(memory.numbers_at(9), 16);
  EXPECT_EQ(memory.numbers_at(10), 0);
  const auto bytes = detail::counted_bytes([&](detail::Arena& arena) {
    memory.take<float>("test", arena, {.rows = 10, .batch = 2});
    return 0;
  });
  EXPECT_EQ(bytes, (10 * (80 + 72) + 2 * 16) * sizeof(float) + 64);
}

}  // namespace
}  // namespace mhla::test

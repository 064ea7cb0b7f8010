#include "mhla/cuda/kernel/occupancy.cuh"

#include <gtest/gtest.h>

namespace mhla::cuda {
namespace {

TEST(Occupancy, RegistersComeInUnitsOfEightPerThread) {
  EXPECT_EQ(register_limit(128, 6), 80);  // 85
  EXPECT_EQ(register_limit(160, 4), 96);  // 102
  EXPECT_EQ(register_limit(128, 2), 255);
}

TEST(Occupancy, BlocksNeedRegistersAndSharedMemory) {
  EXPECT_EQ(resident_blocks(128, 128, 0), 4);
  EXPECT_EQ(resident_blocks(128, 129, 0), 3);
  EXPECT_EQ(resident_blocks(128, 128, 83968 - 1024), 2);  // 163 KB and 1 KB in all
  EXPECT_EQ(resident_blocks(128, 128, 83968 - 1023), 1);
  EXPECT_EQ(resident_blocks(512, 255, 0), 1);
  EXPECT_EQ(resident_blocks(192, 96, 0), 3);  // 18 warps: a scheduler has five
  EXPECT_EQ(resident_blocks(192, 97, 0), 2);
  EXPECT_EQ(resident_blocks(64, 8, 0), 32);
}

}  // namespace
}  // namespace mhla::cuda

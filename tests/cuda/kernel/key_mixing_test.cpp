#include "mhla/cuda/kernel/key_mixing.cuh"

#include <gtest/gtest.h>

#include <cstdint>
#include <set>

namespace mhla::cuda {
namespace {

// Keys p, p + 1, p + 8 and p + 9 of each 16, which one thread multiplies, are adjacent.
TEST(KeyMixing, HasAPlaceForEachKeyAndTheFourOfAThreadInOne) {
  constexpr KeyMixing kTable{1024, 128};
  std::set<std::uint32_t> places;
  for (int block = 0; block < 3; ++block) {
    const std::uint32_t row = kTable.row(block);
    EXPECT_EQ(row, 1024u + static_cast<std::uint32_t>(block) * (4 * 128 + 64));
    for (int key = 0; key < 128; ++key) {
      EXPECT_TRUE(places.insert(kTable.at(block, key)).second);
      EXPECT_LT(kTable.at(block, key), row + 4 * 128);
    }
    for (int first = 0; first < 128; first += 16) {
      for (int p = 0; p < 8; p += 2) {
        const std::uint32_t at = kTable.at(block, first + p);
        EXPECT_EQ(at, row + static_cast<std::uint32_t>(4 * first + 8 * p));
        EXPECT_EQ(kTable.at(block, first + p + 1), at + 4);
        EXPECT_EQ(kTable.at(block, first + p + 8), at + 8);
        EXPECT_EQ(kTable.at(block, first + p + 9), at + 12);
      }
    }
  }
}

}  // namespace
}  // namespace mhla::cuda

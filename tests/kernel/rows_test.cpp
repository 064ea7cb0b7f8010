#include "mhla/kernel/rows.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "support/outputs.hpp"

namespace mhla {
namespace {

using detail::Rows;

std::uintptr_t address(const void* p) { return reinterpret_cast<std::uintptr_t>(p); }

TEST(Rows, OfScratchStartOnCacheLinesOfTheirOwn) {
  for (Index cols = 0; cols <= 40; ++cols) {
    test::Memory memory(100000);
    const Rows<float> rows("f", memory.arena, 5, cols);
    const Rows<double> wide("f", memory.arena, 5, cols);
    EXPECT_GE(rows.stride, cols);
    EXPECT_GE(wide.stride, cols);
    for (Index r = 0; r < 5; ++r) {
      EXPECT_EQ(address(rows.row(r)) % 64, 0u);
      EXPECT_EQ(address(wide.row(r)) % 64, 0u);
    }
    EXPECT_GE(address(wide.row(0)), address(rows.row(4) + cols));
  }
}

TEST(Rows, PartsOfThemAreTheSameRows) {
  std::vector<float> numbers(60);
  const Index order[] = {3, 0, 4, 1};
  const Rows<float> dense(numbers.data(), 12), tokens(numbers.data(), 12, order);
  for (Index r = 0; r < 3; ++r) {
    EXPECT_EQ(dense.row(r), numbers.data() + 12 * r);
    EXPECT_EQ(tokens.row(r), numbers.data() + 12 * order[r]);
    for (const Rows<float>& rows : {dense, tokens}) {
      EXPECT_EQ(rows.below(1).row(r), rows.row(r + 1));
      EXPECT_EQ(rows.right_of(5).row(r), rows.row(r) + 5);
      EXPECT_EQ(rows.below(1).right_of(5).row(r), rows.row(r + 1) + 5);
      EXPECT_EQ(Rows<const float>(rows).row(r), rows.row(r));
    }
    EXPECT_EQ(dense.matrix(4, 7).row(r), dense.row(r));
  }
}

}  // namespace
}  // namespace mhla

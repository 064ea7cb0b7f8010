#include "mhla/core/call.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace mhla {
namespace {

TEST(Call, ByDefaultAllocatesKeepsNothingAndRunsOnTheCallingThread) {
  const Call call;
  EXPECT_TRUE(call.workspace.empty());
  EXPECT_TRUE(call.kept.empty());
  EXPECT_EQ(call.executor.workers(), 1);
  std::vector<Index> order;
  call.executor.for_each(3, [&](Index index, Index) { order.push_back(index); });
  EXPECT_EQ(order, (std::vector<Index>{0, 1, 2}));
}

TEST(Call, OptionsAreGivenByName) {
  std::vector<std::byte> memory(10), kept(20);
  ThreadPool pool(3);
  const Call call{.workspace = memory, .executor = pool, .kept = kept};
  EXPECT_EQ(call.workspace.data(), memory.data());
  EXPECT_EQ(call.workspace.size(), 10u);
  EXPECT_EQ(call.kept.data(), kept.data());
  EXPECT_EQ(call.kept.size(), 20u);
  EXPECT_EQ(call.executor.workers(), 3);
}

}  // namespace
}  // namespace mhla

// The order of the items of joined stages: what an item waits for has lower numbers.

#include "mhla/cuda/kernel/joined_stages_sm80.cuh"

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <tuple>

#include "mhla/cuda/kernel/stage_counters.cuh"

namespace {

using mhla::cuda::StageCounters;
using mhla::cuda::StageOrder;

StageOrder order_of(std::uint32_t summaries, std::uint32_t mixtures, std::uint32_t outputs,
                    std::int32_t pairs, std::int32_t at_once) {
  StageOrder order{summaries, mixtures, outputs, pairs, 0};
  order.lag = StageOrder::least_lag(order, at_once);
  return order;
}

TEST(StageOrder, HasEveryItemOnceAfterThePreviousStage) {
  for (const auto& [pairs, at_once] :
       {std::pair<std::int32_t, std::int32_t>{1, 500}, {3, 1}, {3, 40}, {9, 40}, {20, 100}}) {
    const StageOrder order = order_of(5, 7, 3, pairs, at_once);
    std::map<std::tuple<int, std::int32_t, std::uint32_t>, int> found;
    std::map<std::pair<int, std::int32_t>, std::uint32_t> ended;
    for (std::uint32_t number = 0; number < order.count(); ++number) {
      const StageOrder::Item item = order.item(number);
      if (!order.has(item)) continue;
      EXPECT_EQ(++found[std::tuple(item.stage, item.pair, item.index)], 1);
      if (item.stage > 0) {
        const auto before = std::pair(item.stage - 1, item.pair);
        EXPECT_EQ(ended[before], item.stage == 1 ? 5u : 7u) << number;
      }
      ++ended[std::pair(item.stage, item.pair)];
    }
    EXPECT_EQ(found.size(), 15u * static_cast<unsigned>(pairs));
  }
}

TEST(StageOrder, ItemsThatRunAtATimeLieBetweenStages) {
  for (const std::int32_t at_once : {1, 3, 4, 17, 18, 19, 300}) {
    const StageOrder order = order_of(5, 7, 3, 1000, at_once);
    std::map<int, std::uint32_t> last;
    for (std::uint32_t number = 0; number < order.count(); ++number) {
      const StageOrder::Item item = order.item(number);
      if (item.pair != 0) continue;
      if (item.stage > 0 && item.index == 0) {
        EXPECT_GT(number, last[item.stage - 1] + static_cast<std::uint32_t>(at_once));
      }
      last[item.stage] = number;
    }
  }
  EXPECT_EQ(order_of(5, 7, 3, 1000, 3).lag, 1);
  EXPECT_EQ(order_of(5, 7, 3, 1000, 4).lag, 2);
  EXPECT_EQ(order_of(5, 7, 3, 1000, 18).lag, 2);
  EXPECT_EQ(order_of(5, 7, 3, 1000, 19).lag, 3);
  EXPECT_EQ(order_of(5, 7, 3, 2, 300).lag, 2);
}

TEST(StageCounters, AreApart) {
  std::uint32_t counters[7] = {};
  const StageCounters of{counters, 3};
  EXPECT_EQ(of.count(), 7);
  EXPECT_EQ(of.taken(), counters);
  EXPECT_EQ(of.ended(0, 0), counters + 1);
  EXPECT_EQ(of.ended(0, 2), counters + 3);
  EXPECT_EQ(of.ended(1, 0), counters + 4);
  EXPECT_EQ(of.ended(1, 2), counters + 6);
}

}  // namespace

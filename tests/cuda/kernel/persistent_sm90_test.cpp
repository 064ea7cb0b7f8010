// Tests of the parts that persistent kernels of sm_90a share: roles of threads and the order of
// items.

#include "mhla/cuda/kernel/persistent_sm90.cuh"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "emulator/device.hpp"
#include "mhla/cuda/ptx/index.cuh"
#include "mhla/cuda/ptx/shared.cuh"

namespace mhla::cuda {
namespace {

struct Seen {
  std::uint32_t thread_block;
  std::int32_t pair, block, batch, head, column;
};

/// A kernel whose thread blocks record their items and whose threads record their roles.
template <int D, bool kMovesRegisters>
struct Staying {
  struct Params {
    TokenBlocks blocks;
    std::int32_t pairs, heads;
    std::vector<Seen>* produced;
    std::vector<Seen>* consumed;  // recorded by thread 0
    std::vector<int>* consumers;  // calls of each thread
  };
  using Config = PersistentConfig<D, D, kMovesRegisters>;
  static constexpr int kThreads = Config::kThreads, kSharedBytes = Config::kSharedBytes;

  void operator()(const Params& p) const {
    const std::uint32_t begin = ptx::shared_begin();
    const Ring ring{begin, 1024, Config::barriers(begin), 2};
    const auto note = [&](std::vector<Seen>& list) {
      for_items(p.blocks, p.pairs, p.heads, [&](const Item& i) {
        list.push_back(
            {ptx::ctaid_x(), i.pair, i.block, i.head.batch, i.head.head, i.origin.column});
      });
    };
    run_persistent<Config>(
        [&](std::uint32_t thread) { ptx::st_shared(begin + 4 * thread, thread); },
        [&] {
          note(*p.produced);
          EXPECT_EQ(ptx::ld_shared(begin), 0u);
        },
        [&](std::uint32_t thread) {
          ++(*p.consumers)[thread];
          if (thread == 0) note(*p.consumed);
          EXPECT_EQ(ptx::ld_shared(begin + 4 * (kThreads - 1)), kThreads - 1u);
        },
        ring);
  }
};

template <int D, bool kMovesRegisters>
void expect_all_items(std::int32_t multiprocessors) {
  using Kernel = Staying<D, kMovesRegisters>;
  const TokenBlocks blocks(1, 1, 50, 1, 1, 10);  // 5 blocks
  const std::int32_t pairs = 6, heads = 3;
  std::vector<Seen> produced, consumed;
  std::vector<int> consumers(Kernel::kThreads);
  const unsigned grid =
      persistent_grid<typename Kernel::Config>(pairs * blocks.blocks(), multiprocessors);
  emulator::Device device(3);
  device.launch<Kernel>(grid, {blocks, pairs, heads, &produced, &consumed, &consumers});
  for (const auto& list : {produced, consumed}) {
    ASSERT_EQ(list.size(), 30u);
    std::vector<int> times(30);
    for (const Seen& s : list) {
      EXPECT_EQ(s.batch, s.pair / heads);
      EXPECT_EQ(s.head, s.pair % heads);
      EXPECT_EQ(s.column, 10 * s.block);
      const std::int32_t number = (s.batch * blocks.blocks() + s.block) * heads + s.head;
      EXPECT_EQ(static_cast<std::uint32_t>(number) % grid, s.thread_block);
      ++times[static_cast<std::size_t>(number)];
    }
    for (const int n : times) EXPECT_EQ(n, 1);
  }
  for (int t = 0; t < Kernel::kThreads; ++t) {
    const bool consumes = t < 32 * static_cast<int>(Kernel::Config::kConsumers);
    EXPECT_EQ(consumers[static_cast<std::size_t>(t)], consumes ? static_cast<int>(grid) : 0);
  }
}

TEST(PersistentSm90, EveryItemIsTakenOnceByBatchItemBlockAndHead) {
  expect_all_items<64, false>(2);
  expect_all_items<64, false>(100);  // more thread blocks than items
  expect_all_items<128, true>(4);
}

}  // namespace
}  // namespace mhla::cuda

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "mhla/cuda/tile/token_list.cuh"
#include "mhla/cuda/tile/token_rows.cuh"
#include "support/cuda/in_block.hpp"

namespace mhla::cuda {
namespace {

/// Every thread reads every entry from `first` on.
template <int kThreads, int kRows, class Tokens>
void expect_listed(const Tokens& tokens, std::int32_t first) {
  std::vector<std::int32_t> read(static_cast<std::size_t>(kThreads * (kRows - first)));
  emulator::Device device(3);
  cuda_test::in_block<kThreads>(device, [&](std::uint32_t thread) {
    const std::uint32_t begin = ptx::shared_begin() + 64;
    list_tokens<kThreads, kRows>(begin, tokens, thread);
    ptx::meet_block();
    const ListedTokens listed{begin, first};
    for (std::int32_t row = 0; row < kRows - first; ++row) {
      read[static_cast<std::size_t>(row * kThreads) + thread] = listed(row);
    }
  });
  for (std::size_t i = 0; i < read.size(); ++i) {
    ASSERT_EQ(read[i], tokens(first + static_cast<std::int32_t>(i / kThreads))) << i;
  }
}

TEST(TokenList, HoldsTheTokenOfEveryRow) {
  const TokenBlocks blocks(3, 7, 8, 2, 3, 5);
  for (std::int32_t b = 0; b < blocks.blocks(); ++b) {
    expect_listed<64, 32>(BlockTokens{blocks, blocks.origin(b), 0}, 0);
    expect_listed<32, 48>(BlockTokens{blocks, blocks.origin(b), 3}, 16);
  }
  expect_listed<128, 210>(ConsecutiveTokens{2000000000, 2000000100}, 0);
}

}  // namespace
}  // namespace mhla::cuda

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "mhla/cuda/tile/copied_features.cuh"
#include "mhla/cuda/tile/shared_tile.cuh"
#include "mhla/cuda/tile/token_rows.cuh"
#include "support/cuda/in_block.hpp"
#include "support/cuda/problem.hpp"

namespace mhla::cuda {
namespace {

/// Rows are copied and mapped, each piece by the thread that copied it; all read them after one
/// barrier. Rows without a token are phi(0).
template <class T, class Tile, int kThreads>
void expect_features(const FeatureMap& map) {
  test::Random rng(5);
  constexpr std::int32_t kTokens = Tile::kRows - 3;
  cuda_test::Array<T> numbers(std::int64_t{kTokens} * Tile::kColumns);
  for (std::int64_t i = 0; i < numbers.size(); ++i) {
    numbers[i] = cuda_test::from_double<T>(2 * rng.normal());
  }
  std::vector<std::uint32_t> seen(Tile::kRows * Tile::kColumns / 2);
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    emulator::Device device(seed);
    device.track("rows", numbers.data(), numbers.bytes(), emulator::Access::kRead);
    const auto report = cuda_test::in_block<kThreads>(device, [&](std::uint32_t thread) {
      const Tile tile{ptx::shared_begin()};
      copy_rows<kThreads>(tile, numbers.raw(), Tile::kColumns * 2, ConsecutiveTokens{0, kTokens},
                          thread);
      ptx::commit_copies();
      ptx::wait_copies<0>();
      apply_to_copied<T, kThreads>(map, tile, thread);
      ptx::meet_block();
      for (std::uint32_t i = thread; i < seen.size(); i += kThreads) {
        const std::uint32_t row = i / (Tile::kColumns / 2), column = i % (Tile::kColumns / 2) * 2;
        seen[i] = ptx::load_shared(tile.piece(row, column / 8) + column % 8 * 2);
      }
    });
    EXPECT_EQ(report.bank_conflicts, 0u);
    for (std::uint32_t i = 0; i < seen.size(); ++i) {
      const auto bits = [&](std::int64_t at) {
        return at < numbers.size() ? std::uint32_t{numbers[at].bits} : 0u;
      };
      std::uint32_t pair[1] = {bits(2 * i) | bits(2 * i + 1) << 16};
      apply<T>(map, pair);
      ASSERT_EQ(seen[i], pair[0]) << i;
    }
  }
}

TEST(CopiedFeatures, AreThoseOfEveryRow) {
  expect_features<bfloat16, SharedTile<32, 64>, 128>(FeatureMap::relu(0.5f));
  expect_features<half, SharedTile<32, 72>, 96>(FeatureMap::elu_plus_one());
  expect_features<bfloat16, SharedTile<16, 72>, 160>(FeatureMap::relu());
  expect_features<half, SharedTile<16, 128>, 64>(FeatureMap::identity());
}

}  // namespace
}  // namespace mhla::cuda

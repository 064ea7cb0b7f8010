// Tensor stores from a tile that is written again: the right kernel stores the numbers that lie in
// the tensor, and each planted bug is found.

#include <gtest/gtest.h>

#include <cstdint>

#include "cuda/emulator/steps.hpp"
#include "emulator/whole_numbers.hpp"
#include "mhla/cuda/ptx/tensor_copy.cuh"

namespace emulator::planted {
namespace {

using mhla::cuda::TensorMap;

/// Writes rows of a tile [16][64] of whole numbers, piece j of row r in place j ^ (r % 8).
Step write_tile(int first, int rows = 16) {
  return [=] {
    const int column = static_cast<int>(2 * me());
    for (int row = 0; row < rows; ++row) {
      const std::uint32_t piece = (me() / 4) ^ static_cast<std::uint32_t>(row % 8);
      const std::uint32_t pair = bits(number(first + row, column)) |
                                 std::uint32_t{bits(number(first + row, column + 1))} << 16;
      ptx::st_shared(word(static_cast<std::uint32_t>(row) * 32 + piece * 4 + me() % 4), pair);
    }
  };
}
const Step fence = [] { ptx::fence_proxy_async(); };
Step store_tile(const TensorMap& map, int column, int row, std::uint32_t from = 0) {
  return by(0, [=] {
    ptx::cp_async_bulk_tensor_store(map, {{column, row, 0, 0, 0}}, word(from),
                                    ptx::createpolicy_evict_first());
  });
}
const Step bulk_commit = by(0, [] { ptx::cp_async_bulk_commit_group(); });
const Step bulk_wait = [] { ptx::cp_async_bulk_wait_group_read<0>(); };

TEST(EmulatedTensorStore, WritesWhatLiesInTheTensor) {
  constexpr int kRows = 40, kColumns = 80, kFirst = 32;
  Numbers to(std::size_t{kRows} * kColumns);
  const TensorMap map = tensor_map(matrix_box(to, kColumns, 16));
  Kernel kernel;
  for (int row = 0; row < 48; row += 16) {
    const Kernel tile = {
        write_tile(row),  fence,       warp_barrier, store_tile(map, kFirst, row), bulk_commit,
        by(0, bulk_wait), warp_barrier};
    kernel.insert(kernel.end(), tile.begin(), tile.end());
  }
  const Shape shape{.threads = 32, .track = [&](Device& device) {
                      device.track("to", to.data(), to.bytes(), Access::kReadWrite);
                    }};
  for (std::uint64_t seed = 0; seed < kSchedules; ++seed) {
    const Outcome o = run_planted(kernel, false, shape, seed);
    ASSERT_EQ(o.fault, "");
    EXPECT_EQ(o.report.bytes_written("to"), 2u * kRows * 48);
    EXPECT_EQ(o.report.count("tensor stores"), 3u);
    for (int row = 0; row < kRows; ++row) {
      for (int column = 0; column < kColumns; ++column) {
        const int from = column - kFirst;
        ASSERT_EQ(to[static_cast<std::size_t>(row * kColumns + column)],
                  from < 0 ? 0 : bits(number(row, from)));
      }
    }
  }
}

TEST(PlantedBugs, OfTensorStores) {
  const TensorMap map =
      tensor_map({out, {64, 32, 1, 1, 1}, {128, 4096, 4096, 4096}, {64, 16, 1, 1, 1}});
  const Kernel kernel = {{"write", write_tile(0)},
                         {"fence", fence},
                         {"meet", warp_barrier},
                         {"store", store_tile(map, 0, 0)},
                         {"commit", bulk_commit},
                         {"wait", by(0, bulk_wait)},
                         {"meet after", warp_barrier},
                         {"", write_tile(16)},
                         {"", fence},
                         {"", warp_barrier},
                         {"second store", store_tile(map, 0, 16)},
                         {"", bulk_commit},
                         {"last wait", by(0, bulk_wait)}};
  const Step without_policy = by(0, [=] {
    ptx::cp_async_bulk_tensor_store(map, {{0, 0, 0, 0, 0}}, word(0), 1);
  });
  const Bug bugs[] = {
      {"no fence", "proxy", changed(kernel, "fence")},
      {"fence of the storing thread alone", "proxy", changed(kernel, "fence", by(0, fence))},
      {"writers do not meet", "race|uninitialized|proxy|slot in use", changed(kernel, "meet")},
      {"no wait", "slot in use", changed(kernel, "wait")},
      {"wait of another thread", "slot in use", changed(kernel, "wait", by(1, bulk_wait))},
      {"written during the wait", "slot in use|race", changed(kernel, "meet after")},
      {"no group", "slot in use", changed(kernel, "commit")},
      {"thread ends before its store", "slot in use", changed(kernel, "last wait")},
      {"unwritten row", "uninitialized", changed(kernel, "write", write_tile(0, 15))},
      {"two stores to one place", "race in device memory",
       changed(kernel, "second store", store_tile(map, 0, 0))},
      {"read of what is stored", "race in device memory",
       inserted(kernel, "meet after", by(0, [] { ptx::ld_global_f32(out); }))},
      {"wrong place", "outside", changed(kernel, "store", store_tile(map, 0, 0, 32))},
      {"no policy", "outside", changed(kernel, "store", without_policy)}};
  expect_found(bugs, {.threads = 32});
}

}  // namespace
}  // namespace emulator::planted

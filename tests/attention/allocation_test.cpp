// Every call of malloc in this program is counted; forms that got a workspace must make none.

#include <gtest/gtest.h>

#include "mhla/mhla.hpp"
#include "support/allocations.hpp"
#include "support/reference.hpp"

namespace mhla::test {
namespace {

#ifdef MHLA_TEST_COUNTS_MALLOC

TEST(Allocation, TheCounterCounts) {
  EXPECT_GE(allocations([] { Matrix<float>::Ones(100, 100).eval(); }), 1);
}

TEST(Allocation, FormsWithAWorkspaceAllocateNothing) {
  Random rng(1);
  const Matrix<float> x = rng.matrix<float>(200, 24);
  Matrix<float> out(200, 24);
  const Contiguous blocks(200, 16);
  const Grid grid(GridShape(10, 20), GridShape(5, 5));
  const auto mixing = locality<float>(13);
  const auto grid_mixing = locality<float>(grid.block_grid());
  const Operator op;
  const Inputs<float> in{.q = x, .k = x, .v = x};
  ThreadPool pool(3);
  std::vector<std::byte> memory(std::size_t{1} << 24);
  const Operator released{Relu{}, Relu{}, CrossQuery{}};
  EXPECT_EQ(allocations([&] { bidirectional(in, blocks, blocks, mixing, op, out, memory); }), 0);
  EXPECT_EQ(allocations([&] { bidirectional(in, blocks, blocks, mixing, op, out, memory, pool); }),
            0);
  EXPECT_EQ(allocations([&] { bidirectional(in, grid, grid, grid_mixing, released, out, memory); }),
            0);
  EXPECT_EQ(allocations([&] { causal(in, blocks, mixing, op, out, memory); }), 0);
  EXPECT_EQ(allocations([&] { causal(in, blocks, mixing, op, out, memory, pool); }), 0);
  EXPECT_EQ(allocations([&] { linear_bidirectional(in, op, out, memory); }), 0);
  EXPECT_EQ(allocations([&] { linear_causal(in, op, out, memory); }), 0);
  EXPECT_EQ(allocations([&] { softmax_bidirectional(in, out, {}, memory); }), 0);
  EXPECT_EQ(allocations([&] { softmax_causal(in, out, {}, memory, pool); }), 0);
}

TEST(Allocation, BatchesAndStreamsWithAWorkspaceAllocateNothing) {
  std::vector<float> data(2 * 60 * 3 * 8, 0.5f), result(data);
  const auto view = bnhd<const float>(data.data(), 2, 60, 3, 8);
  const auto out = bnhd(result.data(), 2, 60, 3, 8);
  const BatchInputs<float> in{.q = view, .k = view, .v = view};
  const auto mixing = uniform_causal<float>(100);
  std::vector<std::byte> memory(std::size_t{1} << 24);
  ThreadPool pool(2), wide(9);
  const ContiguousBlocks blocks{16};
  for (ThreadPool* threads : {&pool, &wide}) {
    EXPECT_EQ(allocations([&] {
                bidirectional(in, blocks, blocks, mixing, Operator{}, out, memory, *threads);
              }),
              0);
    EXPECT_EQ(allocations([&] { causal(in, blocks, mixing, Operator{}, out, memory, *threads); }),
              0);
    EXPECT_EQ(allocations([&] { softmax_causal(in, out, {}, memory, *threads); }), 0);
    EXPECT_EQ(allocations([&] { linear_bidirectional(in, Operator{}, out, memory, *threads); }), 0);
  }
  const Streaming<float> stream({.width = 8, .values = 8, .block_length = 16},
                                uniform_causal<float>(100));
  std::vector<StreamingState<float>> states(6, stream.start());
  EXPECT_EQ(allocations([&] { append(stream, std::span(states), in, out, memory, pool); }), 0);
}

#else

TEST(Allocation, FormsWithAWorkspaceAllocateNothing) {
  GTEST_SKIP() << "malloc can be counted with glibc and without sanitizers only";
}

#endif

}  // namespace
}  // namespace mhla::test

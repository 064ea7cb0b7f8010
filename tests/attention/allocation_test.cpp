// Every call of malloc in this program is counted; forms with a workspace must make none.

#include <gtest/gtest.h>

#include <functional>

#include "mhla/mhla.hpp"
#include "support/allocations.hpp"

namespace mhla::test {
namespace {

#ifdef MHLA_TEST_COUNTS_MALLOC

TEST(Allocation, TheCounterCounts) {
  EXPECT_GE(allocations([] { Matrix<float>::Ones(100, 100).eval(); }), 1);
}

const Operator kReleased{Relu{}, Relu{}, CrossQuery{}};

TEST(Allocation, FormsWithAWorkspaceAllocateNothing) {
  const Matrix<float> x = Matrix<float>::Constant(200, 24, 0.5f);
  const std::vector<float> data(200 * 24, 0.5f);
  Matrix<float> out(200, 24);
  Tensor<float> outs({2, 50, 2, 24});
  const Inputs<float> head = inputs(x, x, x);
  const BatchInputs<float> batch = inputs(data.data(), data.data(), data.data(), {2, 50, 2, 24});
  const Contiguous blocks(200, 16);
  const ContiguousBlocks lengths{16};
  const Grid grid(GridShape(10, 20), GridShape(5, 5));
  const auto mixing = uniform_causal<float>(13);
  const auto grid_mixing = locality<float>(grid.block_grid());
  const Operator op;
  const Streaming<float> stream({.width = 24, .values = 24, .block_length = 16},
                                uniform_causal<float>(100));
  std::vector<StreamingState<float>> states(4, stream.start());
  const BlockStreaming<float, Contiguous> steps({.width = 24, .values = 24}, Contiguous(200, 50),
                                                MixingMatrix<float>::banded(400, 400, 3, 0));
  auto state = steps.start();
  std::vector<std::byte> memory(std::size_t{1} << 24);
  ThreadPool three(3), nine(9);  // fewer workers than heads of the batch, and more
  for (const ExecutorRef& executor : {ExecutorRef(), ExecutorRef(three), ExecutorRef(nine)}) {
    const Call call{.workspace = memory, .executor = executor};
    const std::function<void()> calls[] = {
        [&] { bidirectional(head, blocks, mixing, op, out, call); },
        [&] { bidirectional(head, grid, grid_mixing, kReleased, out, call); },
        [&] { causal(head, blocks, mixing, op, out, call); },
        [&] { linear_bidirectional(head, op, out, call); },
        [&] { linear_causal(head, op, out, call); },
        [&] { softmax_bidirectional(head, out, {}, call); },
        [&] { softmax_causal(head, out, {}, call); },
        [&] { bidirectional(batch, lengths, mixing, op, outs, call); },
        [&] { causal(batch, lengths, mixing, op, outs, call); },
        [&] { linear_bidirectional(batch, op, outs, call); },
        [&] { softmax_causal(batch, outs, {}, call); },
        [&] { append(stream, std::span(states), batch, outs, call); },
        [&] { steps.append(state, head, out, call); }};
    for (const auto& f : calls) {
      EXPECT_EQ(allocations(f), 0) << &f - calls << " with " << executor.workers();
    }
  }
}

#else

TEST(Allocation, FormsWithAWorkspaceAllocateNothing) {
  GTEST_SKIP() << "malloc can be counted with glibc and without sanitizers only";
}

#endif

}  // namespace
}  // namespace mhla::test

// Every call of malloc in this program is counted; forms that got a workspace must make none.

#include <gtest/gtest.h>

#include <vector>

#include "mhla/gradient/batched.hpp"
#include "mhla/policy/learned_feature_map.hpp"
#include "mhla/policy/locality.hpp"
#include "support/allocations.hpp"
#include "support/random.hpp"

namespace mhla::test {
namespace {

#ifdef MHLA_TEST_COUNTS_MALLOC

TEST(GradientAllocation, TheCounterCounts) {
  EXPECT_GE(allocations([] { Matrix<float>::Ones(100, 100).eval(); }), 1);
}

TEST(GradientAllocation, FormsWithAWorkspaceAllocateNothing) {
  Random rng(1);
  constexpr Index kTokens = 200, kWidth = 8;
  const Matrix<float> x = rng.matrix<float>(kTokens, kWidth);
  const Matrix<float> dout = rng.matrix<float>(kTokens, kWidth);
  Matrix<float> out(kTokens, kWidth), dq(out), dk(out), dv(out);
  const Contiguous blocks(kTokens, 16);
  const Grid grid(GridShape(10, 20), GridShape(5, 5));
  const auto mixing = locality<float>(13);
  const auto grid_mixing = locality<float>(grid.block_grid());
  auto dmixing = mixing, dgrid_mixing = grid_mixing;
  const Operator op, released{Relu{}, Relu{}, CrossQuery{}};
  const Hedgehog<float> map({rng.matrix<float>(kWidth, kWidth), {}});
  const Operator learned{map, map};
  std::vector<float> dquery(static_cast<std::size_t>(map.weights())), dkey(dquery);
  const Inputs<float> in{.q = x, .k = x, .v = x};
  const Gradients<float> g{.q = dq, .k = dk, .v = dv};
  const ParameterGradients<float> mixings{.mixing = &dmixing}, grid_mixings{&dgrid_mixing, {}, {}};
  const ParameterGradients<float> weights{.query_map = dquery, .key_map = dkey};
  const ParameterGradients<float> everything{&dmixing, dquery, dkey};
  ThreadPool pool(3);
  std::vector<std::byte> memory(std::size_t{1} << 24), kept(std::size_t{1} << 20);
  const auto expect_none = [](const char* what, auto&& f) { EXPECT_EQ(allocations(f), 0) << what; };
  expect_none("bidirectional", [&] {
    bidirectional_gradient(in, blocks, blocks, mixing, op, dout, g, mixings, memory);
  });
  expect_none("threads", [&] {
    bidirectional_gradient(in, blocks, blocks, mixing, learned, dout, g, everything, memory, pool);
  });
  expect_none("kept", [&] {
    bidirectional(in, blocks, blocks, mixing, op, out, memory, pool, kept);
    bidirectional_gradient(in, blocks, blocks, mixing, op, dout, g, mixings, memory, pool, kept);
  });
  expect_none("released", [&] {
    bidirectional_gradient(in, grid, grid, grid_mixing, released, dout, g, grid_mixings, memory);
  });
  expect_none("causal", [&] { causal_gradient(in, blocks, mixing, op, dout, g, mixings, memory); });
  expect_none("causal threads", [&] {
    causal_gradient(in, blocks, mixing, learned, dout, g, everything, memory, pool);
  });
  expect_none("causal kept", [&] {
    causal(in, blocks, mixing, op, out, memory, pool, kept);
    causal_gradient(in, blocks, mixing, op, dout, g, mixings, memory, pool, kept);
  });
  expect_none("linear",
              [&] { linear_bidirectional_gradient(in, learned, dout, g, weights, memory); });
  expect_none("linear causal",
              [&] { linear_causal_gradient(in, learned, dout, g, weights, memory); });
}

TEST(GradientAllocation, BatchesWithAWorkspaceAllocateNothing) {
  std::vector<float> data(2 * 60 * 3 * 8, 0.5f), q(data), k(data), v(data);
  const auto view = bnhd<const float>(data.data(), 2, 60, 3, 8);
  const auto gradient = [](std::vector<float>& to) { return bnhd(to.data(), 2, 60, 3, 8); };
  const BatchInputs<float> in{.q = view, .k = view, .v = view};
  const BatchGradients<float> g{.q = gradient(q), .k = gradient(k), .v = gradient(v)};
  const auto mixing = locality<float>(10);
  auto dmixing = mixing;
  const ParameterGradients<float> parameters{.mixing = &dmixing};
  std::vector<std::byte> memory(std::size_t{1} << 24);
  ThreadPool pool(2), wide(9);
  const ContiguousBlocks blocks{16};
  const Operator op;
  for (ThreadPool* threads : {&pool, &wide}) {
    EXPECT_EQ(allocations([&] {
                bidirectional_gradient(in, blocks, blocks, mixing, op, view, g, parameters, memory,
                                       *threads);
              }),
              0);
    EXPECT_EQ(allocations([&] {
                causal_gradient(in, blocks, mixing, op, view, g, parameters, memory, *threads);
              }),
              0);
    EXPECT_EQ(
        allocations([&] { linear_bidirectional_gradient(in, op, view, g, {}, memory, *threads); }),
        0);
    EXPECT_EQ(allocations([&] { linear_causal_gradient(in, op, view, g, {}, memory, *threads); }),
              0);
  }
}

#else

TEST(GradientAllocation, FormsWithAWorkspaceAllocateNothing) {
  GTEST_SKIP() << "malloc can be counted with glibc and without sanitizers only";
}

#endif

}  // namespace
}  // namespace mhla::test

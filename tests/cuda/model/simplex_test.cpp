#include "cuda/model/simplex.hpp"

#include <gtest/gtest.h>

namespace {

using mhla::cuda::model::LinearProgram;

TEST(Simplex, TakesTheCheapestMix) {
  // x + 2 y = 10, 3 x + y <= 15; y costs three times as much.
  LinearProgram program(2);
  const auto x = program.add(1), y = program.add(3), spare = program.add(0);
  program.set(0, x, 1);
  program.set(0, y, 2);
  program.set(1, x, 3);
  program.set(1, y, 1);
  program.set(1, spare, 1);
  program.right(0) = 10;
  program.right(1) = 15;
  const auto solution = program.solve();
  EXPECT_NEAR(solution[x], 4, 1e-4);
  EXPECT_NEAR(solution[y], 3, 1e-4);
  EXPECT_NEAR(solution[spare], 0, 1e-4);
}

TEST(Simplex, EndsWhereManyRowsAreZero) {
  // A ring of 40 with a way in and out of each node: what goes in must come out.
  constexpr std::size_t kNodes = 40;
  LinearProgram program(kNodes + 1);
  std::vector<std::size_t> out;
  for (std::size_t i = 0; i < kNodes; ++i) {
    for (const std::size_t to : {(i + 1) % kNodes, (i + 7) % kNodes}) {
      const auto edge = program.add(1);
      program.set(i, edge, -1);
      program.set(to, edge, 1);
    }
  }
  const auto in = program.add(0), end = program.add(0);
  program.set(0, in, 1);
  program.set(29, end, -1);
  program.set(kNodes, in, 1);
  program.right(kNodes) = 1;
  const auto solution = program.solve();
  double steps = 0;
  for (std::size_t edge = 0; edge < 2 * kNodes; ++edge) steps += solution[edge];
  EXPECT_NEAR(steps, 5, 0.01);  // 4 of 7 and one of 1
}

}  // namespace

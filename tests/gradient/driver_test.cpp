#include "mhla/gradient/driver.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <thread>
#include <vector>

#include "support/outputs.hpp"
#include "support/placed.hpp"

namespace mhla::test {

/// A form that has only a memory size.
struct FormOfBytes {
  const char* name = "f";
};
/// Takes 100 bytes per query and worker.
inline std::size_t gradient_bytes(const FormOfBytes&, const Inputs<float>& in, Index workers) {
  return static_cast<std::size_t>(100 * in.q.rows * workers);
}

namespace {

using detail::PairGroups;

/// One sequence of 2 tokens with some heads.
BatchInputs<float> batch_of(Index heads) {
  static float number = 0;
  const TensorView<const float> x(&number, {1, 2, heads, 1}, {0, 0, 0, 0});
  return {.q = x, .k = x, .v = x};
}

/// Number of pairs that single workers compute, of a batch of `pairs`.
Index pairs_alone(Index pairs, Index workers) {
  ThreadPool pool(workers);
  Memory memory(std::size_t{1} << 20);
  const PairGroups<float> groups(FormOfBytes{}, memory.arena, batch_of(pairs), {}, pool);
  std::atomic<Index> alone{0}, all{0};
  groups.run({}, pool, [&](Index, Index, const auto&, std::byte*, const ExecutorRef& executor) {
    ++all;
    alone += executor.workers() == 1 ? 1 : 0;
  });
  EXPECT_EQ(all.load(), pairs);
  return alone.load();
}

TEST(PairGroups, GroupsAreSpreadWhereThereAreEnoughForAllWorkers) {
  EXPECT_EQ(pairs_alone(4, 4), 4);
  EXPECT_EQ(pairs_alone(4, 5), 0);
  EXPECT_EQ(pairs_alone(100, 64), 100);
  EXPECT_EQ(pairs_alone(100, 65), 0);  // 64 groups are not enough for 65 workers
}

TEST(PairGroups, WorkersThatRunTogetherHaveMemoryApart) {
  ThreadPool pool(2);
  Memory memory(10000);
  const PairGroups<float> groups(FormOfBytes{}, memory.arena, batch_of(2), {}, pool);
  std::atomic<int> inside{0};
  std::byte* shares[2]{};
  groups.run({}, pool, [&](Index, Index h, const auto&, std::byte* share, const ExecutorRef&) {
    shares[h] = share;
    for (++inside; inside.load() < 2;) std::this_thread::yield();  // until both workers are here
  });
  EXPECT_GE(std::abs(shares[0] - shares[1]), 200);
}

/// By definition the sum runs over up to 64 groups of consecutive pairs, where the first groups
/// have one pair more. Each group sums from zero, and the groups are then added to the existing
/// values.
TEST(PairGroups, SharedGradientsAreSummedInOneOrderByAnyNumberOfWorkers) {
  Random rng(1);
  for (const Index pairs : {1, 2, 64, 65, 150}) {
    const std::vector<float> terms = numbers<float>(rng, pairs);
    float total = 0;
    const Index groups = std::min<Index>(pairs, 64);
    for (Index g = 0, pair = 0; g < groups; ++g) {
      float sum = 0;
      for (const Index end = pair + pairs / groups + (g < pairs % groups ? 1 : 0); pair < end;) {
        sum += terms[static_cast<std::size_t>(pair++)];
      }
      total += sum;
    }
    const float expected = 1 + total;
    for (const Index workers : {1, 3, 70}) {
      ThreadPool pool(workers);
      Memory memory(std::size_t{1} << 20);
      float sum = 1;
      const PairGroups<float> order(FormOfBytes{}, memory.arena, batch_of(pairs),
                                    detail::ParameterSizes{.query_map = 1}, pool);
      order.run(
          {.query_map = {&sum, 1}}, pool,
          [&](Index, Index h, const ParameterGradients<float>& sums, std::byte*,
              const ExecutorRef&) { sums.query_map[0] += terms[static_cast<std::size_t>(h)]; });
      EXPECT_EQ(sum, expected) << pairs << " pairs, " << workers << " workers";
    }
  }
}

}  // namespace
}  // namespace mhla::test

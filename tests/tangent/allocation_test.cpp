// Every call of malloc in this program is counted; tangents with a workspace must make none.

#include <gtest/gtest.h>

#include <vector>

#include "mhla/tangent/bidirectional.hpp"
#include "support/allocations.hpp"
#include "support/tangent_forms.hpp"

namespace mhla::test {
namespace {

#ifdef MHLA_TEST_COUNTS_MALLOC

template <class Form>
class TangentAllocation : public testing::Test {};
TYPED_TEST_SUITE(TangentAllocation, TangentForms);

TYPED_TEST(TangentAllocation, HeadsAndBatchesWithAWorkspaceAllocateNothing) {
  constexpr Shape kShape = {2, 60, 3, 8};
  Random rng(1);
  Tensor<float> x(kShape), out(kShape), tangent(kShape);
  for (float& a : x.data()) a = static_cast<float>(rng.uniform(-1, 1));
  std::vector<std::byte> memory(std::size_t{1} << 24);
  ThreadPool two(2), nine(9);
  for (const Index map : {Index{0}, kSameWidthMaps}) {  // with weights and without
    GradientProblem<float> p;
    p.op.query_map = p.op.key_map = random_map<float>(rng, map, kShape[3]);
    p.op.normalizer = {KeySum{0.125}};
    p.mixes = TypeParam().mixes;
    p.set_mixing(Pattern(4, 4), rng, 0.1);
    auto directions = random_directions(p, 1);
    const auto views = directions.parameter_views();
    const TangentArguments<BatchInputs<float>> batch{{.q = x, .k = x, .v = x},
                                                     {.q = x, .k = x, .v = x},
                                                     {views.mixing, views.query_map, views.key_map},
                                                     {out.view(), tangent.view()}};
    const TangentArguments<Inputs<float>> head{
        detail::head_inputs(batch.in, 0, 0),
        detail::head_tangents(batch.in, batch.tangents, 0, 0),
        batch.parameters,
        {out.view().head(0, 0), tangent.view().head(0, 0)}};
    const ContiguousBlocks of_any{16};
    const Contiguous of_head = of_any(kShape[1]);
    for (const ExecutorRef& executor : {ExecutorRef(), ExecutorRef(two), ExecutorRef(nine)}) {
      const Call call{.workspace = memory, .executor = executor};
      const CrossBlocks one{of_head, of_head};
      const CrossBlocks all{of_any, of_any};
      EXPECT_EQ(allocations([&] { TypeParam::write(head, p, one, call); }), 0);
      EXPECT_EQ(allocations([&] { TypeParam::write(batch, p, all, call); }), 0);
    }
  }
}

#else

TEST(TangentAllocation, HeadsAndBatchesWithAWorkspaceAllocateNothing) {
  GTEST_SKIP() << "malloc can be counted with glibc and without sanitizers only";
}

#endif

}  // namespace
}  // namespace mhla::test

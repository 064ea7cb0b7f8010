// Every call of malloc in this program is counted; forms with a workspace must make none.

#include <gtest/gtest.h>

#include <vector>

#include "mhla/gradient/bidirectional.hpp"
#include "mhla/gradient/causal.hpp"
#include "mhla/gradient/linear.hpp"
#include "mhla/gradient/softmax.hpp"
#include "support/allocations.hpp"
#include "support/gradient_forms.hpp"

namespace mhla::test {
namespace {

#ifdef MHLA_TEST_COUNTS_MALLOC

TEST(GradientAllocation, TheCounterCounts) {
  EXPECT_GE(allocations([] { Matrix<float>::Ones(100, 100).eval(); }), 1);
}

template <class Form>
class GradientAllocation : public testing::Test {};
using AllForms =
    testing::Types<BidirectionalForm, CausalForm, Linear, LinearCausal, Softmax, SoftmaxCausal>;
TYPED_TEST_SUITE(GradientAllocation, AllForms);

/// A batch of 2 sequences of 60 tokens with 3 heads of width 8, and its first head.
template <class Form>
struct Example {
  static constexpr Shape kShape = {2, 60, 3, 8};
  static constexpr Index kBlock = 16;

  Random rng{1};
  GradientProblem<float> p;
  Tensor<float> x{kShape}, dq{kShape}, dk{kShape}, dv{kShape}, out{kShape};
  BatchInputs<float> in = test_inputs();
  BatchGradients<float> to{.q = dq, .k = dk, .v = dv};
  std::vector<std::byte> memory = std::vector<std::byte>(std::size_t{1} << 24);
  std::vector<std::byte> kept = std::vector<std::byte>(std::size_t{1} << 20);

  explicit Example(Index map) {
    for (float& a : x.data()) a = static_cast<float>(rng.uniform(-1, 1));
    p.op.query_map = p.op.key_map = random_map<float>(rng, map, kShape[3]);
    p.op.normalizer = {KeySum{0.125}};
    p.mixes = Form().mixes;
    p.set_mixing(Pattern(4, 4), rng, 0.1);
  }
  BatchInputs<float> test_inputs() const { return {.q = x, .k = x, .v = x}; }

  /// Counts malloc calls of the backward form, after a forward form that keeps its summaries.
  template <class In, class Blocks>
  long count(const GradientArguments<In>& a, const Blocks& blocks, const ExecutorRef& executor) {
    const Call plain{.workspace = memory, .executor = executor};
    long calls = allocations([&] { Form::add(a, p, blocks, plain); });
    if constexpr (Form().mixes) {
      Call keeping = plain;
      keeping.kept = kept;
      Form::forward(a.in, p, blocks, keeping);
      calls += allocations([&] { Form::add(a, p, blocks, keeping); });
    }
    return calls;
  }
};

TYPED_TEST(GradientAllocation, HeadsAndBatchesWithAWorkspaceAllocateNothing) {
  ThreadPool two(2), nine(9);
  for (const Index map : {Index{0}, kSameWidthMaps}) {  // with weights and without
    Example<TypeParam> example(map);
    GradientBuffers<float> parameters(example.p);
    const ContiguousBlocks of_any{Example<TypeParam>::kBlock};
    const Contiguous of_head = of_any(Example<TypeParam>::kShape[1]);
    const auto views = parameters.parameter_views();
    const GradientArguments<BatchInputs<float>> batch{example.in, example.x, example.to, views};
    const GradientArguments<Inputs<float>> head{
        detail::head_inputs(example.in, 0, 0), example.x.view().head(0, 0),
        detail::head_gradients(example.in, example.to, 0, 0), views};
    const ExecutorRef executors[] = {{}, two, nine};
    for (const ExecutorRef& executor : executors) {
      EXPECT_EQ(example.count(head, CrossBlocks{of_head, of_head}, executor), 0);
      EXPECT_EQ(example.count(batch, CrossBlocks{of_any, of_any}, executor), 0);
    }
  }
}

#else

TEST(GradientAllocation, HeadsAndBatchesWithAWorkspaceAllocateNothing) {
  GTEST_SKIP() << "malloc can be counted with glibc and without sanitizers only";
}

#endif

}  // namespace
}  // namespace mhla::test

// Tests of the kernels that compute all gradients of a block of queries or of keys, in the
// emulator. They compare whole gradients with the CPU's in double, within the derived bound, on
// both architectures.

#include "mhla/cuda/launch/block_gradient.cuh"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "mhla/cuda/kernel/block_gradient_sm80.cuh"
#include "mhla/cuda/kernel/fused_gradient_products.cuh"
#include "support/cuda/form_test.hpp"
#include "support/cuda/gradient_run.hpp"
#include "support/cuda/gradient_suite.hpp"

namespace {

using cuda_test::CallShape;
using cuda_test::GradientCall;
using cuda_test::GradientTensors;
using mhla::cuda::Arch;
using mhla::cuda::Denominator;
using mhla::cuda::Device;
using mhla::cuda::GradientPlan;
using mhla::cuda::GradientProblem;
using mhla::cuda::Matrices;

/// Runs gradients in stages. Devices have too many multiprocessors for one kernel.
template <class H>
class StagedGradients : public cuda_test::GradientSuite<StagedGradients<H>, typename H::T, H::D> {
 public:
  using T = typename H::T;
  static constexpr int D = H::D;
  static constexpr std::int32_t kMany = 64;

  static std::vector<Device> devices() { return {{Arch::kSm90a, kMany}, {Arch::kSm80, kMany}}; }
  static GradientPlan plan_of(const GradientProblem& problem, const Device& device) {
    return mhla::cuda::gradient_plan<D, D, false, false>(problem, device);
  }
  static std::vector<emulator::Report> run_kernels_of(GradientCall<T>& call, GradientTensors<T>& to,
                                                      const GradientProblem& problem,
                                                      const Device& device, unsigned seed) {
    const GradientPlan plan = plan_of(problem, device);
    EXPECT_TRUE(plan.staged);
    return cuda_test::run_kernels(
        call, to, problem, plan.workspace_bytes, seed, nullptr,
        [&](const GradientProblem& of, unsigned char* workspace, const auto& stream) {
          mhla::cuda::run_gradient<T, D, D, false, false>(plan, of, call.mixing_array(), workspace,
                                                          device, stream);
        });
  }
};

// width_test.cpp tests the other widths.
#if defined(MHLA_FIRST_WIDTH)  // for faults that show at one width: tests/mutants
using BlockHeads = testing::Types<cuda_test::Width<mhla::cuda::bfloat16, 64, 64>>;
#else
using BlockHeads = testing::Types<cuda_test::Width<mhla::cuda::bfloat16, 64, 64>,
                                  cuda_test::Width<mhla::cuda::half, 72, 72>,
                                  cuda_test::Width<mhla::cuda::bfloat16, 128, 128>>;
#endif
TYPED_TEST_SUITE(StagedGradients, BlockHeads);

TYPED_TEST(StagedGradients, AreWithinTheBound) { this->expect_bounds(6, 5); }

TYPED_TEST(StagedGradients, OfMatricesOfHeadsAndItems) { this->expect_bounds_of_matrices(); }

TYPED_TEST(StagedGradients, BitsAreTheSameEachTime) { this->expect_same_bits(); }

TYPED_TEST(StagedGradients, MayBeUnwanted) { this->expect_bits_of_each_alone(); }

TYPED_TEST(StagedGradients, ConstantOutputsAddNothing) { this->expect_nothing_of_constants(); }

TYPED_TEST(StagedGradients, SumsMayBeLarge) { this->expect_bounds_of_large_sums(); }

// Keys and values move twice, other tensors once. Summaries and mixtures move twice, and for dm S
// and dS~ once more. The matrix and parts of dm are not counted.
TYPED_TEST(StagedGradients, MoveThePlannedBytes) {
  using Number = typename TypeParam::T;
  GradientCall<Number> call = this->call_of({.heads = 2, .tokens = 512, .block = 64});
  for (const Device& device : this->devices()) {
    for (const bool mixing : {false, true}) {
      GradientTensors<Number> got(call, 1);
      GradientProblem problem = cuda_test::gradient_problem(call, got);
      problem.wants.mixing = mixing;
      const GradientPlan plan = this->plan_of(problem, device);
      std::uint64_t tensors = 0, summaries = 0;
      for (const emulator::Report& report : this->run(call, got, problem, device)) {
        for (const char* name : {"q", "k", "v", "dout"}) tensors += report.bytes_read(name);
        for (const char* name : {"dq", "dk", "dv"}) tensors += report.bytes_written(name);
        summaries += report.bytes_read("workspace") + report.bytes_written("workspace");
      }
      EXPECT_EQ(tensors, plan.traffic.tensors);
      EXPECT_GE(summaries, plan.traffic.summaries);
      if (!mixing) {
        EXPECT_LE(summaries, plan.traffic.summaries * 105 / 100);
      }
    }
  }
}

// Where other kernels take care of denominators, norms or angles, or of the own block.
TYPED_TEST(StagedGradients, MultiplyFeaturesOfOtherCalls) {
  constexpr int kWidth = TypeParam::D;
  using Number = typename TypeParam::T;
  const auto compare = [](const auto& call, const CallShape& shape, const Device& device) {
    const GradientPlan plan = call(shape, device);
    EXPECT_TRUE(plan.blocks && !plan.staged);
  };
  const auto causal = [](const CallShape& shape, const Device& device) {
    return cuda_test::run_and_compare_gradient<Number, kWidth, kWidth, true>(shape, device);
  };
  const auto bidirectional = [](const CallShape& shape, const Device& device) {
    return cuda_test::run_and_compare_gradient<Number, kWidth, kWidth, false>(shape, device);
  };
  CallShape later{.batch = 2, .heads = 2, .tokens = 290, .block = 12};
  CallShape cross{.tokens = {1, 21, 18}, .block = {1, 3, 3}};
  cross.op.denominator = Denominator::kCrossQuery;
  cross.op.eps = 1e-3f;
  CallShape normed{.tokens = 300, .block = 14, .normed = true, .gated = true};
  for (const Device& device : this->devices()) {
    compare(causal, later, device);
    later.op.matrices = Matrices::kPerHead;
    compare(bidirectional, cross, device);
    compare(bidirectional, normed, device);
  }
  if constexpr (kWidth % 16 == 0) {
    const auto turned = [](const CallShape& shape, const Device& device) {
      return cuda_test::run_and_compare_gradient<Number, kWidth, kWidth, false, true>(shape,
                                                                                      device);
    };
    compare(turned, {.tokens = 280, .block = 13}, this->devices()[0]);
  }
}

TYPED_TEST(StagedGradients, LeaveOtherCallsToOtherKernels) {
  const auto staged = [&](const CallShape& shape) {
    GradientCall<typename TypeParam::T> call = this->call_of(shape);
    GradientTensors<typename TypeParam::T> to(call, 0);
    return this->plan_of(cuda_test::gradient_problem(call, to), this->devices()[0]).staged;
  };
  CallShape shape{.tokens = 270, .block = 90};
  EXPECT_TRUE(staged(shape));
  shape.op.summaries = mhla::cuda::Precision::kPair;
  EXPECT_FALSE(staged(shape));
  shape.op.summaries = mhla::cuda::Precision::kSingle;
  shape.op.denominator = Denominator::kCrossQuery;
  EXPECT_FALSE(staged(shape));
  shape.op.denominator = Denominator::kKeySum;
  shape.normed = true;
  EXPECT_FALSE(staged(shape));
  EXPECT_FALSE(staged({.tokens = 256, .block = 64}));  // few tokens take scores, or one kernel
}

}  // namespace

// Tests of the kernels that compute all gradients of a block of queries or of keys, in the
// emulator. They compare whole gradients with the CPU's in double, within the derived bound, on
// both architectures.

#include "mhla/cuda/launch/block_gradient.cuh"

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "mhla/cuda/kernel/block_gradient_sm80.cuh"
#include "mhla/cuda/kernel/fused_gradient_products.cuh"
#include "support/cuda/gradient_run.hpp"

namespace {

using cuda_test::CallShape;
using cuda_test::GradientCall;
using cuda_test::GradientTensors;
using mhla::cuda::Arch;
using mhla::cuda::Denominator;
using mhla::cuda::Device;
using mhla::cuda::FeatureMap;
using mhla::cuda::GradientPlan;
using mhla::cuda::GradientProblem;
using mhla::cuda::Matrices;

template <class T_, int D_>
struct BlockHead {
  using T = T_;
  static constexpr int D = D_;
};

/// Runs gradients in stages. Devices have too many multiprocessors for one kernel.
template <class H>
class StagedGradients : public testing::Test {
 protected:
  using T = typename H::T;
  static constexpr int D = H::D;
  static constexpr std::int32_t kMany = 64;

  static std::vector<Device> devices() { return {{Arch::kSm90a, kMany}, {Arch::kSm80, kMany}}; }
  static GradientCall<T> call_of(const CallShape& shape) {
    return cuda_test::random_gradient_call<T, D, D>(shape, 5);
  }
  static GradientPlan plan_of(const GradientProblem& problem, const Device& device) {
    return mhla::cuda::gradient_plan<D, D, false, false>(problem, device);
  }
  static std::vector<emulator::Report> run(GradientCall<T>& call, GradientTensors<T>& to,
                                           const GradientProblem& problem, const Device& device,
                                           unsigned seed = 3) {
    const GradientPlan plan = plan_of(problem, device);
    EXPECT_TRUE(plan.staged);
    return cuda_test::run_kernels(
        call, to, problem, plan.workspace_bytes, seed, nullptr,
        [&](const GradientProblem& of, unsigned char* workspace, const auto& stream) {
          mhla::cuda::run_gradient<T, D, D, false, false>(plan, of, call.mixing_array(), workspace,
                                                          device, stream, call.op);
        });
  }
  static GradientTensors<T> run(GradientCall<T>& call, const Device& device, unsigned seed = 3) {
    GradientTensors<T> got(call, 1);
    run(call, got, cuda_test::gradient_problem(call, got), device, seed);
    return got;
  }
  static void run_and_compare(const CallShape& shape, const Device& device) {
    GradientCall<T> call = call_of(shape);
    cuda_test::compare_gradients(call, run(call, device));
  }
};

// width_test.cpp tests the other widths.
#if defined(MHLA_FIRST_WIDTH)  // for faults that show at one width: tests/mutants
using BlockHeads = testing::Types<BlockHead<mhla::cuda::bfloat16, 64>>;
#else
using BlockHeads =
    testing::Types<BlockHead<mhla::cuda::bfloat16, 64>, BlockHead<mhla::cuda::half, 72>,
                   BlockHead<mhla::cuda::bfloat16, 128>>;
#endif
TYPED_TEST_SUITE(StagedGradients, BlockHeads);

// Cases: short last blocks, images, blocks of more and of fewer tokens than a stage has, keys that
// are not the queries, and one block.
TYPED_TEST(StagedGradients, AreWithinTheBound) {
  CallShape shapes[] = {
      {.batch = 2, .heads = 2, .tokens = 300, .block = 80},
      {.heads = 3, .tokens = {2, 9, 17}, .block = {1, 5, 17}, .layout = 2},
      {.tokens = 90, .block = 6, .key_tokens = {1, 20, 18}, .key_block = {1, 10, 9}, .layout = 1},
      {.tokens = {1, 20, 18}, .block = {1, 20, 9}, .key_tokens = 90, .key_block = 5},
      {.tokens = 270, .block = 270}};
  shapes[1].op.query_map = shapes[1].op.key_map = FeatureMap::elu_plus_one();
  shapes[2].op.query_map = FeatureMap::identity();
  shapes[2].op.key_map = FeatureMap::elu_plus_one();
  shapes[2].op.denominator = Denominator::kNone;
  shapes[2].op.scale = 0.25f;
  shapes[3].op.eps = 0.5f;
  for (const Device& device : this->devices()) {
    for (const CallShape& shape : shapes) this->run_and_compare(shape, device);
  }
}

TYPED_TEST(StagedGradients, OfMatricesOfHeadsAndItems) {
  for (const Matrices matrices : {Matrices::kPerHead, Matrices::kPerItemAndHead}) {
    CallShape shape{.batch = 2, .heads = 2, .tokens = 280, .block = 90};
    shape.op.matrices = matrices;
    this->run_and_compare(shape, this->devices()[matrices == Matrices::kPerHead ? 0 : 1]);
  }
}

// Bits depend neither on the order of thread blocks nor on whether outputs are kept.
TYPED_TEST(StagedGradients, BitsAreTheSameEachTime) {
  GradientCall<typename TypeParam::T> call =
      this->call_of({.heads = 3, .tokens = 290, .block = 75});
  for (const Device& device : this->devices()) {
    const auto first = cuda_test::bits_of(this->run(call, device, 0));
    EXPECT_EQ(cuda_test::bits_of(this->run(call, device, 7)), first);
  }
}

// Each gradient alone has the bits that it has with the others.
TYPED_TEST(StagedGradients, MayBeUnwanted) {
  GradientCall<typename TypeParam::T> call = this->call_of({.tokens = 260, .block = 70});
  const Device device = this->devices()[0];
  const auto all = cuda_test::bits_of(this->run(call, device));
  for (std::size_t wanted = 0; wanted < 4; ++wanted) {
    GradientTensors<typename TypeParam::T> got(call, 1);
    GradientProblem problem = cuda_test::gradient_problem(call, got);
    problem.wants = {wanted == 0, wanted == 1, wanted == 2, wanted == 3, false, false};
    if (wanted != 0) problem.dq = {};
    if (wanted != 1) problem.dk = {};
    if (wanted != 2) problem.dv = {};
    this->run(call, got, problem, device);
    EXPECT_EQ(cuda_test::bits_of(got)[wanted], all[wanted]) << wanted;
  }
}

// Outputs with a denominator of 0 are constants, and rows of zeros in dout add exactly 0.
TYPED_TEST(StagedGradients, ConstantOutputsAddNothing) {
  using Number = typename TypeParam::T;
  GradientCall<Number> call = this->call_of({.tokens = 270, .block = 90});
  for (int b = 0; b < 3; ++b) call.mixing[b] = 0;
  const Device device = this->devices()[0];
  const GradientTensors<Number> got = this->run(call, device);
  for (int t = 0; t < 90; ++t) {
    for (int e = 0; e < TypeParam::D; ++e) {
      ASSERT_EQ(got.q.value(0, t, 0, e), 0);
      call.dout.at(0, t, 0, e) = Number{0};
    }
  }
  for (int i = 0; i < 9; ++i) EXPECT_TRUE(std::isfinite(got.mixing.value(i))) << i;
  for (int i = 0; i < 3; ++i) EXPECT_EQ(got.mixing.value(i), 0) << i;
  EXPECT_EQ(cuda_test::bits_of(this->run(call, device)), cuda_test::bits_of(got));
}

// Sums over 270 queries exceed the range of half.
TYPED_TEST(StagedGradients, SumsMayBeLarge) {
  CallShape shape{.tokens = 270, .block = 270};
  shape.op.denominator = Denominator::kNone;
  auto call = this->call_of(shape);
  cuda_test::Random random(7);
  for (auto* x : {&call.q, &call.dout}) x->fill([&] { return random.uniform(0, 50); });
  for (auto* x : {&call.k, &call.v}) x->fill([&] { return random.uniform(0, 1); });
  call.mixing[0] = 1e-4f;
  cuda_test::compare_gradients(call, this->run(call, this->devices()[0]));
}

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

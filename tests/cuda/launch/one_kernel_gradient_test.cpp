// Tests of the kernel that computes all gradients of forms with few blocks, in the emulator. They
// compare it with the CPU's gradient in double, within the derived bound, for devices with much and
// with little shared memory. gradient_test.cpp tests the kernel for few tokens.

#include "mhla/cuda/launch/one_kernel_gradient.cuh"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "mhla/cuda/kernel/fused_gradient_mixing.cuh"
#include "mhla/cuda/kernel/fused_gradient_sm80.cuh"
#include "mhla/cuda/kernel/fused_gradient_sm80_config.cuh"
#include "mhla/cuda/kernel/fused_gradient_stages.cuh"
#include "mhla/cuda/launch/mixing_gradient.cuh"
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
struct Head {
  using T = T_;
  static constexpr int D = D_;
};

/// Runs the kernels of such a plan, without those of other plans.
template <class H>
class FusedGradients : public testing::Test {
 protected:
  using T = typename H::T;
  static constexpr int D = H::D;
  using Layout = mhla::cuda::GradientLayout<D, D, false, false>;

  /// Devices of 227, 163 and 99 KB of shared memory per thread block.
  static std::vector<Device> devices() {
    return {{Arch::kSm90a, 2}, {Arch::kSm80, 2}, {Arch::kSm80, 2, 89, 0, mhla::cuda::kLeastShared}};
  }
  static std::int32_t most_blocks(const Device& device) {
    return mhla::cuda::detail::fused_gradient_blocks<D, D>(device);
  }
  static GradientCall<T> call_of(const CallShape& shape) {
    return cuda_test::random_gradient_call<T, D, D>(shape, 5);
  }

  static std::vector<emulator::Report> run(GradientCall<T>& call, GradientTensors<T>& to,
                                           const GradientProblem& problem, const Device& device,
                                           unsigned seed = 3) {
    const GradientPlan plan = mhla::cuda::gradient_plan<D, D, false, false>(problem, device);
    EXPECT_TRUE(plan.fused);
    return cuda_test::run_kernels(
        call, to, problem, plan.workspace_bytes, seed, nullptr,
        [&](const GradientProblem& of, unsigned char* workspace, const auto& stream) {
          const Layout layout(of, call.mixing_array(), workspace, device, &plan);
          mhla::cuda::OneKernelGradientRun<T, D, D, false, false>{layout}(stream);
          if (!of.wants.mixing) return;
          mhla::cuda::MixingGradientRun<T, D, D, false, false>{layout}.add_parts(stream);
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
using Heads = testing::Types<Head<mhla::cuda::bfloat16, 64>, Head<mhla::cuda::bfloat16, 72>,
                             Head<mhla::cuda::half, 64>>;
TYPED_TEST_SUITE(FusedGradients, Heads);

// Cases: short last blocks, several pairs per thread block, images, blocks of more and of fewer
// tokens than a stage has, keys that are not the queries, and one block.
TYPED_TEST(FusedGradients, AreWithinTheBound) {
  CallShape shapes[] = {
      {.batch = 2, .heads = 2, .tokens = 300, .block = 80},
      {.heads = 3, .tokens = {2, 9, 17}, .block = {1, 5, 17}, .layout = 2},
      {.tokens = 90, .block = 30, .key_tokens = {1, 20, 18}, .key_block = {1, 10, 9}, .layout = 1},
      {.tokens = {1, 20, 18}, .block = {1, 20, 9}, .key_tokens = 90, .key_block = 23},
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

TYPED_TEST(FusedGradients, TakeAsManyBlocksAsThereAreRegions) {
  for (const Device& device : this->devices()) {
    const int blocks = this->most_blocks(device);
    CallShape shape{.tokens = 17 * 20 - 3, .block = (17 * 20 - 4) / blocks + 1};
    this->run_and_compare(shape, device);
    shape.block = shape.key_block = shape.block[2] - 5;
    GradientCall<typename TypeParam::T> call = this->call_of(shape);
    GradientTensors<typename TypeParam::T> to(call, 0);
    constexpr int kWidth = TypeParam::D;
    EXPECT_FALSE((mhla::cuda::gradient_plan<kWidth, kWidth, false, false>(
                      cuda_test::gradient_problem(call, to), device)
                      .fused));
  }
}

// The table of include/mhla/cuda/README.md.
TYPED_TEST(FusedGradients, TakeTheBlocksOfThePage) {
  const bool narrow = TypeParam::D == 64;
  std::vector<std::int32_t> most;
  for (const Device& device : this->devices()) most.push_back(this->most_blocks(device));
  EXPECT_EQ(most, (std::vector<std::int32_t>{16, narrow ? 16 : 8, narrow ? 8 : 4}));
}

TYPED_TEST(FusedGradients, OfMatricesOfHeadsAndItems) {
  for (const Matrices matrices : {Matrices::kPerHead, Matrices::kPerItemAndHead}) {
    CallShape shape{.batch = 2, .heads = 2, .tokens = 280, .block = 90};
    shape.op.matrices = matrices;
    this->run_and_compare(shape, this->devices()[matrices == Matrices::kPerHead ? 0 : 1]);
  }
}

TYPED_TEST(FusedGradients, BitsAreTheSameEachTime) {
  GradientCall<typename TypeParam::T> call =
      this->call_of({.heads = 3, .tokens = 290, .block = 75});
  for (const Device& device : this->devices()) {
    const auto first = cuda_test::bits_of(this->run(call, device, 0));
    EXPECT_EQ(cuda_test::bits_of(this->run(call, device, 7)), first);
  }
}

// Each gradient alone has the bits that it has with the others.
TYPED_TEST(FusedGradients, MayBeUnwanted) {
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
TYPED_TEST(FusedGradients, ConstantOutputsAddNothing) {
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
TYPED_TEST(FusedGradients, SumsMayBeLarge) {
  CallShape shape{.tokens = 270, .block = 270};
  shape.op.denominator = Denominator::kNone;
  auto call = this->call_of(shape);
  cuda_test::Random random(7);
  for (auto* x : {&call.q, &call.dout}) x->fill([&] { return random.uniform(0, 50); });
  for (auto* x : {&call.k, &call.v}) x->fill([&] { return random.uniform(0, 1); });
  call.mixing[0] = 1e-4f;
  cuda_test::compare_gradients(call, this->run(call, this->devices()[0]));
}

// Tensors move as the plan says: keys and values twice, the others once.
TYPED_TEST(FusedGradients, MoveThePlannedBytes) {
  using Number = typename TypeParam::T;
  GradientCall<Number> call = this->call_of({.heads = 2, .tokens = 272, .block = 68});
  for (const Device& device : this->devices()) {
    GradientTensors<Number> got(call, 1);
    const GradientProblem problem = cuda_test::gradient_problem(call, got);
    const auto plan =
        mhla::cuda::gradient_plan<TypeParam::D, TypeParam::D, false, false>(problem, device);
    const emulator::Report report = this->run(call, got, problem, device)[0];
    std::uint64_t tensors = 0;
    for (const char* name : {"q", "k", "v", "dout"}) tensors += report.bytes_read(name);
    for (const char* name : {"dq", "dk", "dv"}) tensors += report.bytes_written(name);
    EXPECT_EQ(tensors, plan.traffic.tensors);
    const std::uint64_t kept = report.bytes_read("workspace");
    EXPECT_EQ(2 * kept, plan.traffic.summaries);
  }
}

TYPED_TEST(FusedGradients, LeaveOtherCallsToOtherKernels) {
  constexpr int kWidth = TypeParam::D;
  const auto fused = [&](const CallShape& shape, std::int32_t multiprocessors) {
    GradientCall<typename TypeParam::T> call = this->call_of(shape);
    GradientTensors<typename TypeParam::T> to(call, 0);
    return mhla::cuda::gradient_plan<kWidth, kWidth, false, false>(
               cuda_test::gradient_problem(call, to), {Arch::kSm90a, multiprocessors})
        .fused;
  };
  CallShape shape{.tokens = 270, .block = 90};
  EXPECT_TRUE(fused(shape, 2));
  EXPECT_FALSE(fused(shape, 3));  // one pair would keep less than half of the device busy
  shape.op.summaries = mhla::cuda::Precision::kPair;
  EXPECT_FALSE(fused(shape, 2));
  shape.op.summaries = mhla::cuda::Precision::kSingle;
  shape.op.denominator = Denominator::kCrossQuery;
  EXPECT_FALSE(fused(shape, 2));
  shape.op.denominator = Denominator::kKeySum;
  shape.normed = true;
  EXPECT_FALSE(fused(shape, 2));
}

}  // namespace

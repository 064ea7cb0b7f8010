// Tests of the kernel that computes all gradients of forms with few blocks, in the emulator. They
// compare it with the CPU's gradient in double, within the derived bound, for devices with much and
// with little shared memory. gradient_test.cpp tests the kernel for few tokens.

#include "mhla/cuda/launch/one_kernel_gradient.cuh"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <vector>

#include "mhla/cuda/kernel/fused_gradient_mixing.cuh"
#include "mhla/cuda/kernel/fused_gradient_sm80.cuh"
#include "mhla/cuda/kernel/fused_gradient_sm80_config.cuh"
#include "mhla/cuda/kernel/fused_gradient_stages.cuh"
#include "mhla/cuda/kernel/gradient_parameters.cuh"
#include "mhla/cuda/launch/gradient_parameters.cuh"
#include "mhla/cuda/launch/mixing_gradient.cuh"
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

/// Runs the kernels of such a plan, without those of other plans.
template <class H>
class FusedGradients : public cuda_test::GradientSuite<FusedGradients<H>, typename H::T, H::D> {
 public:
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
  static std::vector<emulator::Report> run_kernels_of(GradientCall<T>& call, GradientTensors<T>& to,
                                                      const GradientProblem& problem,
                                                      const Device& device, unsigned seed) {
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
};

// width_test.cpp tests the other widths.
using Heads = testing::Types<cuda_test::Width<mhla::cuda::bfloat16, 64, 64>,
                             cuda_test::Width<mhla::cuda::bfloat16, 72, 72>,
                             cuda_test::Width<mhla::cuda::half, 64, 64>>;
TYPED_TEST_SUITE(FusedGradients, Heads);

TYPED_TEST(FusedGradients, AreWithinTheBound) { this->expect_bounds(30, 23); }

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

TYPED_TEST(FusedGradients, OfMatricesOfHeadsAndItems) { this->expect_bounds_of_matrices(); }

TYPED_TEST(FusedGradients, BitsAreTheSameEachTime) { this->expect_same_bits(); }

TYPED_TEST(FusedGradients, MayBeUnwanted) { this->expect_bits_of_each_alone(); }

TYPED_TEST(FusedGradients, ConstantOutputsAddNothing) { this->expect_nothing_of_constants(); }

TYPED_TEST(FusedGradients, SumsMayBeLarge) { this->expect_bounds_of_large_sums(); }

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

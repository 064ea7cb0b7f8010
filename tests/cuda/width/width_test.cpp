// The contract of a pair of widths and a type: every form, stream and gradient as launched, in the
// emulator. Results are compared with the CPU's in double, within the derived bounds. Each pair of
// CMakeLists.txt is a program of its own.

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "mhla/cuda/attention/fitting_plan.cuh"
#include "mhla/cuda/kernel/widths.cuh"
#include "mhla/cuda/launch/forms.cuh"
#include "mhla/cuda/launch/gradient.cuh"
#include "mhla/cuda/launch/prefill.cuh"
#include "support/cuda/emulated_call.hpp"
#include "support/cuda/gradient_run.hpp"
#include "support/cuda/masked_tokens.hpp"
#include "support/cuda/prefill_run.hpp"
#include "support/cuda/random_call.hpp"
#include "support/message_of.hpp"

namespace cuda_test {
namespace {

using Number = mhla::cuda::MHLA_TYPE;
constexpr int kD = MHLA_WIDTH, kE = MHLA_VALUE_WIDTH;
using mhla::cuda::FormBounds, mhla::cuda::GradientPlan;

// Cases alternate between devices: pairs without kernels of sm_90a run the same kernels on both.
// Gradients of (256, 256) are an exception: on sm_90a two products have the kernels of (128, 256).
constexpr Device kDevices[] = {{Arch::kSm80, 2}, {Arch::kSm90a, 2}};
constexpr Device kSmall{Arch::kSm80, 2, 89, 0, mhla::cuda::kLeastShared};
constexpr Denominator kDenominators[] = {Denominator::kNone, Denominator::kKeySum,
                                         Denominator::kCrossQuery};

/// True if a thread block of the causal form has half the columns of an output.
constexpr bool kHalfOutputs =
    mhla::cuda::CausalReadOutConfig<kD, kE, Precision::kSingle>::kColumnParts > 1;

/// Runs the planned form, which must be `form`, and compares its outputs.
template <bool kRotary = false>
Outcome run(CallShape shape, const Device& device, Form form) {
  shape.rotary = kRotary;
  Call<Number> call = random_call<Number, kD, kE>(shape, 1);
  const Plan plan = mhla::cuda::plan<kD, kE>(problem_of(call), device);
  EXPECT_EQ(std::string(name(plan.form)), name(form)) << plan.reason;
  EXPECT_EQ(plan.missing.kernel, nullptr);
  const Outcome outcome = run_and_compare<kD, kE, kRotary>(call, plan, device, 1);
  // Sums of queries are stored by their places in blocks (kernel/query_sums.cuh).
  // Threads copy pieces of the same tokens' keys and values (kernel/summary_sm80.cuh).
  const bool conflicts = shape.op.denominator == Denominator::kCrossQuery ||
                         (kE > kD && !mhla::cuda::Width<kE>::kPanels);
  EXPECT_TRUE(conflicts || outcome.bank_conflicts == 0) << outcome.bank_conflicts;
  return outcome;
}

/// Expects that tensors move as many bytes as the plan says, or at most 5 % more.
void expect_traffic(const Outcome& outcome) {
  EXPECT_LE(static_cast<double>(outcome.tensor_bytes),
            1.05 * static_cast<double>(outcome.plan.traffic.tensors));
}

TEST(Width, FewKeysAreWithinTheBound) {
  for (const Device& device : {kDevices[0], kDevices[1], kSmall}) {
    if (mhla::cuda::form_bounds<kD, kE>(device.kernels(), device.shared_bytes).quadratic_keys ==
        0) {
      continue;
    }
    for (const Denominator denominator : kDenominators) {
      CallShape shape{.heads = 2, .tokens = {1, 9, 10}, .block = {1, 3, 5}, .layout = 1};
      shape.op.denominator = denominator;
      shape.op.eps = 1e-3f;
      run(shape, device, Form::kQuadratic);
    }
    run({.tokens = 90, .block = 30, .key_tokens = 70, .key_block = 35}, device, Form::kQuadratic);
    run({.heads = 2, .tokens = 150, .block = 16, .causal = true}, device, Form::kQuadratic);
  }
}

TEST(Width, FusedIsWithinTheBoundAndMovesEachTensorOnce) {
  for (const Device& device : {kDevices[0], kDevices[1], kSmall}) {
    const FormBounds bounds =
        mhla::cuda::form_bounds<kD, kE>(device.kernels(), device.shared_bytes);
    for (const int blocks : {3, 4, 8, 16}) {
      if (blocks > bounds.fused_blocks) continue;
      CallShape shape{.tokens = {1, 23, 4 * blocks}, .block = {1, 24, 4}};
      if (blocks == 3) shape = {.heads = 2, .tokens = 300, .block = 110, .layout = 2};
      shape.op.denominator = blocks == 3 ? Denominator::kNone : Denominator::kKeySum;
      expect_traffic(run(shape, device, Form::kFused));
    }
  }
}

TEST(Width, ThreeStagesAreWithinTheBound) {
  for (const bool small : {false, true}) {
    for (const Precision summaries : {Precision::kSingle, Precision::kPair}) {
      const Device device = small ? kSmall : kDevices[summaries == Precision::kPair ? 1 : 0];
      CallShape shape{.tokens = {19, 14}, .block = {4, 3}, .layout = 2};  // 25 blocks
      shape.op.summaries = summaries;
      const Outcome outcome = run(shape, device, Form::kThreeStage);
      EXPECT_EQ(outcome.early_launches, 2);
      if (mhla::cuda::Width<kD>::kParts == 1) expect_traffic(outcome);
      shape = {.tokens = 2 * 270, .block = 270};
      shape.op.summaries = summaries;
      shape.op.denominator = Denominator::kCrossQuery;
      shape.op.eps = 1e-6f;
      run(shape, device, Form::kThreeStage);
    }
  }
}

TEST(Width, CausalThreeStagesAreWithinTheBound) {
  for (const Precision summaries : {Precision::kSingle, Precision::kPair}) {
    const Device& device = kDevices[summaries == Precision::kPair ? 0 : 1];
    CallShape shape{.heads = 2, .tokens = 270, .block = 49, .causal = true};
    shape.op.summaries = summaries;
    run(shape, device, Form::kThreeStage);
    shape = {.tokens = 300, .block = 128, .causal = true, .layout = 1};
    shape.op.summaries = summaries;
    shape.op.denominator = Denominator::kNone;
    run(shape, device, Form::kThreeStage);
  }
}

TEST(Width, DecayingTermsAreWithinTheBound) {
  CallShape shape{.heads = 2, .tokens = 270, .block = 20, .causal = true};
  shape.op.decay_terms = 3;
  run(shape, kDevices[0], Form::kThreeStage);
}

TEST(Width, NormedAndGatedOutputsAreWithinTheBound) {
  for (const bool small : {false, true}) {
    for (const bool causal : {false, true}) {
      if (causal && kHalfOutputs) continue;
      const Device device = small ? kSmall : kDevices[causal ? 1 : 0];
      for (const bool gated : {false, true}) {
        CallShape shape{.heads = 2, .tokens = 96, .block = 24, .causal = causal};
        shape.normed = true;
        shape.gated = gated;
        shape.op.summaries = gated ? Precision::kPair : Precision::kSingle;
        run(shape, device, Form::kThreeStage);
      }
    }
  }
}

TEST(Width, CausalOutputsInHalvesHaveNoNorm) {
  CallShape shape{.tokens = 96, .block = 24, .causal = true};
  shape.normed = true;
  Call<Number> call = random_call<Number, kD, kE>(shape, 1);
  const Plan plan = mhla::cuda::plan<kD, kE>(problem_of(call), kDevices[0]);
  EXPECT_EQ(plan.lacks_norm, kHalfOutputs);
  if (!kHalfOutputs) return;
  EXPECT_EQ(mhla::test::message_of<mhla::option_error>(
                [&] { mhla::cuda::detail::fitting("cuda::causal", plan, kDevices[0]); }),
            "mhla::cuda::causal: gain normalises outputs that no kernel has as a whole, "
            "expected no gain: each thread block has half the columns of an output");
}

TEST(Width, FeaturesThatTurnAreWithinTheBound) {
  if constexpr (mhla::cuda::Width<kD>::kWholeTiles) {
    for (const Denominator denominator : kDenominators) {
      CallShape shape{.heads = 2, .tokens = {3, 6, 8}, .block = {1, 3, 4}, .layout = 1};
      shape.op.denominator = denominator;
      shape.op.eps = 1e-3f;
      run<true>(shape, kDevices[denominator == Denominator::kNone ? 0 : 1], Form::kThreeStage);
    }
    CallShape causal{.tokens = 150, .block = 70, .causal = true};
    causal.op.denominator = Denominator::kNone;
    run<true>(causal, kDevices[0], Form::kThreeStage);
  }
}

TEST(Width, MaskedTokensAndPrefixesAreWithinTheBound) {
  const auto run_masked = [](const CallShape& shape, const Device& device) {
    Call<Number> call = random_call<Number, kD, kE>(shape, 3);
    mask_some(call, static_cast<int>(shape.block[2]));
    run_and_compare<kD, kE>(call, mhla::cuda::plan<kD, kE>(problem_of(call), device), device, 2);
  };
  run_masked({.batch = 2, .tokens = 64, .block = 16}, kDevices[0]);
  run_masked({.batch = 2, .tokens = {6, 8}, .block = {3, 4}, .prefix = 2}, kDevices[1]);
  run_masked({.tokens = 300, .block = 100}, kDevices[1]);
  run_masked({.tokens = 300, .block = 100, .causal = true}, kDevices[0]);
}

// ---- streams ------------------------------------------------------------------------------------

TEST(Width, StreamsAreWithinTheBound) {
  constexpr auto kRelu = mhla::cuda::FeatureMap::relu(1e-6f);
  const StreamCase c{4, 16, 50, kRelu, Denominator::kKeySum, 2, 2, 0, 2};
  const StreamCase long_blocks{2, 70, 75, kRelu, Denominator::kNone, 1, 1, 1, 2};
  check_prefills<Number, kD, kE, Precision::kSingle>(c, {20, -1, 34}, Arch::kSm80);
  check_prefills<Number, kD, kE, Precision::kPair>(c, {15, 33}, Arch::kSm90a);
  for (const bool pair : {false, true}) {
    const auto steps = [&]<Precision P>() {
      Streams<Number, kD, kE, P> streams(long_blocks, 1);
      for (int t = 0; t < long_blocks.tokens; ++t) {
        streams.step(t);
        EXPECT_EQ(streams.report.bank_conflicts, 0u) << t;
      }
      Comparison comparison("of steps");
      compare(comparison, streams, 0, 0);
    };
    pair ? steps.template operator()<Precision::kPair>()
         : steps.template operator()<Precision::kSingle>();
  }
}

// ---- gradients ----------------------------------------------------------------------------------

template <bool kCausal, bool kRotary = false>
GradientPlan run_backward(const CallShape& shape, const Device& device, bool masked = false) {
  return run_and_compare_gradient<Number, kD, kE, kCausal, kRotary>(
      shape, device, masked ? static_cast<int>(shape.block[2]) : 0);
}

TEST(Width, GradientsOfFewTokensAreWithinTheBound) {
  constexpr bool kOneKernel = [] {
    if constexpr (kD == kE) return mhla::cuda::QuadraticGradientConfig<kD>::kFits;
    return false;
  }();
  for (const Denominator denominator : kDenominators) {
    CallShape shape{.heads = 2, .tokens = {1, 12, 12}, .block = {1, 3, 4}, .layout = 2};
    shape.op.denominator = denominator;
    shape.op.eps = 1e-3f;
    const GradientPlan plan = run_backward<false>(shape, kDevices[1]);
    EXPECT_EQ(plan.quadratic, kOneKernel);
    EXPECT_EQ(plan.scores, !kOneKernel);
    if (kOneKernel) run_backward<false>(shape, kSmall);
  }
}

// With many multiprocessors one head is too few for a fused kernel.
TEST(Width, GradientsOfManyTokensAreWithinTheBound) {
  for (const Precision summaries : {Precision::kSingle, Precision::kPair}) {
    CallShape shape{.tokens = 300, .block = 64, .layout = 1};
    shape.op.summaries = summaries;
    const Arch arch = summaries == Precision::kPair ? Arch::kSm90a : Arch::kSm80;
    const GradientPlan plan = run_backward<false>(shape, {arch, 8});
    EXPECT_FALSE(plan.scores || plan.fused);
    EXPECT_EQ(plan.staged, summaries == Precision::kSingle && kD == kE && kD <= 128);
  }
}

TEST(Width, GradientsOfFewBlocksAreWithinTheBound) {
  for (const Device& device : {kDevices[0], kDevices[1], kSmall}) {
    const int most = mhla::cuda::detail::fused_gradient_blocks<kD, kE>(device);
    const bool small = device.shared_bytes == mhla::cuda::kLeastShared;
    EXPECT_EQ(most > 0, kD == kE && kD <= (small ? 72 : 96));
    if (most == 0) continue;
    CallShape shape{.tokens = {1, 20, 17}, .block = {1, 20, 17 / most + 1}, .layout = 2};
    shape.op.query_map = shape.op.key_map = mhla::cuda::FeatureMap::elu_plus_one();
    EXPECT_TRUE(run_backward<false>(shape, device).fused);
  }
}

TEST(Width, CausalGradientsAreWithinTheBound) {
  run_backward<true>({.heads = 2, .tokens = 230, .block = 40}, kDevices[0]);
  run_backward<true>({.tokens = 130, .block = 100}, kDevices[1]);
  CallShape decaying{.tokens = 90, .block = 20};
  decaying.op.decay_terms = 2;
  run_backward<true>(decaying, kDevices[0]);
}

TEST(Width, GradientsOfMaskedTokensAndPrefixesAreWithinTheBound) {
  const CallShape shape{.batch = 2, .tokens = 64, .block = 16};
  run_backward<false>(shape, kDevices[1], true);
  run_backward<true>(shape, kDevices[0], true);
  run_backward<false>({.batch = 2, .tokens = {6, 8}, .block = {3, 4}, .prefix = 2}, kDevices[0],
                      true);
}

TEST(Width, GradientsOfNormsAndRotationsAreWithinTheBound) {
  CallShape shape{.tokens = 70, .block = 35};
  shape.normed = shape.gated = true;
  run_backward<false>(shape, kDevices[0]);
  run_backward<true>(shape, kDevices[1]);
  if constexpr (mhla::cuda::Width<kD>::kWholeTiles) {
    CallShape turned{.tokens = {1, 8, 12}, .block = {1, 4, 6}, .layout = 1};
    turned.op.denominator = Denominator::kCrossQuery;
    turned.op.eps = 1e-3f;
    run_backward<false, true>(turned, kDevices[0]);
  }
}

}  // namespace
}  // namespace cuda_test

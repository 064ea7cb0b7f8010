// Tests of gradients of float32 tensors as launched, in the emulator, against the CPU's gradient
// within the derived bound (support/cuda/gradient_reference.hpp).

#include <gtest/gtest.h>

#include "mhla/cuda/launch/gradient.cuh"
#include "support/cuda/gradient_call.hpp"
#include "support/cuda/gradient_run.hpp"

namespace cuda_test {
namespace {

using mhla::cuda::Arch;
using mhla::cuda::Denominator;
using mhla::cuda::Device;
using mhla::cuda::FeatureMap;
using mhla::cuda::GradientPlan;
using mhla::cuda::Matrices;

constexpr Device kGradientA100{Arch::kSm80, 8}, kGradientH100{Arch::kSm90a, 8};

/// Runs the planned gradient and compares it with the CPU's.
template <int D, int E, bool kCausal>
void run(const CallShape& shape, const Device& device) {
  const GradientPlan plan = run_and_compare_gradient<float, D, E, kCausal>(shape, device);
  EXPECT_FALSE(plan.quadratic);
  EXPECT_FALSE(plan.scores);
  EXPECT_EQ(plan.values.form, mhla::cuda::Form::kThreeStage);
}

template <int D, int E>
void run_all() {
  CallShape shape{.heads = 2, .tokens = {9, 10}, .block = {4, 5}, .layout = 2};
  shape.op.denominator = Denominator::kCrossQuery;
  shape.op.eps = 1e-3f;
  shape.tokens = shape.key_tokens = {8, 10};
  run<D, E, false>(shape, kGradientH100);
  shape = {.tokens = 90, .block = 25, .key_tokens = 70, .key_block = 14, .layout = 1};
  run<D, E, false>(shape, kGradientA100);
  run<D, E, true>({.heads = 2, .tokens = 150, .block = 75}, kGradientH100);
}

TEST(FloatGradients, AreWithinTheBound) { run_all<64, 64>(); }
TEST(FloatGradients, OfNarrowHeadsAreWithinTheBound) { run_all<32, 32>(); }
TEST(FloatGradients, OfWiderValuesAreWithinTheBound) { run_all<48, 96>(); }
TEST(FloatGradients, OfSeventyTwoColumnsAreWithinTheBound) { run_all<72, 72>(); }
TEST(FloatGradients, OfWideHeadsAreWithinTheBound) { run_all<128, 128>(); }

TEST(FloatGradients, OfValuesInHalvesAreWithinTheBound) {
  run_all<128, 256>();
  CallShape shape{.tokens = 70, .block = 20};
  shape.op.decay_terms = 3;
  run<128, 256, true>(shape, kGradientA100);
}

TEST(FloatGradients, EveryFeatureMapIsWithinTheBound) {
  for (const FeatureMap& map : {FeatureMap::identity(), FeatureMap::elu_plus_one()}) {
    CallShape shape{.batch = 2, .tokens = 40, .block = 13};
    shape.op = {.query_map = map,
                .key_map = map,
                .denominator = map.exponential ? Denominator::kKeySum : Denominator::kNone,
                .scale = 0.7f,
                .matrices = Matrices::kPerItemAndHead};
    run<32, 32, false>(shape, kGradientA100);
    run<32, 32, true>(shape, kGradientA100);
  }
}

TEST(FloatGradients, OfNormedAndGatedOutputsAreWithinTheBound) {
  CallShape shape{.tokens = 70, .block = 35};
  shape.normed = shape.gated = true;
  run<64, 64, false>(shape, kGradientA100);
  run<64, 64, true>(shape, kGradientA100);
}

TEST(FloatGradients, OfDecayingTermsPatternsAndPrefixesAreWithinTheBound) {
  CallShape shape{.heads = 2, .tokens = 130, .block = 20};  // 7 blocks
  shape.op.decay_terms = 3;
  run<32, 32, true>(shape, kGradientA100);
  shape.op.decay_terms = 0;
  shape.pattern = mhla::Pattern(7, 7, 2, 1);
  run<32, 32, true>(shape, kGradientH100);
  run<32, 32, false>({.heads = 2, .tokens = {6, 9}, .block = {3, 4}, .prefix = 5}, kGradientA100);
}

}  // namespace
}  // namespace cuda_test

// Tests of forms of float32 tensors as launched, in the emulator: both directions, all normalisers
// and feature maps, against the CPU's form within the derived bound (support/cuda/reference.hpp).

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "mhla/cuda/launch/forms.cuh"
#include "support/cuda/random_call.hpp"
#include "support/cuda/selected_tokens.hpp"

namespace cuda_test {
namespace {

using mhla::cuda::Arch;
using mhla::cuda::Denominator;
using mhla::cuda::Device;
using mhla::cuda::FeatureMap;
using mhla::cuda::Form;
using mhla::cuda::Matrices;
using mhla::cuda::Plan;
using mhla::cuda::Precision;

constexpr Device kA100{Arch::kSm80, 8}, kH100{Arch::kSm90a, 8};
constexpr Device kSmall{Arch::kSm80, 8, 89, 0, mhla::cuda::kLeastShared};

/// Runs the planned form and compares its outputs.
template <int D, int E>
Outcome run(Call<float>& call, const Device& device) {
  const Plan plan = mhla::cuda::plan<D, E>(problem_of(call), device);
  EXPECT_EQ(plan.form, Form::kThreeStage);
  EXPECT_EQ(std::string(plan.reason), "float32 tensors have kernels of three stages alone");
  EXPECT_EQ(plan.summary, Arch::kSm80);
  EXPECT_EQ(plan.read_out, Arch::kSm80);
  EXPECT_EQ(plan.missing.kernel, nullptr);
  return run_and_compare<D, E>(call, plan, device, 1);
}
template <int D, int E>
Outcome run(const CallShape& shape, const Device& device) {
  Call<float> call = random_call<float, D, E>(shape, 1, shape.op.denominator == Denominator::kNone);
  return run<D, E>(call, device);
}

void expect_traffic(const Outcome& outcome) {
  EXPECT_EQ(outcome.bank_conflicts, 0u);
  EXPECT_GE(outcome.tensor_bytes, outcome.plan.traffic.tensors);
  EXPECT_LE(static_cast<double>(outcome.tensor_bytes),
            1.05 * static_cast<double>(outcome.plan.traffic.tensors));
  EXPECT_LE(static_cast<double>(outcome.workspace_bytes),
            1.05 * static_cast<double>(outcome.plan.traffic.summaries));
}

template <class W>
class FloatForms : public testing::Test {};
using FloatWidths = testing::Types<Width<float, 64, 64>, Width<float, 32, 32>, Width<float, 48, 96>,
                                   Width<float, 72, 72>, Width<float, 96, 48>,
                                   Width<float, 128, 128>, Width<float, 128, 256>>;
TYPED_TEST_SUITE(FloatForms, FloatWidths);

TYPED_TEST(FloatForms, AreWithinTheBoundAndMoveWhatThePlanSays) {
  constexpr int kD = TypeParam::D, kE = TypeParam::E;
  CallShape shape{.heads = 2, .tokens = {6, 9, 5}, .block = {2, 3, 5}, .layout = 1};
  expect_traffic(run<kD, kE>(shape, kH100));
  shape = {.tokens = {19, 14}, .block = {4, 3}, .layout = 2};  // ragged edges
  shape.op.denominator = Denominator::kNone;
  expect_traffic(run<kD, kE>(shape, kSmall));
}

TYPED_TEST(FloatForms, CausalAreWithinTheBoundAndMoveWhatThePlanSays) {
  constexpr int kD = TypeParam::D, kE = TypeParam::E;
  CallShape shape{.heads = 2, .tokens = 130, .block = 30, .causal = true, .layout = 1};
  expect_traffic(run<kD, kE>(shape, kH100));
  shape = {.tokens = 150, .block = 75, .causal = true, .layout = 2};
  shape.op.denominator = Denominator::kNone;
  EXPECT_EQ((run<kD, kE>(shape, kSmall)).bank_conflicts, 0u);
}

TYPED_TEST(FloatForms, CrossQueryDenominatorsAreWithinTheBound) {
  CallShape shape{.tokens = {12, 12}, .block = {3, 4}};
  shape.op.denominator = Denominator::kCrossQuery;
  shape.op.eps = 1e-6f;
  EXPECT_EQ((run<TypeParam::D, TypeParam::E>(shape, kA100)).early_launches,
            3 * mhla::cuda::kHalves<TypeParam::E>);
}

TEST(Floats, EveryFeatureMapAndScaleIsWithinTheBound) {
  for (const FeatureMap& map :
       {FeatureMap::identity(), FeatureMap::relu(0.3f), FeatureMap::elu_plus_one()}) {
    for (const bool causal : {false, true}) {
      CallShape shape{.tokens = 50, .block = 13, .causal = causal};
      shape.op = {.query_map = map,
                  .key_map = map,
                  .denominator = map.exponential ? Denominator::kKeySum : Denominator::kNone,
                  .scale = 0.7f};
      Call<float> call = random_call<float, 32, 32>(shape, 1);
      Random random(4);
      call.q.fill([&random] { return random.uniform(-20, 3); });
      run<32, 32>(call, kA100);
    }
  }
}

TEST(Floats, HeadsMayHaveMatricesOfTheirOwn) {
  for (const Matrices matrices : {Matrices::kPerHead, Matrices::kPerItemAndHead}) {
    for (const bool causal : {false, true}) {
      CallShape shape{.batch = 2, .heads = 2, .tokens = 60, .block = 12, .causal = causal};
      shape.op.matrices = matrices;
      shape.op.denominator = Denominator::kNone;
      run<32, 32>(shape, kA100);
    }
  }
}

// Numbers of 2^60 and 2^-60 have as many digits as those of 1.
TEST(Floats, NumbersOfAnySizeAreWithinTheBound) {
  for (const bool causal : {false, true}) {
    CallShape shape{.tokens = 70, .block = 20, .causal = causal};
    shape.op.denominator = Denominator::kNone;
    Call<float> call = random_call<float, 64, 64>(shape, 3);
    Random random(5);
    const auto number = [&random](int exponent) {
      return [&random, exponent] { return std::ldexp(random.uniform(0.5, 1), exponent); };
    };
    call.q.fill(number(60));
    call.k.fill(number(-60));
    call.v.fill(number(-60));
    run<64, 64>(call, kA100);
  }
}

TEST(Floats, ErrorsAreFarBelowThoseOfSixteenBits) {
  Call<float> call = random_call<float, 64, 64>({.tokens = 256, .block = 32}, 6);
  const Plan plan = mhla::cuda::plan<64, 64>(problem_of(call), kA100);
  run_only<64, 64>(call, plan, kA100, 1);
  const Expected exact = expected(call, 0, 0, 500);
  double error = 0;
  for (int t = 0; t < 256; ++t) {
    for (int e = 0; e < 64; ++e) {
      error = std::max(error, std::abs(call.o.value(0, t, 0, e) - exact.o(t, e)));
    }
  }
  EXPECT_LT(error / exact.o.cwiseAbs().maxCoeff(), 0x1p-15);
}

TEST(Floats, LaterTokensNeverEnter) {
  CallShape shape{.tokens = 132, .block = 44, .causal = true};
  shape.op.denominator = Denominator::kNone;
  const auto outputs = [&](float wrong) {
    Call<float> call = random_call<float, 64, 64>(shape, 5);
    for (int t = 70; wrong != 0 && t < 75; ++t) {  // in block 1
      for (int d = 0; d < 64; ++d) call.v.at(0, t, 0, d) = call.k.at(0, t, 0, d) = wrong;
    }
    const Plan plan = mhla::cuda::plan<64, 64>(problem_of(call), kA100);
    run_only<64, 64>(call, plan, kA100, 3);
    return call;
  };
  const Call<float> right = outputs(0);
  for (const float wrong : {std::nanf(""), std::numeric_limits<float>::infinity()}) {
    const Call<float> broken = outputs(wrong);
    for (int e = 0; e < 64; ++e) {
      for (int t = 0; t < 70; ++t) {  // from 60 on, beside such values, sums have another order
        const double exact = right.o.value(0, t, 0, e);
        ASSERT_NEAR(broken.o.value(0, t, 0, e), exact, t < 60 ? 0 : 1e-4) << t;
      }
      for (int t = 70; t < 132; ++t) ASSERT_FALSE(std::isfinite(broken.o.at(0, t, 0, e))) << t;
    }
  }
}

// Denominators depend on keys alone, so both halves have the same.
TEST(Floats, WideValuesHaveTheBitsOfTwoCalls) {
  for (const bool causal : {false, true}) {
    const CallShape shape{.heads = 2, .tokens = 70, .block = 20, .causal = causal};
    Call<float> whole = random_call<float, 128, 256>(shape, 2);
    const Plan plan = mhla::cuda::plan<128, 256>(problem_of(whole), kH100);
    run_only<128, 256>(whole, plan, kH100, 1);
    for (int h = 0; h < 2; ++h) {
      Call<float> half = random_call<float, 128, 128>(shape, 2);
      std::int64_t place = 0;
      half.each_coefficient([&](float& m, int) { m = whole.mixing[place++]; });
      half.v.each([&](int b, int t, int head, int e) {
        half.v.at(b, t, head, e) = whole.v.at(b, t, head, e + 128 * h);
      });
      const Plan of_half = mhla::cuda::plan<128, 128>(problem_of(half), kH100);
      EXPECT_EQ(plan.workspace_bytes, of_half.workspace_bytes);
      EXPECT_EQ(plan.traffic.total(), 2 * of_half.traffic.total());
      run_only<128, 128>(half, of_half, kH100, 1);
      half.o.each([&](int b, int t, int head, int e) {
        ASSERT_EQ(half.o.at(b, t, head, e), whole.o.at(b, t, head, e + 128 * h)) << t << " " << e;
      });
    }
  }
}

TEST(Floats, WideValuesHaveNoNorm) {
  CallShape shape{.tokens = 40, .block = 20};
  for (const bool normed : {false, true}) {
    shape.normed = normed;
    Call<float> call = random_call<float, 128, 256>(shape, 1);
    EXPECT_EQ((mhla::cuda::plan<128, 256>(problem_of(call), kA100).lacks_norm), normed);
  }
}

TEST(Floats, NormedAndGatedOutputsAreWithinTheBound) {
  for (const bool causal : {false, true}) {
    for (const bool gated : {false, true}) {
      CallShape shape{.heads = 2, .tokens = 96, .block = 24, .causal = causal, .layout = 1};
      shape.normed = true;
      shape.gated = gated;
      run<64, 64>(shape, kA100);
    }
  }
}

TEST(Floats, DecayingTermsPatternsAndPrefixesAreWithinTheBound) {
  CallShape shape{.heads = 2, .tokens = 130, .block = 20, .causal = true};  // 7 blocks
  shape.op.decay_terms = 3;
  run<32, 32>(shape, kA100);
  shape.op.decay_terms = 0;
  shape.pattern = mhla::Pattern(7, 7, 2, 1);
  run<32, 32>(shape, kH100);
  run<32, 32>({.heads = 2, .tokens = {6, 9}, .block = {3, 4}, .prefix = 5}, kA100);
}

class FloatTokens : public SelectedTokens<Width<float, 64, 64>> {};

TEST_F(FloatTokens, MaskedFormsAreWithinTheBound) {
  CallShape shape{.batch = 2, .tokens = 64, .block = 16};
  shape.op.query_map = FeatureMap::elu_plus_one();
  run_masked(shape, Form::kThreeStage, kA100);
  shape.causal = true;
  run_masked(shape, Form::kThreeStage, kH100);
}

TEST_F(FloatTokens, MaskedGradientsAreWithinTheBound) {
  CallShape shape{.batch = 2, .tokens = 64, .block = 16, .layout = 2};
  shape.op.key_map = FeatureMap::elu_plus_one();
  run_masked_gradient<false>(shape, kA100);
  run_masked_gradient<true>(shape, kH100);
}

TEST_F(FloatTokens, PackedSequencesHaveTheBitsOfPaddedOnes) {
  CallShape shape{.batch = 4, .tokens = 64, .block = 24};
  expect_packed_bits<false>(shape, kH100);
  shape.normed = shape.gated = true;
  expect_packed_bits<true>(shape, kA100);
}

}  // namespace
}  // namespace cuda_test

// Tests of forms that rotate features after the feature maps, as launched, in the emulator. Both
// architectures are compared with the CPU's form on features that layer/rotary.hpp has rotated,
// within the derived bound.

#include "mhla/cuda/tile/rotary.cuh"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "mhla/cuda/attention/rotary_inputs.cuh"
#include "mhla/cuda/launch/forms.cuh"
#include "support/cuda/emulated_call.hpp"
#include "support/cuda/form_test.hpp"
#include "support/cuda/random_call.hpp"

namespace {

using cuda_test::bfloat16;
using cuda_test::Call;
using cuda_test::CallShape;
using cuda_test::half;
using cuda_test::Outcome;
using mhla::cuda::Arch;
using mhla::cuda::Denominator;
using mhla::cuda::Device;
using mhla::cuda::FeatureMap;
using mhla::cuda::Form;
using mhla::cuda::Plan;
using mhla::cuda::Precision;

template <class W>
class RotaryForms : public testing::Test {
 protected:
  static constexpr int D = W::D, E = W::E;
  using T = typename W::T;

  /// \param shared  true if keys have the queries' table
  static void run(const CallShape& shape, Arch arch, bool shared = false) {
    Call<T> call = cuda_test::random_call<T, D, E>(shape, 3);
    call.query_angles = cuda_test::rotary_angles(shape, shape.tokens, D, 0);
    if (!shared) call.key_angles = cuda_test::rotary_angles(shape, shape.key_tokens, D, 20);
    const Device device{arch, 2};
    const Plan plan = mhla::cuda::plan<D, E>(cuda_test::problem_of(call), device);
    EXPECT_EQ(std::string(name(plan.form)), name(Form::kThreeStage)) << plan.reason;
    EXPECT_EQ(plan.summary, arch);
    EXPECT_EQ(plan.read_out, arch);
    const Outcome outcome = cuda_test::run_and_compare<D, E, true>(call, plan, device, 2);
    EXPECT_EQ(outcome.bank_conflicts, 0u);
    // The rotation has no pass of its own, so tensors move as often as without rotation.
    mhla::cuda::Problem still = cuda_test::problem_of(call);
    still.rotary = false;
    const auto traffic = mhla::cuda::detail::traffic<D, E>(still, Form::kThreeStage);
    EXPECT_EQ(plan.traffic.tensors - traffic.tensors,
              call.query_angles.bytes() + call.angles_of_keys().bytes());
    // Every later part of a block longer than a tile reads the block's keys and values again.
    if (arch == Arch::kSm80 && shape.causal && shape.block[2] > 64) return;
    EXPECT_LE(static_cast<double>(outcome.tensor_bytes),
              1.05 * static_cast<double>(traffic.tensors));
  }
};

using RotaryWidths =
    testing::Types<cuda_test::Width<bfloat16, 64, 64>, cuda_test::Width<bfloat16, 128, 128>,
                   cuda_test::Width<half, 128, 256>>;
TYPED_TEST_SUITE(RotaryForms, RotaryWidths);

TYPED_TEST(RotaryForms, OutputsAreWithinTheBound) {
  for (const Arch arch : {Arch::kSm80, Arch::kSm90a}) {
    CallShape shape{.heads = 2, .tokens = {3, 7, 9}, .block = {2, 3, 4}, .layout = 1};
    shape.op = {.query_map = FeatureMap::relu(0.25f),
                .key_map = FeatureMap::relu(0.25f),
                .denominator = Denominator::kNone,
                .scale = 0.5f};
    this->run(shape, arch);
  }
}

TYPED_TEST(RotaryForms, DenominatorsAreOfFeaturesThatDoNotTurn) {
  for (const Denominator denominator : {Denominator::kKeySum, Denominator::kCrossQuery}) {
    CallShape shape{.tokens = {1, 8, 12}, .block = {1, 4, 6}};
    shape.op = {.query_map = FeatureMap::elu_plus_one(),
                .key_map = FeatureMap::elu_plus_one(),
                .denominator = denominator,
                .eps = 1e-3f};
    for (const Arch arch : {Arch::kSm80, Arch::kSm90a}) this->run(shape, arch);
  }
}

TYPED_TEST(RotaryForms, KeysTurnByAnglesOfTheirOwn) {
  CallShape shape{.tokens = 70, .block = 35, .key_tokens = {1, 9, 7}, .key_block = {1, 4, 4}};
  shape.op.denominator = Denominator::kNone;
  shape.op.summaries = Precision::kPair;
  for (const Arch arch : {Arch::kSm80, Arch::kSm90a}) this->run(shape, arch);
}

TYPED_TEST(RotaryForms, CausalOutputsAreWithinTheBound) {
  for (const int block : {100, 40}) {
    CallShape shape{.tokens = 230, .block = block, .causal = true};
    shape.op = {.query_map = FeatureMap::relu(0),
                .key_map = FeatureMap::relu(0),
                .denominator = Denominator::kNone,
                .scale = 0.125f};
    for (const Arch arch : {Arch::kSm80, Arch::kSm90a}) {
      for (const bool shared : {false, true}) this->run(shape, arch, shared);
    }
  }
}

}  // namespace

// Tests of forms with normalised and gated outputs as launched, in the emulator. Both architectures
// are compared with the CPU's form with the norm in double, within the derived bound.

#include <gtest/gtest.h>

#include <string>

#include "mhla/cuda/launch/forms.cuh"
#include "support/cuda/emulated_call.hpp"
#include "support/cuda/form_test.hpp"
#include "support/cuda/random_call.hpp"

namespace {

using cuda_test::Call;
using cuda_test::CallShape;
using cuda_test::Outcome;
using mhla::cuda::Arch;
using mhla::cuda::Denominator;
using mhla::cuda::Device;
using mhla::cuda::Form;
using mhla::cuda::Plan;
using mhla::cuda::Precision;

template <class W>
class NormedForms : public testing::Test {
 protected:
  static constexpr int D = W::D, E = W::E;
  using T = typename W::T;

  /// Runs a shape with a gain only, and with a gain and a gate.
  static void run(CallShape shape) {
    shape.normed = true;
    for (const bool gated : {false, true}) {
      shape.gated = gated;
      for (const Arch arch : {Arch::kSm80, Arch::kSm90a}) {
        Call<T> call = cuda_test::random_call<T, D, E>(shape, 3);
        const Device device{arch, 2};
        const Plan plan = mhla::cuda::plan<D, E>(cuda_test::problem_of(call), device);
        EXPECT_EQ(std::string(name(plan.form)), name(Form::kThreeStage)) << plan.reason;
        const Outcome outcome = cuda_test::run_and_compare<D, E>(call, plan, device, 2);
        EXPECT_EQ(outcome.bank_conflicts, 0u);
        EXPECT_GT(outcome.worst, 0.001) << "the bound is far too wide";
      }
    }
  }
};

TYPED_TEST_SUITE(NormedForms, cuda_test::Widths);

TYPED_TEST(NormedForms, OutputsAreWithinTheBound) {
  for (const Denominator denominator :
       {Denominator::kKeySum, Denominator::kNone, Denominator::kCrossQuery}) {
    CallShape shape{.heads = 2, .tokens = {8, 12}, .block = {4, 6}, .layout = 1};
    shape.op.denominator = denominator;
    this->run(shape);
  }
}

TYPED_TEST(NormedForms, CausalOutputsAreWithinTheBound) {
  CallShape shape{.tokens = 150, .block = 70, .causal = true};
  shape.op.summaries = Precision::kPair;
  this->run(shape);
}

}  // namespace

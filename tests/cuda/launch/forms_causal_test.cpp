// Tests of causal forms as launched, in the emulator: every form, width and type on blocks of all
// lengths, against the CPU's form within the derived bound.

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "mhla/cuda/launch/forms.cuh"
#include "support/cuda/form_test.hpp"

namespace {

using cuda_test::Call;
using cuda_test::CallShape;
using cuda_test::Outcome;
using mhla::cuda::Arch;
using mhla::cuda::Denominator;
using mhla::cuda::Device;
using mhla::cuda::Form;
using mhla::cuda::Matrices;
using mhla::cuda::Plan;
using mhla::cuda::Precision;

template <class W>
class CausalForms : public cuda_test::FormTest<W> {};

TYPED_TEST_SUITE(CausalForms, cuda_test::Widths);

TYPED_TEST(CausalForms, QuadraticIsWithinTheBound) {
  for (const int tokens : {1, 63, 150}) {
    const Outcome outcome = this->run({.heads = 2, .tokens = tokens, .block = 16, .causal = true},
                                      Arch::kSm80, Form::kQuadratic);
    EXPECT_EQ(outcome.bank_conflicts, 0u);
  }
}

TYPED_TEST(CausalForms, FusedIsWithinTheBoundAndMovesEachTensorOnce) {
  if (TypeParam::D != 64) return;
  for (const auto& [tokens, block] : {std::pair{257, 16}, {270, 49}, {800, 25}}) {
    CallShape shape{.heads = 2, .tokens = tokens, .block = block, .causal = true};
    shape.op.denominator = block == 49 ? Denominator::kNone : Denominator::kKeySum;
    const Outcome outcome = this->run(shape, Arch::kSm90a, Form::kFused);
    EXPECT_EQ(outcome.bank_conflicts, 0u);
    this->expect_traffic(outcome);
  }
}

TYPED_TEST(CausalForms, ThreeStagesAreWithinTheBoundAndMoveWhatThePlanSays) {
  const CallShape shapes[] = {{.heads = 2, .tokens = 257, .block = 16},
                              {.tokens = 270, .block = 49, .layout = 1},
                              {.tokens = 320, .block = 64, .layout = 2},
                              {.tokens = 300, .block = 128}};
  for (const std::size_t turn : this->turns(std::size(shapes))) {
    for (const Arch arch : this->archs(turn)) {
      CallShape shape = shapes[turn];
      shape.causal = true;
      shape.op.denominator = shape.layout == 0 ? Denominator::kKeySum : Denominator::kNone;
      const Outcome outcome = this->run(shape, arch, Form::kThreeStage, 2, this->kMany);
      EXPECT_EQ(outcome.early_launches, 2);
      EXPECT_EQ(outcome.bank_conflicts, 0u);
      // Every later part of a block longer than a tile reads the block's keys and values again.
      if (shape.block[2] > 64) continue;
      this->expect_traffic(outcome);
    }
  }
}

TYPED_TEST(CausalForms, PairsOfSummariesAreWithinTheBound) {
  CallShape shape{.tokens = 260, .block = 52, .causal = true};
  shape.op.denominator = Denominator::kNone;
  shape.op.summaries = Precision::kPair;
  for (const Arch arch : this->archs(1)) this->run(shape, arch, Form::kThreeStage);
}

TYPED_TEST(CausalForms, HeadsMayHaveMatricesOfTheirOwn) {
  CallShape shape{.batch = 2, .heads = 2, .tokens = 330, .block = 16, .causal = true};
  for (const Matrices matrices : this->matrices(0)) {
    shape.op.matrices = matrices;
    for (const Arch arch : this->archs(1)) {
      this->run(shape, arch, Form::kThreeStage, 2, 2 * this->kMany + 1);
    }
    if (TypeParam::D == 64) this->run(shape, Arch::kSm90a, Form::kFused);
    CallShape few = shape;
    few.tokens = few.key_tokens = 150;
    few.block = few.key_block = 2;
    this->run(few, Arch::kSm80, Form::kQuadratic);
  }
}

TYPED_TEST(CausalForms, LargeSumsStayInRange) {
  for (const Arch arch : this->archs(0)) {
    auto call = this->call_of_large_sums({.tokens = 512, .block = 256, .causal = true});
    this->run(call, arch, Form::kThreeStage);
  }
}

// The case of forms_test.cpp, and the first block's weight of itself is 0 too.
TYPED_TEST(CausalForms, DenominatorsMayBeZero) {
  const auto run = [](Arch arch, Form form) {
    const CallShape shape{.tokens = 64, .block = 16, .causal = true};
    TestFixture::run_over_zero(shape, arch, form);
    auto call = cuda_test::random_call<typename TypeParam::T, TypeParam::D, TypeParam::E>(shape, 1);
    for (const int i : {0, 2}) {
      for (int b = 0; b < 4; ++b) call.mixing[4 * i + b] = 0;
    }
    const Device device{arch, 2};
    const auto plan = mhla::cuda::detail::planned<TypeParam::D, TypeParam::E>(
        cuda_test::problem_of(call), device, form, "");
    cuda_test::run_and_compare<TypeParam::D, TypeParam::E>(call, plan, device, 1);
  };
  for (const Arch arch : this->archs(0)) run(arch, Form::kThreeStage);
  run(Arch::kSm80, Form::kQuadratic);
  if (TypeParam::D == 64) run(Arch::kSm90a, Form::kFused);
}

TYPED_TEST(CausalForms, LaterBlocksNeverEnter) {
  constexpr int kD = TypeParam::D, kE = TypeParam::E;
  using Scalar = typename TypeParam::T;
  CallShape shape{.tokens = 264, .block = 24};
  shape.causal = true;
  shape.op.denominator = Denominator::kNone;
  const auto outputs = [&](bool broken, const Device& device) {
    Call<Scalar> call = cuda_test::random_call<Scalar, kD, kE>(shape, 5);
    for (int t = 120; broken && t < 144; ++t) {  // block 5 of 11
      for (int d = 0; d < kE; ++d) call.v.at(0, t, 0, d) = Scalar{0x7FFF};
      for (int d = 0; d < kD; ++d) call.k.at(0, t, 0, d) = Scalar{0x7FFF};
    }
    const Plan plan = mhla::cuda::plan<kD, kE>(cuda_test::problem_of(call), device);
    const bool fused = kD == 64 && device.arch == Arch::kSm90a && device.multiprocessors == 2;
    EXPECT_EQ(std::string(name(plan.form)), name(fused ? Form::kFused : Form::kThreeStage));
    cuda_test::run_only<kD, kE>(call, plan, device, 3);
    return call;
  };
  std::vector<Device> devices{{Arch::kSm90a, 2}};
  for (const Arch arch : this->archs(0)) devices.push_back({arch, this->kMany});
  for (const Device& device : devices) {
    const Call<Scalar> right = outputs(false, device), broken = outputs(true, device);
    for (int t = 0; t < 120; ++t) {
      for (int e = 0; e < kE; ++e) {
        ASSERT_EQ(right.o.at(0, t, 0, e).bits, broken.o.at(0, t, 0, e).bits) << t << " " << e;
      }
    }
    for (int t = 120; t < 264; ++t) {
      for (int e = 0; e < kE; ++e) ASSERT_TRUE(std::isnan(broken.o.value(0, t, 0, e))) << t;
    }
  }
}

}  // namespace

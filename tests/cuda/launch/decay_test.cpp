// Tests of decaying terms as launched, in the emulator: causal forms and their gradients, against
// the CPU's with the same matrix in double, within the derived bounds.

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "mhla/cuda/kernel/decay_mixing_sm80.cuh"
#include "mhla/cuda/kernel/decay_products_sm80.cuh"
#include "mhla/cuda/kernel/decay_sums.cuh"
#include "mhla/cuda/kernel/intra_weights.cuh"
#include "mhla/cuda/launch/forms.cuh"
#include "mhla/cuda/launch/gradient.cuh"
#include "support/cuda/form_test.hpp"
#include "support/cuda/gradient_run.hpp"

namespace {

using cuda_test::CallShape;
using cuda_test::GradientCall;
using cuda_test::GradientTensors;
using cuda_test::Outcome;
using mhla::cuda::Arch;
using mhla::cuda::Denominator;
using mhla::cuda::Device;
using mhla::cuda::FeatureMap;
using mhla::cuda::Form;
using mhla::cuda::GradientPlan;
using mhla::cuda::Matrices;
using mhla::cuda::Precision;

template <class W>
class DecayForms : public cuda_test::FormTest<W> {
 protected:
  static constexpr int D = W::D, E = W::E;
  using T = typename W::T;

  static CallShape shape(int tokens, int block, int terms) {
    CallShape shape{.tokens = tokens, .block = block, .causal = true};
    shape.op.decay_terms = terms;
    return shape;
  }
  template <bool kRotary = false>
  static GradientPlan run_gradient(const CallShape& shape, Arch arch) {
    return cuda_test::run_and_compare_gradient<T, D, E, true, kRotary>(shape, Device{arch, 2});
  }
  /// Returns the bits of all gradients under a schedule.
  static std::vector<std::string> bits(GradientCall<T>& call, Arch arch, unsigned schedule) {
    GradientTensors<T> got(call, 0);
    cuda_test::run_gradient<D, E, true>(call, got, Device{arch, 2}, schedule);
    return cuda_test::bits_of(got);
  }
};

TYPED_TEST_SUITE(DecayForms, cuda_test::Widths);

// Cases: fewer and more blocks than are loaded together, one block, a short last block, and more
// terms than gradients have in a thread.
TYPED_TEST(DecayForms, AreWithinTheBoundAndMoveWhatThePlanSays) {
  CallShape shapes[] = {this->shape(20, 20, 2), this->shape(270, 49, 4), this->shape(330, 16, 1)};
  shapes[1].op.denominator = Denominator::kNone;
  shapes[1].layout = 1;
  shapes[2].heads = 2;
  for (const std::size_t turn : this->turns(std::size(shapes))) {
    for (const Arch arch : this->archs(turn)) {
      const Outcome outcome = this->run(shapes[turn], arch, Form::kThreeStage, 2);
      EXPECT_EQ(outcome.early_launches, 2);
      EXPECT_EQ(outcome.bank_conflicts, 0u);
      this->expect_traffic(outcome);
    }
  }
}

TYPED_TEST(DecayForms, PairsOfSummariesAreWithinTheBound) {
  CallShape shape = this->shape(200, 10, 5);
  shape.op.summaries = Precision::kPair;
  for (const Arch arch : this->archs(1)) this->run(shape, arch, Form::kThreeStage);
}

TYPED_TEST(DecayForms, HeadsMayHaveTermsOfTheirOwn) {
  CallShape shape = this->shape(130, 16, 3);
  shape.batch = shape.heads = 2;
  for (const Matrices matrices : this->matrices(0)) {
    shape.op.matrices = matrices;
    for (const Arch arch : this->archs(1)) this->run(shape, arch, Form::kThreeStage);
  }
}

TYPED_TEST(DecayForms, GradientsAreWithinTheBound) {
  for (const Arch arch : this->archs(0)) {
    CallShape shape = this->shape(230, 20, 2);
    shape.heads = 2;
    this->run_gradient(shape, arch);
  }
  CallShape none = this->shape(150, 40, 5);  // more terms than a thread has
  none.op.denominator = Denominator::kNone;
  none.op.query_map = FeatureMap::identity();
  none.layout = 1;
  this->run_gradient(none, Arch::kSm80);
}

TYPED_TEST(DecayForms, GradientsOfPairsAndOfTermsOfHeadsAreWithinTheBound) {
  CallShape shape = this->shape(90, 9, 3);
  shape.batch = shape.heads = 2;
  for (const Matrices matrices : this->matrices(1)) {
    shape.op.matrices = matrices;
    shape.op.summaries = matrices == Matrices::kPerHead ? Precision::kSingle : Precision::kPair;
    this->run_gradient(shape, Arch::kSm90a);
  }
}

// An array of M^2 numbers would need 64 GiB, and four times as much for twice the blocks.
TYPED_TEST(DecayForms, WorkspacesOfGradientsGrowWithTheBlocksAlone) {
  const auto bytes = [](int blocks) {
    mhla::cuda::GradientProblem problem{};
    mhla::cuda::Problem& forward = problem.forward;
    forward.batch = forward.heads = 1;
    forward.query_blocks = forward.key_blocks = mhla::cuda::TokenBlocks(1, 1, blocks, 1, 1, 1);
    forward.causal = true;
    forward.op.decay_terms = 2;
    problem.wants = {true, true, true, true, false, false};
    const auto plan = mhla::cuda::gradient_plan<TypeParam::D, TypeParam::E, true, false>(
        problem, Device{Arch::kSm90a, 132});
    return static_cast<double>(plan.workspace_bytes);
  };
  EXPECT_LT(bytes(1 << 18), 2.01 * bytes(1 << 17));
}

TYPED_TEST(DecayForms, BitsOfGradientsAreTheSameEachTime) {
  using Number = typename TypeParam::T;
  CallShape shape = this->shape(120, 24, 2);
  shape.heads = 2;
  GradientCall<Number> call =
      cuda_test::random_gradient_call<Number, TypeParam::D, TypeParam::E>(shape, 5);
  EXPECT_EQ(this->bits(call, Arch::kSm90a, 0), this->bits(call, Arch::kSm90a, 7));
}

}  // namespace

// Tests of banded and sparse mixing matrices as launched, in the emulator: forms and their
// gradients, against the CPU's with the same matrix in double, within the derived bounds.

#include "mhla/cuda/attention/pattern.cuh"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "mhla/cuda/launch/forms.cuh"
#include "mhla/cuda/launch/gradient.cuh"
#include "support/cuda/form_test.hpp"
#include "support/cuda/gradient_run.hpp"

namespace {

using cuda_test::CallShape;
using mhla::Pattern;
using mhla::cuda::Arch;
using mhla::cuda::Device;
using mhla::cuda::Form;
using mhla::cuda::GradientPlan;
using mhla::cuda::Matrices;
using mhla::cuda::Precision;

template <class W>
class PatternForms : public cuda_test::FormTest<W> {
 protected:
  static constexpr int D = W::D, E = W::E;
  using T = typename W::T;

  template <bool kCausal>
  static GradientPlan run_gradient(const CallShape& shape, const Device& device) {
    return cuda_test::run_and_compare_gradient<T, D, E, kCausal>(shape, device);
  }
  /// Lists of the block itself, the first and the last one, in every row.
  static Pattern three_blocks(mhla::Index blocks) {
    std::vector<std::vector<mhla::Index>> lists;
    for (mhla::Index i = 0; i < blocks; ++i) {
      lists.push_back({0});
      if (i > 0) lists.back().push_back(i);
      if (i + 1 < blocks) lists.back().push_back(blocks - 1);
    }
    return {blocks, lists};
  }
};

TYPED_TEST_SUITE(PatternForms, cuda_test::Widths);

TYPED_TEST(PatternForms, ThreeStagesAreWithinTheBound) {
  CallShape shape{.tokens = 210, .block = 3};  // 70 blocks: two tiles
  for (const bool causal : {false, true}) {
    if (!this->kAllCases && causal == (TypeParam::D == TypeParam::E)) continue;
    shape.causal = causal;
    shape.pattern = causal ? Pattern(70, 70, 3, 1) : this->three_blocks(70);
    shape.op.summaries = causal ? Precision::kSingle : Precision::kPair;
    for (const Arch arch : this->archs(0)) {
      this->run_three_stages(shape, arch, 1, 2 * this->kMany + 1);
    }
  }
}

// Forms without summaries in device memory read the zeros outside of the pattern.
TYPED_TEST(PatternForms, OtherFormsAreWithinTheBound) {
  CallShape shape{.heads = 2, .tokens = 96, .block = 16};
  shape.pattern = Pattern(6, 6, 1, 0);
  this->run(shape, Arch::kSm80, Form::kQuadratic);
}

TYPED_TEST(PatternForms, GradientsAreWithinTheBoundAndZeroOutsideOfThePattern) {
  CallShape shape{.tokens = 280, .block = 4};  // 70 blocks: two tiles
  shape.pattern = Pattern(70, 70, 2, 1);
  CallShape lists = shape;
  lists.pattern = this->three_blocks(70);
  for (const Arch arch : this->archs(0)) {
    this->template run_gradient<true>(shape, Device{arch, 2});
    if (!this->kAllCases) return;
    EXPECT_FALSE(this->template run_gradient<false>(lists, Device{arch, 2}).scores);
  }
  CallShape causal{.tokens = 64, .block = 16};  // lists without most own blocks
  causal.pattern = Pattern(4, {{0}, {0}, {1}, {0, 2}});
  this->template run_gradient<true>(causal, Device{Arch::kSm80, 2});
  CallShape few{.batch = 2, .heads = 2, .tokens = 64, .block = 16};
  few.pattern = Pattern(4, 4, 0, 2);
  few.op.matrices = Matrices::kPerHead;
  for (const std::int32_t shared : {mhla::cuda::kLeastShared, 232448}) {
    const Device device = mhla::cuda::with_shared_bytes({Arch::kSm90a, 2}, shared);
    const GradientPlan plan = this->template run_gradient<false>(few, device);
    EXPECT_TRUE(plan.quadratic || plan.scores);
  }
}

}  // namespace

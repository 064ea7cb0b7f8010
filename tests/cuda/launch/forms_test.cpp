// Tests of bidirectional forms as launched, in the emulator: every form, width and type on blocks
// of all kinds, against the CPU's form within the derived bound.

#include "mhla/cuda/launch/forms.cuh"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <utility>
#include <vector>

#include "support/cuda/form_test.hpp"

namespace {

using cuda_test::CallShape;
using cuda_test::Outcome;
using mhla::cuda::Arch;
using mhla::cuda::Denominator;
using mhla::cuda::Device;
using mhla::cuda::FeatureMap;
using mhla::cuda::Form;
using mhla::cuda::Matrices;
using mhla::cuda::Plan;
using mhla::cuda::Precision;

template <class W>
class BidirectionalForms : public cuda_test::FormTest<W> {
 protected:
  /// Plans for one multiprocessor, and for as many as make the quadratic form split keys, if it
  /// can.
  static std::vector<std::int32_t> few_and_many() {
    using Test = cuda_test::FormTest<W>;
    if (!Test::kSplitsKeys) return {1};
    return {1, Test::kMoreThanStrips};
  }
};

TYPED_TEST_SUITE(BidirectionalForms, cuda_test::Widths);

TYPED_TEST(BidirectionalForms, QuadraticIsWithinTheBound) {
  for (const auto& [tokens, block] :
       {std::pair<mhla::GridShape, mhla::GridShape>{200, 16}, {{9, 10}, {4, 5}}, {1, 1}}) {
    for (const Arch arch : {Arch::kSm80, Arch::kSm90a}) {
      for (const std::int32_t multiprocessors : this->few_and_many()) {
        const CallShape shape{.heads = tokens[2] == 1 ? 5 : 2, .tokens = tokens, .block = block};
        const Outcome outcome = this->run(shape, arch, Form::kQuadratic, 1, multiprocessors);
        EXPECT_EQ(outcome.bank_conflicts, 0u);
      }
    }
  }
}

TYPED_TEST(BidirectionalForms, OneBlockOfQueriesReadsEachTensorOnce) {
  for (const Arch arch : {Arch::kSm80, Arch::kSm90a}) {
    const Outcome outcome =
        this->run({.heads = 2, .tokens = 96, .block = 16}, arch, Form::kQuadratic, 1, 1);
    this->expect_traffic(outcome);
  }
}

TYPED_TEST(BidirectionalForms, ThreeStagesAreWithinTheBoundAndMoveWhatThePlanSays) {
  const CallShape shapes[] = {
      {.batch = 2, .tokens = 17 * 17, .block = 17},                         // 17 blocks
      {.heads = 2, .tokens = {6, 9, 10}, .block = {2, 3, 5}, .layout = 1},  // 18
      {.heads = 1, .tokens = {19, 14}, .block = {4, 3}, .layout = 2},       // 25, ragged edges
      {.heads = 1, .tokens = 500, .block = 29},                             // 18, a short last one
  };
  for (const std::size_t turn : this->turns(std::size(shapes))) {
    for (const Arch arch : this->archs(turn)) {
      CallShape shape = shapes[turn];
      shape.op.denominator = shape.heads == 2 ? Denominator::kNone : Denominator::kKeySum;
      const Outcome outcome = this->run_three_stages(shape, arch, 1, 3);
      EXPECT_EQ(outcome.bank_conflicts, 0u);
      EXPECT_EQ(outcome.early_launches, 2);
      this->expect_traffic(outcome);
    }
  }
}

TYPED_TEST(BidirectionalForms, FusedIsWithinTheBoundAndMovesEachTensorOnce) {
  for (const Arch arch : {Arch::kSm80, Arch::kSm90a}) {
    const auto bounds = mhla::cuda::form_bounds<TypeParam::D, TypeParam::E>(arch);
    for (const int blocks : {3, 4, 16}) {
      if (blocks > bounds.fused_blocks) continue;
      CallShape shape{.heads = 3, .tokens = {1, 23, 4 * blocks}, .block = {1, 24, 4}};
      shape.op.overlaps_heads = blocks == 4;
      const Outcome outcome = this->run(shape, arch, Form::kFused);
      EXPECT_EQ(outcome.plan.overlaps_heads,
                blocks == 4 && arch == Arch::kSm90a && TypeParam::D < 128);
      EXPECT_EQ(outcome.bank_conflicts, 0u);
      this->expect_traffic(outcome);
    }
  }
}

TYPED_TEST(BidirectionalForms, SlabsOfColumnsAreWithinTheBound) {
  CallShape shape{.batch = 2, .heads = 2, .tokens = {35, 40}, .block = {4, 8}};  // 45 blocks
  shape.op.matrices = Matrices::kPerItemAndHead;
  shape.op.slabs = true;
  const bool has_kernel = TypeParam::D == 64;
  const Outcome outcome =
      this->run(shape, Arch::kSm90a, has_kernel ? Form::kFused : Form::kThreeStage);
  EXPECT_EQ(outcome.plan.slabs, has_kernel);
  if (has_kernel) this->expect_traffic(outcome);
  if (this->kAllCases) this->run(shape, Arch::kSm80, Form::kThreeStage);
}

TYPED_TEST(BidirectionalForms, PairsOfSummariesAreWithinTheBound) {
  CallShape shape{.heads = 1, .tokens = 300, .block = 30};
  shape.op.denominator = Denominator::kNone;
  shape.op.summaries = Precision::kPair;
  for (const Arch arch : this->archs(0)) this->run(shape, arch, Form::kThreeStage);
}

TYPED_TEST(BidirectionalForms, CrossQueryDenominatorsAreWithinTheBound) {
  CallShape shape{.batch = this->kAllCases ? 2 : 1, .tokens = {12, 12}, .block = {3, 4}};
  shape.op.denominator = Denominator::kCrossQuery;
  shape.op.eps = 1e-6f;
  const Form form = TypeParam::D == 128 ? Form::kThreeStage : Form::kQuadratic;
  for (const Arch arch : this->archs(1)) this->run(shape, arch, form);
  for (const Arch arch : this->archs(1)) {
    EXPECT_EQ(this->run_three_stages(shape, arch, 1, 2).early_launches, 3);
  }
  shape.tokens = shape.key_tokens = {8, 16};  // a thread block of any width has all queries
  shape.block = shape.key_block = {4, 4};
  shape.heads = 5;
  for (const Arch arch : {Arch::kSm80, Arch::kSm90a}) {
    const Outcome outcome = this->run(shape, arch, Form::kQuadratic);
    EXPECT_EQ(outcome.bank_conflicts, 0u);
    this->expect_traffic(outcome);
  }
}

TYPED_TEST(BidirectionalForms, KeysMayBeOthersThanQueries) {
  CallShape shape{.heads = this->kAllCases ? 2 : 1,
                  .tokens = 90,
                  .block = 30,
                  .key_tokens = {20, 18},
                  .key_block = {4, 3}};
  this->run(shape, Arch::kSm80, Form::kThreeStage);
  shape.key_tokens = 70;
  shape.key_block = 35;
  for (const Arch arch : this->archs(1)) {
    for (const std::int32_t multiprocessors : this->few_and_many()) {
      this->run(shape, arch, Form::kQuadratic, 1, multiprocessors);
    }
  }
}

// Cases: every kernel of every form, with matrices that fit into shared memory and that do not.
TYPED_TEST(BidirectionalForms, HeadsMayHaveMatricesOfTheirOwn) {
  const auto each = [&](const CallShape& of, std::size_t turn, const auto& run) {
    for (const Matrices matrices : this->matrices(turn)) {
      for (const Arch arch : this->archs(turn)) {
        CallShape shape = of;
        shape.op.matrices = matrices;
        run(shape, arch);
      }
    }
  };
  const CallShape few{.batch = 2, .heads = 2, .tokens = 150, .block = 2};
  for (const std::int32_t multiprocessors : this->few_and_many()) {
    each(few, 0, [&](const CallShape& shape, Arch arch) {
      this->run(shape, arch, Form::kQuadratic, 1, multiprocessors);
    });
  }
  CallShape cross{.batch = 2, .heads = 2, .tokens = {8, 16}, .block = {4, 4}};
  cross.op.denominator = Denominator::kCrossQuery;
  cross.op.eps = 1e-6f;
  each(cross, 1, [&](const CallShape& shape, Arch arch) {
    this->run(shape, arch, Form::kQuadratic);
    this->run_three_stages(shape, arch, 1, 2);
  });
  const CallShape many{
      .batch = 2, .heads = 2, .tokens = 90, .block = 5, .key_tokens = 70, .key_block = 7};
  each(many, 0, [&](const CallShape& shape, Arch arch) {
    this->run_three_stages(shape, arch, 1, 3);
    const auto bounds = mhla::cuda::form_bounds<TypeParam::D, TypeParam::E>(arch);
    for (const int blocks : {3, 16}) {
      if (blocks > bounds.fused_blocks) continue;
      CallShape fused = shape;
      const int rows = blocks == 3 ? 24 : 8;  // more keys than the quadratic form takes
      fused.tokens = fused.key_tokens = {1, rows - 1, 4 * blocks};
      fused.block = fused.key_block = {1, rows, 4};
      this->run(fused, arch, Form::kFused);
    }
  });
  if (!this->kAllCases) return;
  CallShape large{.heads = 2, .tokens = 65, .block = 1, .key_tokens = 325, .key_block = 1};
  large.op.summaries = Precision::kPair;
  large.op.matrices = Matrices::kPerHead;
  auto call = cuda_test::random_call<typename TypeParam::T, TypeParam::D, TypeParam::E>(large, 1);
  // Averages of many coefficients would be alike.
  call.each_coefficient([](float& m, int matrix) { m *= static_cast<float>(1 + matrix); });
  const Device device{Arch::kSm90a, 8};
  const auto plan = mhla::cuda::detail::planned<TypeParam::D, TypeParam::E>(
      cuda_test::problem_of(call), device, Form::kThreeStage, "");
  cuda_test::run_and_compare<TypeParam::D, TypeParam::E>(call, plan, device, 1);
}

TYPED_TEST(BidirectionalForms, EveryFeatureMapAndScaleIsWithinTheBound) {
  const FeatureMap maps[] = {FeatureMap::identity(), FeatureMap::relu(0.5f),
                             FeatureMap::elu_plus_one()};
  const int tokens[] = {260, 50};
  for (const std::size_t turn : this->turns(6)) {  // the last two: (50, relu), (50, elu + 1)
    CallShape shape{.heads = turn < 3 ? 1 : 2, .tokens = tokens[turn / 3], .block = 13};
    shape.op = {.query_map = maps[turn % 3],
                .key_map = maps[turn % 3],
                .denominator = Denominator::kNone,
                .scale = 0.125f};
    if (turn < 3) {
      this->run(shape, Arch::kSm80, Form::kThreeStage);
    } else {
      for (const Arch arch : this->archs(turn)) {
        for (const std::int32_t multiprocessors : this->few_and_many()) {
          this->run(shape, arch, Form::kQuadratic, 1, multiprocessors);
        }
      }
    }
  }
}

TYPED_TEST(BidirectionalForms, LargeSumsStayInRange) {
  for (const Precision precision : {Precision::kSingle, Precision::kPair}) {
    CallShape shape{.tokens = 420, .block = 210};
    shape.op.summaries = precision;
    shape.op.denominator = Denominator::kCrossQuery;  // no fused kernel supports it
    for (const Arch arch : this->archs(precision == Precision::kPair ? 0 : 1)) {
      auto call = this->call_of_large_sums(shape);
      this->run(call, arch, Form::kThreeStage);
    }
  }
  if (TypeParam::E == 256) return;
  auto call = this->call_of_large_sums({.tokens = 420, .block = 210});
  this->run(call, Arch::kSm80, Form::kFused);
}

// 0 / 0 is 0, as on the CPU, where a row of the mixing matrix is 0; -1 / 0 is infinite.
TYPED_TEST(BidirectionalForms, DenominatorsMayBeZero) {
  const auto run = [](Arch arch, Form form, std::int32_t multiprocessors,
                      Denominator denominator = Denominator::kKeySum) {
    CallShape shape{.tokens = 64, .block = 16};
    shape.op.denominator = denominator;
    TestFixture::run_over_zero(shape, arch, form, multiprocessors);
    auto call = cuda_test::random_call<typename TypeParam::T, TypeParam::D, TypeParam::E>(shape, 1);
    for (int b = 0; b < 4; ++b) call.mixing[4 + b] = 0;
    const Device device{arch, multiprocessors};
    const auto plan = mhla::cuda::detail::planned<TypeParam::D, TypeParam::E>(
        cuda_test::problem_of(call), device, form, "");
    cuda_test::run_and_compare<TypeParam::D, TypeParam::E>(call, plan, device, 1);
  };
  for (const Arch arch : this->archs(0)) {
    run(arch, Form::kThreeStage, 2);
    run(arch, Form::kQuadratic, 1, Denominator::kCrossQuery);
    for (const std::int32_t multiprocessors : this->few_and_many()) {
      run(arch, Form::kQuadratic, multiprocessors);
    }
    const auto bounds = mhla::cuda::form_bounds<TypeParam::D, TypeParam::E>(arch);
    if (bounds.fused_blocks >= 4) run(arch, Form::kFused, 2);
  }
}

}  // namespace

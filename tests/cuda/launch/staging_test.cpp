// Tests of masked tokens and packed sequences in forms and gradients, in the emulator: against the
// CPU within the derived bounds, and in the bits of each sequence alone.

#include "mhla/cuda/launch/staging.cuh"

#include <gtest/gtest.h>

#include <cstdint>

#include "mhla/cuda/kernel/selected_rows_sm80.cuh"
#include "mhla/cuda/kernel/token_pieces.cuh"
#include "mhla/cuda/launch/gradient_staging.cuh"
#include "mhla/cuda/launch/workspace_cursor.cuh"
#include "mhla/cuda/tile/selection.cuh"
#include "support/cuda/form_test.hpp"
#include "support/cuda/selected_tokens.hpp"

namespace {

using cuda_test::CallShape;
using mhla::cuda::Arch;
using mhla::cuda::Denominator;
using mhla::cuda::Device;
using mhla::cuda::FeatureMap;
using mhla::cuda::Form;

// 2^29 + 64 tokens have more than 2^32 pieces of 16 bytes.
struct LongPieces {
  std::int32_t tokens, heads;
};
static_assert(mhla::cuda::TokenPieces<LongPieces, 64>::grid({(1 << 29) + 64, 1}, 1) == 4194305);

template <class W>
class SelectedTokens : public cuda_test::SelectedTokens<W> {};

TYPED_TEST_SUITE(SelectedTokens, cuda_test::Widths);

TYPED_TEST(SelectedTokens, MaskedFormsAreWithinTheBound) {
  for (const Arch arch : this->archs(0)) {
    CallShape shape{.batch = 2, .tokens = 64, .block = 16};
    shape.op.query_map = FeatureMap::elu_plus_one();
    this->run_masked(shape, Form::kQuadratic, {arch, 1});
    shape.causal = true;
    this->run_masked(shape, Form::kQuadratic, {arch, 1});
    shape = {.tokens = 300, .block = 100};
    const auto bounds = mhla::cuda::form_bounds<TypeParam::D, TypeParam::E>(arch);
    if (bounds.fused_blocks >= 4) this->run_masked(shape, Form::kFused, {arch, 2});
    this->run_masked(shape, Form::kThreeStage, {arch, 8});
    shape.causal = true;
    shape.op.denominator = Denominator::kNone;
    shape.normed = shape.gated = true;
    this->run_masked(shape, Form::kThreeStage, {arch, 8});
  }
}

TYPED_TEST(SelectedTokens, MaskedQueriesAreZeroWhateverOthersRead) {
  CallShape shape{.tokens = 64, .block = 16};
  this->expect_zeros_beside_nan(shape, {this->archs(0)[0], 2});
  shape.normed = shape.gated = true;
  this->expect_zeros_beside_nan(shape, {this->archs(1)[0], 2});
}

TYPED_TEST(SelectedTokens, MaskedCrossQueriesAreWithinTheBound) {
  CallShape shape{.tokens = 300, .block = 100, .layout = 1};
  shape.op.denominator = Denominator::kCrossQuery;
  shape.op.eps = 1;
  for (const Arch arch : this->archs(1)) this->run_masked(shape, Form::kThreeStage, {arch, 2});
}

TYPED_TEST(SelectedTokens, MaskedGradientsAreWithinTheBound) {
  const Device large{Arch::kSm90a, 2};
  const Device small = mhla::cuda::with_shared_bytes(large, mhla::cuda::kLeastShared);
  CallShape shape{.batch = 2, .tokens = 64, .block = 16};
  shape.op.key_map = FeatureMap::elu_plus_one();
  for (const Device& device : {large, small}) {
    this->template run_masked_gradient<false>(shape, device);
  }
  shape.layout = 2;
  this->template run_masked_gradient<true>(shape, large);
  shape.op.denominator = Denominator::kCrossQuery;
  shape.op.eps = 1;
  this->template run_masked_gradient<false>(shape, small);
  if constexpr (TypeParam::D != 72) {
    shape.op.denominator = Denominator::kNone;
    this->template run_masked_gradient<false, true>(shape, large);
  }
}

// A sequence that ends early has the bits that it has alone, in forms that sum over blocks in
// order.
TYPED_TEST(SelectedTokens, MasksAfterASequenceDoNotChangeItsBits) {
  using Number = typename TypeParam::T;
  const auto expect_equal = [](bool causal, const Device& device) {
    constexpr int kTokens = 300, kLength = 270;
    const CallShape shape{.tokens = kTokens, .block = 50, .causal = causal};
    auto call = cuda_test::random_call<Number, TypeParam::D, TypeParam::E>(shape, 3);
    CallShape part = shape;
    part.tokens = part.key_tokens = kLength;
    auto alone = cuda_test::random_call<Number, TypeParam::D, TypeParam::E>(part, 3);
    for (auto [to, from] :
         {std::pair{&alone.q, &call.q}, {&alone.k, &call.k}, {&alone.v, &call.v}}) {
      to->each([&](int b, int t, int h, int d) { to->at(b, t, h, d) = from->at(b, t, h, d); });
    }
    for (std::int64_t i = 0; i < call.mixing.size(); ++i) alone.mixing[i] = call.mixing[i];
    cuda_test::mask_ends(call, {kLength});
    const auto run = [&](auto& of) {
      const auto plan =
          mhla::cuda::plan<TypeParam::D, TypeParam::E>(cuda_test::problem_of(of), device);
      cuda_test::run_only<TypeParam::D, TypeParam::E>(of, plan, device, 1);
      return plan.form;
    };
    EXPECT_EQ(run(call), run(alone));
    int wrong = 0;
    alone.o.each([&](int b, int t, int h, int d) {
      wrong += alone.o.at(b, t, h, d).bits != call.o.at(b, t, h, d).bits ? 1 : 0;
    });
    EXPECT_EQ(wrong, 0);
  };
  for (const Arch arch : this->archs(1)) {
    expect_equal(false, {arch, 2});
    expect_equal(false, {arch, 8});
    expect_equal(true, {arch, 8});
  }
}

// Packed sequences have the bits of padded ones.
TYPED_TEST(SelectedTokens, PackedSequencesHaveTheBitsOfPaddedOnes) {
  CallShape shape{.batch = 4, .tokens = 64, .block = 24};
  this->template expect_packed_bits<false>(shape, Device{Arch::kSm90a, 2});
  shape.normed = shape.gated = true;
  shape.tokens = shape.key_tokens = 60, shape.prefix = shape.key_prefix = 4;
  this->template expect_packed_bits<true>(shape, Device{this->archs(0)[0], 8});
}

}  // namespace

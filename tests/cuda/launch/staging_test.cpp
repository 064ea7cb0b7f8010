// Tests of masked tokens and packed sequences in forms and gradients, in the emulator: against the
// CPU within the derived bounds, and in the bits of each sequence alone.

#include "mhla/cuda/launch/staging.cuh"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "mhla/cuda/kernel/selected_rows_sm80.cuh"
#include "mhla/cuda/kernel/token_pieces.cuh"
#include "mhla/cuda/launch/gradient_staging.cuh"
#include "mhla/cuda/launch/workspace_cursor.cuh"
#include "mhla/cuda/tile/selection.cuh"
#include "support/cuda/form_test.hpp"
#include "support/cuda/gradient_run.hpp"
#include "support/cuda/masked_tokens.hpp"

namespace {

using cuda_test::Array;
using cuda_test::Call;
using cuda_test::CallShape;
using cuda_test::GradientCall;
using cuda_test::GradientTensors;
using cuda_test::Tensor;
using mhla::cuda::Arch;
using mhla::cuda::Denominator;
using mhla::cuda::Device;
using mhla::cuda::FeatureMap;
using mhla::cuda::Form;
using mhla::cuda::Problem;

/// Masks the tokens from `length[b]` on of item b.
template <class T>
void mask_ends(Call<T>& call, const std::vector<int>& length) {
  const int n = call.q.tokens();
  for (Array<unsigned char>* keep : {&call.query_keep, &call.key_keep}) {
    *keep = Array<unsigned char>(std::int64_t{call.q.batches()} * n);
    for (std::int64_t i = 0; i < keep->size(); ++i) {
      (*keep)[i] = i % n < length[static_cast<std::size_t>(i / n)] ? 1 : 0;
    }
  }
}

/// Copies the first `length[b]` tokens of each item between a padded and a packed tensor.
template <class T, class Copy>
void each_packed(const Tensor<T>& padded, const std::vector<int>& length, const Copy& copy) {
  int begin = 0;
  for (int b = 0; b < padded.batches(); ++b) {
    const int n = length[static_cast<std::size_t>(b)];
    padded.each([&](int item, int t, int h, int d) {
      if (item == b && t < n) copy(b, t, begin + t, h, d);
    });
    begin += n;
  }
}
template <class T>
Tensor<T> packed(const Tensor<T>& x, const std::vector<int>& length) {
  int total = 0;
  for (const int n : length) total += n;
  Tensor<T> y(1, total, x.heads(), x.width(),
              cuda_test::Layout::padded(total, x.heads(), x.width()));
  each_packed(x, length,
              [&](int b, int t, int row, int h, int d) { y.at(0, row, h, d) = x.at(b, t, h, d); });
  return y;
}
/// Expects the bits of the padded tensor in the packed one.
template <class T>
void expect_packed(const char* name, const Tensor<T>& y, const Tensor<T>& x,
                   const std::vector<int>& length) {
  int wrong = 0;
  each_packed(x, length, [&](int b, int t, int row, int h, int d) {
    wrong += y.at(0, row, h, d).bits != x.at(b, t, h, d).bits ? 1 : 0;
  });
  EXPECT_EQ(wrong, 0) << name;
  EXPECT_TRUE(y.padding_is_untouched());
}

Array<std::int32_t> offsets_of(const std::vector<int>& length) {
  Array<std::int32_t> offsets(static_cast<std::int64_t>(length.size()) + 1);
  offsets[0] = 0;
  for (std::size_t s = 0; s < length.size(); ++s) {
    const auto i = static_cast<std::int64_t>(s);
    offsets[i + 1] = offsets[i] + length[s];
  }
  return offsets;
}

template <class W>
class SelectedTokens : public cuda_test::FormTest<W> {
 protected:
  static constexpr int D = W::D, E = W::E;
  using T = typename W::T;

  static void expect_zero_outputs(const Call<T>& call) {
    call.o.each([&](int b, int t, int h, int d) {
      if (call.query_keep[b * call.o.tokens() + t] == 0) {
        ASSERT_EQ(call.o.value(b, t, h, d), 0) << t;
      }
    });
  }
  /// Runs a masked call in its planned form, which must be `form`.
  static void run_masked(const CallShape& shape, Form form, const Device& device) {
    auto call = cuda_test::random_call<T, D, E>(shape, 3);
    cuda_test::mask_some(call, static_cast<int>(shape.block[2]));
    const auto plan = mhla::cuda::plan<D, E>(cuda_test::problem_of(call), device);
    EXPECT_EQ(plan.form, form) << plan.reason;
    cuda_test::run_and_compare<D, E>(call, plan, device, 2);
    expect_zero_outputs(call);
  }
  template <bool kCausal, bool kRotary = false>
  static void run_masked_gradient(CallShape shape, const Device& device) {
    shape.causal = kCausal;
    shape.rotary = kRotary;
    auto call = cuda_test::random_gradient_call<T, D, E>(shape, 5);
    cuda_test::mask_some<T>(call, static_cast<int>(shape.block[2]));
    cuda_test::spoil_masked(call.dout, call.query_keep);
    GradientTensors<T> got(call, shape.layout);
    cuda_test::run_gradient<D, E, kCausal, kRotary>(call, got, device, 3);
    cuda_test::compare_gradients(call, got);
  }
};

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
    this->run_masked(shape, Form::kThreeStage, {arch, 8});
  }
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
    mask_ends(call, {kLength});
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
  constexpr int kD = TypeParam::D, kE = TypeParam::E;
  using Number = typename TypeParam::T;
  const std::vector<int> length{40, 64, 0, 17};
  const auto compare = [&]<bool kCausal>(const CallShape& of, const Device& device) {
    CallShape shape = of;
    shape.causal = kCausal;
    auto call = cuda_test::random_gradient_call<Number, kD, kE>(shape, 5);
    GradientTensors<Number> padded(call, 0);
    auto packed_call = cuda_test::random_gradient_call<Number, kD, kE>(shape, 5);
    mask_ends<Number>(call, length);
    packed_call.q = packed(call.q, length), packed_call.k = packed(call.k, length);
    packed_call.v = packed(call.v, length), packed_call.dout = packed(call.dout, length);
    packed_call.o = packed(call.o, length);
    if (call.gated()) packed_call.gate = packed(call.gate, length);
    GradientTensors<Number> got(packed_call, 0);
    const Array<std::int32_t> offsets = offsets_of(length);
    const auto run = [&](auto& x, auto& to, bool is_packed) {
      mhla::cuda::GradientProblem problem = cuda_test::gradient_problem(x, to, &x.o);
      Problem forward = cuda_test::problem_of(x);
      forward.batch = static_cast<std::int32_t>(length.size());
      for (mhla::cuda::Selection* selection : {&forward.queries, &forward.keys}) {
        if (is_packed) selection->packed = true, selection->offsets = offsets.data();
      }
      problem.forward = forward;
      emulator::Device emulated(3);
      const auto plan = mhla::cuda::plan<kD, kE>(forward, device);
      const auto backward = mhla::cuda::gradient_plan<kD, kE, kCausal, false>(problem, device);
      Array<unsigned char> workspace(
          static_cast<std::int64_t>(std::max(plan.workspace_bytes, backward.workspace_bytes)));
      const mhla::cuda::MixingArray mixing{call.mixing.data(), forward.key_blocks.blocks()};
      const auto track = [&](const char* name, const auto& y) {
        if (y.bytes() == 0) return;
        emulated.track(name, y.raw(), y.bytes(), emulator::Access::kReadWrite);
      };
      for (Tensor<Number>* y :
           {&x.q, &x.k, &x.v, &x.o, &x.dout, &x.gate, &to.q, &to.k, &to.v, &to.gate})
        track("tensor", *y);
      track("mixing", call.mixing), track("workspace", workspace), track("offsets", offsets);
      track("gradient", to.mixing), track("gradient", to.gain), track("gain", x.gain);
      track_masks(x, emulated);
      const cuda_test::EmulatedStream stream(emulated);
      mhla::cuda::run<Number, kD, kE, kCausal>(plan, forward, mixing, workspace.data(), device,
                                               stream);
      mhla::cuda::run_gradient<Number, kD, kE, kCausal, false>(backward, problem, mixing,
                                                               workspace.data(), device, stream);
    };
    run(call, padded, false);
    run(packed_call, got, true);
    expect_packed("o", packed_call.o, call.o, length);
    expect_packed("dq", got.q, padded.q, length);
    expect_packed("dk", got.k, padded.k, length);
    expect_packed("dv", got.v, padded.v, length);
    if (call.gated()) expect_packed("dgate", got.gate, padded.gate, length);
    EXPECT_EQ(std::memcmp(got.mixing.raw(), padded.mixing.raw(), got.mixing.bytes()), 0);
    if (call.normed()) {
      EXPECT_EQ(std::memcmp(got.gain.raw(), padded.gain.raw(), got.gain.bytes()), 0);
    }
  };
  CallShape shape{.batch = 4, .tokens = 64, .block = 24};
  compare.template operator()<false>(shape, Device{Arch::kSm90a, 2});
  shape.normed = shape.gated = true;
  shape.tokens = shape.key_tokens = 60, shape.prefix = shape.key_prefix = 4;
  compare.template operator()<true>(shape, Device{this->archs(0)[0], 8});
}

}  // namespace

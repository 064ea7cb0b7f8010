// Tests of forms and gradients of tokens with a prefix, in the emulator: against the CPU within the
// derived bounds, and in the bits of the same tokens in blocks of equal length.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>

#include "mhla/cuda/kernel/angle_rows_sm80.cuh"
#include "mhla/cuda/launch/gradient_staging.cuh"
#include "mhla/cuda/launch/staging.cuh"
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

constexpr Device kLarge{Arch::kSm90a, 2};

/// Place of token t of a call among runs of equal length, one per block: first the prefix.
int place(const CallShape& shape, int t) {
  const auto width = static_cast<int>(shape.tokens[2]), w = static_cast<int>(shape.block[2]);
  const auto h = static_cast<int>(shape.block[1]), slots = std::max(shape.prefix, h * w);
  if (t < shape.prefix) return t;
  const int y = (t - shape.prefix) / width, x = (t - shape.prefix) % width;
  return (1 + y / h * ((width - 1) / w + 1) + x / w) * slots + y % h * w + x % w;
}

/// Shape of a call whose blocks are runs of equal length.
CallShape in_runs(CallShape shape) {
  const auto slots = std::max<mhla::Index>(shape.prefix, shape.block[1] * shape.block[2]);
  const mhla::Index blocks = mhla::Grid(shape.tokens, shape.block).blocks() + 1;
  shape.tokens = shape.key_tokens = blocks * slots;
  shape.block = shape.key_block = slots;
  shape.prefix = shape.key_prefix = 0;
  return shape;
}

template <class T>
void copy_to_runs(const CallShape& shape, const Tensor<T>& from, Tensor<T>& to) {
  from.each(
      [&](int b, int t, int h, int d) { to.at(b, place(shape, t), h, d) = from.at(b, t, h, d); });
}
void copy_to_runs(const CallShape& shape, const Array<float>& from, Array<float>& to, int width) {
  std::fill_n(to.data(), to.size(), 0.0f);
  for (std::int64_t i = 0; i < from.size(); ++i) {
    to[place(shape, static_cast<int>(i / width)) * width + i % width] = from[i];
  }
}

/// The same call with its tokens in runs. Rows of empty slots are NaN, and masked.
template <class T, int D, int E>
GradientCall<T> call_in_runs(const CallShape& shape, const GradientCall<T>& call) {
  auto runs = cuda_test::random_gradient_call<T, D, E>(in_runs(shape), 9);
  for (Array<unsigned char>* keep : {&runs.query_keep, &runs.key_keep}) {
    *keep = Array<unsigned char>(std::int64_t{runs.q.batches()} * runs.q.tokens());
    std::fill_n(keep->data(), keep->size(), static_cast<unsigned char>(0));
    for (int b = 0; b < runs.q.batches(); ++b) {
      for (int t = 0; t < call.q.tokens(); ++t) {
        (*keep)[b * runs.q.tokens() + place(shape, t)] = 1;
      }
    }
  }
  for (Tensor<T>* x : {&runs.q, &runs.dout, &runs.o}) spoil_masked(*x, runs.query_keep);
  for (Tensor<T>* x : {&runs.k, &runs.v}) spoil_masked(*x, runs.key_keep);
  copy_to_runs(shape, call.q, runs.q), copy_to_runs(shape, call.k, runs.k);
  copy_to_runs(shape, call.v, runs.v), copy_to_runs(shape, call.dout, runs.dout);
  if (call.gated()) copy_to_runs(shape, call.gate, runs.gate);
  copy_to_runs(shape, call.query_angles, runs.query_angles, D);
  copy_to_runs(shape, call.key_angles, runs.key_angles, D);
  std::copy_n(call.mixing.data(), call.mixing.size(), runs.mixing.data());
  std::copy_n(call.gain.data(), call.gain.size(), runs.gain.data());
  return runs;
}

template <class T>
void expect_bits(const char* name, const CallShape& shape, const Tensor<T>& x,
                 const Tensor<T>& runs) {
  int wrong = 0;
  x.each([&](int b, int t, int h, int d) {
    wrong += x.at(b, t, h, d).bits != runs.at(b, place(shape, t), h, d).bits ? 1 : 0;
  });
  EXPECT_EQ(wrong, 0) << name;
}
void expect_bits(const char* name, const Array<float>& x, const Array<float>& runs) {
  EXPECT_EQ(std::memcmp(x.raw(), runs.raw(), x.bytes()), 0) << name;
}

template <class W>
class Prefix : public cuda_test::FormTest<W> {
 protected:
  static constexpr int D = W::D, E = W::E;
  using T = typename W::T;

  /// Runs a call in its planned form, which must be `form`, and compares it with the CPU's.
  template <bool kRotary = false>
  static void run(const CallShape& shape, Form form, const Device& device, int masked_block = 0) {
    auto call = cuda_test::random_call<T, D, E>(shape, 3);
    if (masked_block > 0) cuda_test::mask_some(call, masked_block);
    const auto plan = mhla::cuda::plan<D, E>(cuda_test::problem_of(call), device);
    EXPECT_EQ(plan.form, form) << plan.reason;
    cuda_test::run_and_compare<D, E, kRotary>(call, plan, device, 2);
  }
  template <bool kCausal = false, bool kRotary = false>
  static void run_gradient(const CallShape& shape, const Device& device, int masked_block = 0) {
    cuda_test::run_and_compare_gradient<T, D, E, kCausal, kRotary>(shape, device, masked_block);
  }
  template <bool kCausal = false, bool kRotary = false>
  static void expect_bits_of_runs(CallShape shape, const Device& device) {
    shape.causal = kCausal, shape.rotary = kRotary;
    auto call = cuda_test::random_gradient_call<T, D, E>(shape, 5);
    auto runs = call_in_runs<T, D, E>(shape, call);
    const auto forward = [&](Call<T>& x) {
      const auto plan = mhla::cuda::plan<D, E>(cuda_test::problem_of(x), device);
      cuda_test::run_only<D, E, kRotary>(x, plan, device, 1);
    };
    forward(call), forward(runs);
    expect_bits("o", shape, call.o, runs.o);
    GradientTensors<T> got(call, 0), expected(runs, 0);
    cuda_test::run_gradient<D, E, kCausal, kRotary>(call, got, device, 3, &call.o);
    cuda_test::run_gradient<D, E, kCausal, kRotary>(runs, expected, device, 3, &runs.o);
    expect_bits("dq", shape, got.q, expected.q);
    expect_bits("dk", shape, got.k, expected.k);
    expect_bits("dv", shape, got.v, expected.v);
    if (call.gated()) expect_bits("dgate", shape, got.gate, expected.gate);
    expect_bits("dmixing", got.mixing, expected.mixing);
    expect_bits("dgain", got.gain, expected.gain);
  }
};

using PrefixWidths = testing::Types<cuda_test::Width<mhla::cuda::bfloat16, 64, 64>,
                                    cuda_test::Width<mhla::cuda::half, 128, 256>>;
TYPED_TEST_SUITE(Prefix, PrefixWidths);

TYPED_TEST(Prefix, FormsAreWithinTheBound) {
  const bool fuses = TypeParam::D == TypeParam::E;
  for (const Arch arch : this->archs(0)) {
    CallShape image{.batch = 2, .heads = 2, .tokens = {9, 8}, .block = {4, 4}, .prefix = 1};
    image.op.query_map = FeatureMap::elu_plus_one();
    this->run(image, Form::kQuadratic, {arch, 1});
    image.op.matrices = mhla::cuda::Matrices::kPerItemAndHead;
    image.prefix = image.key_prefix = 2;
    this->run(image, Form::kQuadratic, {arch, 1}, 5);
    this->run({.tokens = 300, .block = 100, .prefix = 3}, fuses ? Form::kFused : Form::kThreeStage,
              {arch, 2});
    this->run({.tokens = {1, 13, 15}, .block = {1, 3, 4}, .layout = 2, .prefix = 20},
              Form::kThreeStage, {arch, 64});
  }
}

TYPED_TEST(Prefix, QueriesAndKeysHavePrefixesOfTheirOwn) {
  const Device device{this->archs(0)[0], 1};
  CallShape shape{.tokens = {6, 8}, .block = {3, 4}, .key_tokens = 50, .key_block = 16};
  shape.key_prefix = 5;
  this->run(shape, Form::kQuadratic, device);
  this->run_gradient(shape, device);
  std::swap(shape.prefix, shape.key_prefix);
  this->run(shape, Form::kQuadratic, device);
  this->run_gradient(shape, device);
}

TYPED_TEST(Prefix, CausalFormsAreWithinTheBound) {
  for (const Arch arch : this->archs(1)) {
    CallShape shape{.tokens = 60, .block = 16, .causal = true, .prefix = 5};
    this->run(shape, Form::kQuadratic, {arch, 1});
    shape.tokens = shape.key_tokens = 270, shape.block = shape.key_block = 60;
    shape.op.denominator = Denominator::kNone;
    this->run(shape, Form::kThreeStage, {arch, 64});
  }
}

TYPED_TEST(Prefix, TakesDecayingTermsAndPatterns) {
  CallShape shape{.tokens = 120, .block = 20, .causal = true, .prefix = 5};  // 7 blocks
  shape.op.decay_terms = 2;
  this->run(shape, Form::kThreeStage, {this->archs(1)[0], 64});
  this->template run_gradient<true>(shape, kLarge);
  shape.op.decay_terms = 0;
  shape.pattern = mhla::Pattern(7, 7, 2, 0);
  this->template run_gradient<true>(shape, kLarge);
  shape.tokens = shape.key_tokens = 300, shape.block = shape.key_block = 50;
  shape.op.denominator = Denominator::kNone;
  this->run(shape, Form::kThreeStage, {this->archs(1)[0], 64});
}

TYPED_TEST(Prefix, CrossQueriesReadAPrefixOfAWholeBlock) {
  CallShape shape{.tokens = {12, 24}, .block = {6, 12}, .layout = 1, .prefix = 72};
  shape.op.denominator = Denominator::kCrossQuery;
  shape.op.eps = 1;
  this->run(shape, Form::kThreeStage, {this->archs(0)[0], 2});
}

TYPED_TEST(Prefix, RotatedFormsAreWithinTheBound) {
  const CallShape shape{.tokens = {6, 10}, .block = {3, 5}, .rotary = true, .prefix = 2};
  for (const Arch arch : this->archs(0)) {
    this->template run<true>(shape, Form::kThreeStage, {arch, 2});
  }
}

TYPED_TEST(Prefix, GradientsAreWithinTheBound) {
  CallShape shape{.batch = 2, .tokens = {6, 8}, .block = {4, 4}, .prefix = 2};
  shape.op.key_map = FeatureMap::elu_plus_one();
  this->run_gradient(shape, kLarge);
  this->run_gradient(shape, mhla::cuda::with_shared_bytes(kLarge, mhla::cuda::kLeastShared), 5);
  shape.tokens = shape.key_tokens = 50, shape.block = shape.key_block = 16, shape.layout = 2;
  this->template run_gradient<true>(shape, kLarge);
}

TYPED_TEST(Prefix, TokensHaveTheBitsOfRunsOfEqualLength) {
  const CallShape image{.batch = 2, .tokens = {7, 9}, .block = {4, 3}, .prefix = 1};
  this->expect_bits_of_runs(image, kLarge);
  CallShape shape = image;
  shape.normed = shape.gated = true;
  this->expect_bits_of_runs(shape, kLarge);
  this->template expect_bits_of_runs<false, true>(image, kLarge);
  shape.tokens = shape.key_tokens = 50, shape.block = shape.key_block = 16;
  shape.prefix = shape.key_prefix = 20;
  this->template expect_bits_of_runs<true>(shape, {this->archs(1)[0], 8});
}

}  // namespace

// Tests of feature maps of one's own in every form, gradient and stream, as launched, in the
// emulator: against the CPU's forms with the same maps, within the derived bounds.

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>

#include "mhla/cuda/launch/forms.cuh"
#include "mhla/cuda/launch/gradient.cuh"
#include "mhla/cuda/launch/staging.cuh"
#include "support/cuda/form_test.hpp"
#include "support/cuda/gradient_run.hpp"
#include "support/cuda/masked_tokens.hpp"
#include "support/cuda/own_maps.hpp"
#include "support/cuda/prefill_run.hpp"

namespace own_map_test {
namespace {

using namespace cuda_test;  // NOLINT

using mhla::cuda::ElementwiseMap, mhla::cuda::DifferentiableElementwiseMap;
using mhla::cuda::Form, mhla::cuda::MappedOperator, mhla::cuda::Operator;

static_assert(DifferentiableElementwiseMap<Power> && DifferentiableElementwiseMap<Softplus>);
static_assert(DifferentiableElementwiseMap<decltype(kSquaredRelu)>);
static_assert(!ElementwiseMap<mhla::cuda::FeatureMap>);

/// A map without a derivative, for forms alone.
struct Cube {
  float function(float x) const { return x * x * x; }
};
static_assert(ElementwiseMap<Cube> && !DifferentiableElementwiseMap<Cube>);

/// ELU + 1 as a map of one's own.
struct OwnElu {
  float function(float x) const { return mhla::cuda::EluPlusOne{}(x); }
};

/// Gives a call the maps.
template <class T, class Q, class K>
MappedOperator<Q, K> give_maps(Call<T>& call, const Q& q, const K& k) {
  const MappedOperator maps(call.op, q, k);
  call.own_query_map = exact(q);
  call.own_key_map = exact(k);
  call.op = maps.options;
  return maps;
}

template <class T>
class OwnMaps : public testing::Test {
 protected:
  static constexpr int D = 64;

  /// Runs the planned form, which must be `form`, with a map of queries and one of keys.
  template <bool kRotary = false, class Q, class K>
  static Outcome run(CallShape shape, Form form, const mhla::cuda::Device& device, const Q& q,
                     const K& k, bool masked = false) {
    shape.rotary = kRotary;
    Call<T> call = random_call<T, D, D>(shape, 3);
    if (masked) mask_some(call, static_cast<int>(shape.block[2]));
    const auto maps = give_maps(call, q, k);
    const mhla::cuda::Plan plan = mhla::cuda::plan<D, D>(problem_of(call), device);
    EXPECT_EQ(std::string(name(plan.form)), name(form)) << plan.reason;
    return run_and_compare<D, D, kRotary>(call, plan, device, 2, maps);
  }

  template <bool kCausal, bool kRotary = false, class Q, class K>
  static mhla::cuda::GradientPlan run_backward(CallShape shape, const mhla::cuda::Device& device,
                                               const Q& q, const K& k, bool masked = false) {
    shape.causal = kCausal;
    shape.rotary = kRotary;
    GradientCall<T> call = random_gradient_call<T, D, D>(shape, 5);
    if (masked) {
      mask_some<T>(call, static_cast<int>(shape.block[2]));
      spoil_masked(call.dout, call.query_keep);
    }
    const auto maps = give_maps<T>(call, q, k);
    GradientTensors<T> got(call, shape.layout);
    const auto plan =
        cuda_test::run_gradient<D, D, kCausal, kRotary>(call, got, device, 3, nullptr, maps);
    compare_gradients(call, got);
    return plan;
  }
};

constexpr mhla::cuda::Device kSm80{mhla::cuda::Arch::kSm80, 2}, kSm90{mhla::cuda::Arch::kSm90a, 2};
constexpr mhla::cuda::Device kMany{mhla::cuda::Arch::kSm90a, 8};

using OwnMapTypes = testing::Types<bfloat16, half>;
TYPED_TEST_SUITE(OwnMaps, OwnMapTypes);

// Features of empty slots are 0, though phi(0) is not: blocks of three grids end early. Maps of the
// operator are not applied to features.
TYPED_TEST(OwnMaps, BidirectionalFormsAreWithinTheBound) {
  const CallShape few{.heads = 2, .tokens = {1, 7, 9}, .block = {1, 3, 4}, .layout = 2};
  CallShape several{.tokens = {1, 23, 14}, .block = {1, 24, 4}, .layout = 1};
  several.op.query_map = several.op.key_map = FeatureMap::elu_plus_one();
  const CallShape many{.tokens = {19, 14}, .block = {4, 3}, .layout = 2};
  for (const mhla::cuda::Device& device : {kSm80, kSm90}) {
    this->run(few, Form::kQuadratic, device, Softplus{}, Power{});
    this->run(several, Form::kFused, device, kSquaredRelu, Softplus{});
    this->run(many, Form::kThreeStage, device, Power{}, kSquaredRelu);
  }
}

TYPED_TEST(OwnMaps, CausalFormsAreWithinTheBound) {
  this->run({.heads = 2, .tokens = 150, .block = 40, .causal = true}, Form::kQuadratic, kSm80,
            Softplus{}, Softplus{0.5f});
  this->run({.tokens = 290, .block = 64, .causal = true}, Form::kFused, kSm90, Power{}, Softplus{});
  CallShape shape{.tokens = 270, .block = 49, .causal = true};
  shape.op.summaries = Precision::kPair;
  this->run(shape, Form::kThreeStage, kSm80, Power{}, kSquaredRelu);
  this->run(shape, Form::kThreeStage, kMany, Softplus{}, Power{});
}

TYPED_TEST(OwnMaps, MayStandBesideAMapOfTheLibrary) {
  const CallShape shape{.tokens = 90, .block = 30};
  this->run(shape, Form::kQuadratic, kSm90, Softplus{}, FeatureMap::elu_plus_one());
  this->run(shape, Form::kQuadratic, kSm90, FeatureMap::relu(0.25f), Softplus{});
}

TYPED_TEST(OwnMaps, CrossQueriesRotationsAndNormsAreWithinTheBound) {
  CallShape shape{.heads = 2, .tokens = {1, 18, 20}, .block = {1, 6, 5}};
  shape.op.denominator = Denominator::kCrossQuery;
  shape.op.eps = 1e-3f;
  this->run(shape, Form::kThreeStage, kSm90, Softplus{}, Power{});
  this->template run<true>(shape, Form::kThreeStage, kSm80, Softplus{}, Power{});
  CallShape normed{.tokens = 96, .block = 24, .causal = true};
  normed.normed = normed.gated = true;
  this->run(normed, Form::kThreeStage, kSm90, Softplus{}, Power{});
}

// Masked tokens are NaN, and their features 0.
TYPED_TEST(OwnMaps, MaskedTokensAreWithinTheBound) {
  const CallShape shape{.batch = 2, .tokens = 64, .block = 16};
  this->run(shape, Form::kQuadratic, kSm90, Softplus{}, Power{}, true);
  this->run({.tokens = 300, .block = 100, .causal = true}, Form::kThreeStage, kSm80, Power{},
            Softplus{}, true);
}

// Copies add a read and a write of queries and keys, and values have none.
TYPED_TEST(OwnMaps, MoveQueriesAndKeysOnceMore) {
  Call<TypeParam> call = random_call<TypeParam, 64, 64>({.tokens = 300, .block = 100}, 3);
  const auto plain = mhla::cuda::plan<64, 64>(problem_of(call), kSm90);
  give_maps(call, Softplus{}, Softplus{});
  const auto own = mhla::cuda::plan<64, 64>(problem_of(call), kSm90);
  EXPECT_EQ(own.form, plain.form);
  EXPECT_EQ(own.workspace_bytes - plain.workspace_bytes, 2u * 2 * 300 * 64);
  EXPECT_EQ(own.traffic.tensors - plain.traffic.tensors, 4u * 2 * 300 * 64);
  give_maps(call, FeatureMap::relu(), Softplus{});
  const auto half = mhla::cuda::plan<64, 64>(problem_of(call), kSm90);
  EXPECT_EQ(half.workspace_bytes - plain.workspace_bytes, 2u * 300 * 64);
}

TYPED_TEST(OwnMaps, HaveTheBitsOfAMapOfTheLibrary) {
  for (const int tokens : {96, 300}) {
    const CallShape shape{.tokens = tokens, .block = 24};
    Call<TypeParam> own = random_call<TypeParam, 64, 64>(shape, 3);
    Call<TypeParam> plain = random_call<TypeParam, 64, 64>(shape, 3);
    own.own_query_map = own.own_key_map = {[](double x) { return x; }, nullptr};
    plain.op.query_map = plain.op.key_map = FeatureMap::elu_plus_one();
    const MappedOperator maps(own.op, OwnElu{});
    run_only<64, 64>(own, mhla::cuda::plan<64, 64>(problem_of(own), kSm80), kSm80, 1, maps);
    run_only<64, 64>(plain, mhla::cuda::plan<64, 64>(problem_of(plain), kSm80), kSm80, 1);
    EXPECT_EQ(std::memcmp(own.o.raw(), plain.o.raw(), own.o.bytes()), 0) << tokens;
  }
}

TYPED_TEST(OwnMaps, NeedNoDerivativeInForms) {
  const CallShape shape{.tokens = 90, .block = 30};
  Call<TypeParam> call = random_call<TypeParam, 64, 64>(shape, 3);
  call.own_query_map = call.own_key_map = {[](double x) { return x * x * x; }, nullptr};
  call.op.denominator = Denominator::kNone;
  run_and_compare<64, 64>(call, mhla::cuda::plan<64, 64>(problem_of(call), kSm80), kSm80, 1,
                          MappedOperator(call.op, Cube{}));
}

// ---- gradients ----------------------------------------------------------------------------------

// Cases: one kernel, scores, summaries, and denominators of cross queries.
TYPED_TEST(OwnMaps, GradientsAreWithinTheBound) {
  const auto small = mhla::cuda::with_shared_bytes(kSm90, mhla::cuda::kLeastShared);
  CallShape few{.heads = 2, .tokens = {1, 7, 9}, .block = {1, 3, 4}, .layout = 2};
  EXPECT_TRUE(this->template run_backward<false>(few, kSm90, Softplus{}, Power{}).quadratic);
  EXPECT_TRUE(this->template run_backward<false>(few, small, kSquaredRelu, Softplus{}).scores);
  const CallShape many{.tokens = 300, .block = 64, .layout = 1};
  EXPECT_FALSE(this->template run_backward<false>(many, kSm80, Power{}, kSquaredRelu).scores);
  CallShape cross{.batch = 2, .tokens = {1, 12, 12}, .block = {1, 3, 4}};
  cross.op.denominator = Denominator::kCrossQuery;
  cross.op.eps = 1e-3f;
  this->template run_backward<false>(cross, small, Softplus{}, Power{});
}

TYPED_TEST(OwnMaps, CausalGradientsAreWithinTheBound) {
  this->template run_backward<true>({.heads = 2, .tokens = 130, .block = 40}, kSm90, Softplus{},
                                    Power{});
  this->template run_backward<true>({.tokens = 130, .block = 100}, kSm80, kSquaredRelu,
                                    FeatureMap::elu_plus_one());
}

TYPED_TEST(OwnMaps, MaskedAndRotatedGradientsAreWithinTheBound) {
  const CallShape shape{.batch = 2, .tokens = 64, .block = 16};
  this->template run_backward<false>(shape, kSm90, Softplus{}, Power{}, true);
  this->template run_backward<true>(shape, kSm80, Power{}, Softplus{}, true);
  CallShape turned{.tokens = {1, 8, 12}, .block = {1, 4, 6}, .layout = 1};
  turned.op.denominator = Denominator::kNone;
  this->template run_backward<false, true>(turned, kSm80, Softplus{}, Power{});
}

// ---- float32, decaying terms, patterns, prefixes ------------------------------------------------

class OwnMapsOfFloats : public OwnMaps<float> {};

TEST_F(OwnMapsOfFloats, AreWithinTheBound) {
  run({.heads = 2, .tokens = {6, 9}, .block = {3, 4}, .prefix = 5}, Form::kThreeStage, kSm80,
      Softplus{}, kSquaredRelu);
  CallShape shape{.tokens = 130, .block = 20, .causal = true};
  shape.op.decay_terms = 2;
  run(shape, Form::kThreeStage, kSm90, Power{}, Softplus{});
}

TEST_F(OwnMapsOfFloats, GradientsAreWithinTheBound) {
  run_backward<false>({.tokens = {6, 9}, .block = {3, 4}, .prefix = 5}, kSm80, Softplus{}, Power{});
  run_backward<true>({.tokens = 90, .block = 30}, kSm90, kSquaredRelu, Softplus{});
}

TYPED_TEST(OwnMaps, TakeDecayingTermsPatternsAndPrefixes) {
  CallShape shape{.tokens = 120, .block = 20, .causal = true, .prefix = 5};  // 7 blocks
  shape.op.decay_terms = 2;
  this->run(shape, Form::kThreeStage, kSm80, Softplus{}, kSquaredRelu);
  this->template run_backward<true>(shape, kSm90, Softplus{}, kSquaredRelu);
  shape.op.decay_terms = 0;
  shape.pattern = mhla::Pattern(7, 7, 2, 0);
  this->template run_backward<true>(shape, kSm90, Power{}, Softplus{});
}

// ---- streams ------------------------------------------------------------------------------------

// Prefills read features of the staging, and steps compute the same bits.
TYPED_TEST(OwnMaps, StreamsAreWithinTheBound) {
  const StreamCase c{5, 6, 30, kElu, Denominator::kKeySum, 2, 2, 0, 1};
  for (const Arch arch : {Arch::kSm80, Arch::kSm90a}) {
    check_prefills<TypeParam, 64, 64, Precision::kSingle, Softplus>(c, {8, -1, 20}, arch);
  }
  check_prefills<TypeParam, 64, 64, Precision::kPair, Power>(c, {13}, Arch::kSm80);
}

}  // namespace
}  // namespace own_map_test

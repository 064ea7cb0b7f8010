// Tests of tangents as launched, in the emulator, on both architectures against the definition in
// double within the derived bound.

#include "mhla/cuda/launch/tangent.cuh"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <string>
#include <type_traits>

#include "mhla/cuda/kernel/feature_tangents_sm80.cuh"
#include "mhla/cuda/kernel/output_tangents_sm80.cuh"
#include "support/cuda/form_test.hpp"
#include "support/cuda/tangent_run.hpp"

namespace {

using cuda_test::CallShape;
using cuda_test::TangentCall;
using mhla::cuda::Arch;
using mhla::cuda::Denominator;
using mhla::cuda::Device;
using mhla::cuda::FeatureMap;
using mhla::cuda::Form;
using mhla::cuda::Matrices;
using mhla::cuda::TangentPlan;

constexpr std::array<bool, 4> kAll{true, true, true, true};

template <class W>
class TangentForms : public testing::Test {
 protected:
  static constexpr int D = W::D, E = W::E;
  using T = typename W::T;

  /// True for the widths that run all cases of a test. The others check that kernels fit together.
  static constexpr bool kAllCases = std::is_same_v<T, mhla::cuda::bfloat16> && D == 64;

  template <bool kCausal = false, bool kRotary = false>
  static TangentPlan run(const CallShape& shape, const Device& device,
                         std::array<bool, 4> along = kAll) {
    return cuda_test::run_and_compare_tangent<T, D, E, kCausal, kRotary>(shape, along, device);
  }
};

#if defined(MHLA_FIRST_WIDTH)  // for faults that show at one width: tests/mutants
using Widths = testing::Types<cuda_test::First>;
#else
using Widths = testing::Types<cuda_test::First, cuda_test::Width<mhla::cuda::half, 64, 64>,
                              cuda_test::Width<mhla::cuda::bfloat16, 128, 256>,
                              cuda_test::Width<float, 64, 64>, cuda_test::Width<float, 128, 256>>;
#endif
TYPED_TEST_SUITE(TangentForms, Widths);

// Cases: both forms of the plan's choice, short blocks, keys that are not the queries, other maps
// and scales.
TYPED_TEST(TangentForms, OfKeySums) {
  CallShape shapes[] = {
      {.batch = 2, .heads = 2, .tokens = {1, 7, 9}, .block = {1, 3, 4}},
      {.tokens = 90, .block = 40, .key_tokens = 70, .key_block = 30, .layout = 2}};
  shapes[0].op.eps = 0.5f;
  shapes[1].op.query_map = shapes[1].op.key_map = FeatureMap::elu_plus_one();
  shapes[1].op.scale = 0.25f;
  for (const Arch arch : {Arch::kSm80, Arch::kSm90a}) {
    for (const CallShape& shape : shapes) {
      if (TestFixture::kAllCases || &shape == shapes + (arch == Arch::kSm80 ? 0 : 1)) {
        this->run(shape, Device{arch, 2});
      }
    }
  }
}

TYPED_TEST(TangentForms, WithoutDenominators) {
  CallShape shape{.tokens = 140, .block = 64, .layout = 1};
  shape.op.denominator = Denominator::kNone;
  shape.op.query_map = FeatureMap::identity();
  shape.op.key_map = FeatureMap::elu_plus_one();
  shape.op.scale = 0.125f;
  const TangentPlan plan = this->run(shape, Device{Arch::kSm90a, 2});
  for (const auto& part : plan.parts) EXPECT_GT(plan.workspace_bytes, part.workspace_bytes);
}

TYPED_TEST(TangentForms, OfCausalForms) {
  CallShape shape{.heads = 2, .tokens = 100, .block = 40};
  shape.op.denominator = Denominator::kNone;
  for (const Arch arch : {Arch::kSm80, Arch::kSm90a}) {
    this->template run<true>(shape, Device{arch, 2});
  }
}

TYPED_TEST(TangentForms, OfFeaturesThatTurn) {
  if constexpr (!std::is_same_v<typename TypeParam::T, float>) {
    CallShape shape{.tokens = {1, 8, 12}, .block = {1, 4, 6}, .layout = 1};
    this->template run<false, true>(shape, Device{Arch::kSm80, 2});
    CallShape causal{.tokens = 90, .block = 64};
    causal.op.denominator = Denominator::kNone;
    this->template run<true, true>(causal, Device{Arch::kSm90a, 2});
  }
}

TYPED_TEST(TangentForms, AlongEachDirection) {
  if (!TestFixture::kAllCases) return;
  const CallShape shape{.heads = 2, .tokens = 60, .block = 20};
  for (std::size_t along = 0; along < 4; ++along) {
    std::array<bool, 4> one{};
    one[along] = true;
    this->run(shape, Device{Arch::kSm80, 2}, one);
  }
}

TYPED_TEST(TangentForms, OfMatricesOfHeadsAndItems) {
  if (!TestFixture::kAllCases) return;
  for (const Matrices matrices : {Matrices::kPerHead, Matrices::kPerItemAndHead}) {
    CallShape shape{.batch = 2, .heads = 2, .tokens = 54, .block = 9};
    shape.op.matrices = matrices;
    this->run(shape, Device{Arch::kSm80, 2});
  }
}

// Outputs have the bits of the form, and a tangent along no direction is 0.
TYPED_TEST(TangentForms, AlongNoDirectionAreZero) {
  constexpr int kWidth = TypeParam::D, kValues = TypeParam::E;
  using Number = typename TypeParam::T;
  const CallShape shape{.heads = 2, .tokens = 60, .block = 20};
  const Device device{Arch::kSm80, 2};
  TangentCall<Number> call = cuda_test::random_tangent_call<Number, kWidth, kValues>(shape, {}, 5);
  const auto plan = cuda_test::run_tangent<kWidth, kValues, false, false>(call, device, 3);
  const std::string outputs(reinterpret_cast<const char*>(call.o.raw()), call.o.bytes());
  call.tangent.each([&](int b, int t, int h, int e) {
    ASSERT_EQ(call.tangent.value(b, t, h, e), 0) << t << " " << e;
  });
  cuda_test::Call<Number>& forward = call;
  cuda_test::run_only<kWidth, kValues>(forward, plan.outputs, device, 1);
  EXPECT_EQ(std::memcmp(call.o.raw(), outputs.data(), outputs.size()), 0);
}

// A token whose denominator is 0 has a constant output: a zero row of the mixing matrix.
TYPED_TEST(TangentForms, AreZeroWhereDenominatorsAre) {
  constexpr int kWidth = TypeParam::D, kValues = TypeParam::E;
  using Number = typename TypeParam::T;
  CallShape shape{.tokens = 60, .block = 20};
  TangentCall<Number> call =
      cuda_test::random_tangent_call<Number, kWidth, kValues>(shape, kAll, 5);
  for (std::int64_t b = 0; b < 3; ++b) call.mixing[3 + b] = 0;
  cuda_test::run_tangent<kWidth, kValues, false, false>(call, Device{Arch::kSm80, 2}, 3);
  for (int t = 0; t < 60; ++t) {
    for (int e = 0; e < kValues; ++e) {
      if (t / 20 == 1) {
        ASSERT_EQ(call.tangent.value(0, t, 0, e), 0) << t;
      } else {
        ASSERT_TRUE(std::isfinite(call.tangent.value(0, t, 0, e))) << t;
      }
    }
  }
}

// Half would overflow if addends were not scaled.
TEST(TangentForms, OfLargeNumeratorsDoNotOverflow) {
  using Number = mhla::cuda::half;
  CallShape shape{.tokens = 256, .block = 64};
  TangentCall<Number> call = cuda_test::random_tangent_call<Number, 64, 64>(shape, kAll, 5);
  for (auto* x : {&call.q, &call.k}) x->fill([] { return 3; });
  call.v.fill([] { return 1; });
  call.dv.fill([] { return 1; });
  cuda_test::run_tangent<64, 64, false, false>(call, Device{Arch::kSm80, 2}, 3);
  call.tangent.each([&](int b, int t, int h, int e) {
    ASSERT_TRUE(std::isfinite(call.tangent.value(b, t, h, e))) << t << " " << e;
  });
}

}  // namespace

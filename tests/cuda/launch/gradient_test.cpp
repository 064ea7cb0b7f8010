// Tests of gradients as launched, in the emulator, on both architectures against the CPU's gradient
// in double within the derived bound.

#include "mhla/cuda/launch/gradient.cuh"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstddef>
#include <string>
#include <vector>

#include "mhla/cuda/kernel/features_sm80.cuh"
#include "mhla/cuda/kernel/gain_sums_sm80.cuh"
#include "mhla/cuda/kernel/input_gradients_sm80.cuh"
#include "mhla/cuda/kernel/intra_block_sm80.cuh"
#include "mhla/cuda/kernel/intra_block_sums_sm80.cuh"
#include "mhla/cuda/kernel/mixed_sums_sm80.cuh"
#include "mhla/cuda/kernel/ordered_sums.cuh"
#include "mhla/cuda/kernel/output_gradients_sm80.cuh"
#include "mhla/cuda/kernel/quadratic_gradient_rows.cuh"
#include "mhla/cuda/kernel/quadratic_gradient_sm80.cuh"
#include "mhla/cuda/kernel/quadratic_gradient_sm80_config.cuh"
#include "mhla/cuda/kernel/score_products_sm80.cuh"
#include "mhla/cuda/kernel/shared_tokens.cuh"
#include "mhla/cuda/kernel/sum_products_sm80.cuh"
#include "mhla/cuda/kernel/summary_products_sm80.cuh"
#include "mhla/cuda/kernel/token_sums_sm80.cuh"
#include "mhla/cuda/kernel/transposed_mixing.cuh"
#include "mhla/cuda/launch/gradient_layout.cuh"
#include "mhla/cuda/launch/gradient_plan.cuh"
#include "mhla/cuda/launch/gradient_problem.cuh"
#include "mhla/cuda/launch/gradient_run.cuh"
#include "mhla/cuda/launch/gradient_workspace.cuh"
#include "mhla/cuda/launch/mixing_gradient.cuh"
#include "mhla/cuda/tile/row_pieces.cuh"
#include "mhla/cuda/tile/split_rows.cuh"
#include "support/cuda/form_test.hpp"
#include "support/cuda/gradient_run.hpp"

namespace {

using cuda_test::CallShape;
using cuda_test::GradientCall;
using cuda_test::GradientTensors;
using mhla::cuda::Arch;
using mhla::cuda::Denominator;
using mhla::cuda::Device;
using mhla::cuda::FeatureMap;
using mhla::cuda::Form;
using mhla::cuda::GradientPlan;
using mhla::cuda::Matrices;
using mhla::cuda::Precision;

template <class W>
class GradientForms : public cuda_test::FormTest<W> {
 protected:
  using Test = cuda_test::FormTest<W>;
  static constexpr int D = W::D, E = W::E;
  using T = typename W::T;

  template <bool kCausal, bool kRotary = false>
  static GradientPlan run(const CallShape& shape, const Device& device) {
    return cuda_test::run_and_compare_gradient<T, D, E, kCausal, kRotary>(shape, device);
  }

  /// Two devices with much and with little shared memory. The first has one kernel for gradients of
  /// few tokens, the second several.
  static std::array<Device, 2> devices() {
    const Device large{Arch::kSm90a, 2};
    return {large, mhla::cuda::with_shared_bytes(large, mhla::cuda::kLeastShared)};
  }
  /// The devices of a test's `turn`-th case: both, or alternately one of them.
  static std::vector<Device> devices(std::size_t turn) {
    if (Test::kAllCases) return {devices()[0], devices()[1]};
    return {devices()[turn % 2]};
  }

  static void run_into(GradientTensors<T>& got, GradientCall<T>& call, const CallShape& shape,
                       const Device& device, unsigned seed,
                       const cuda_test::Tensor<T>* out = nullptr) {
    if (shape.causal) {
      cuda_test::run_gradient<D, E, true>(call, got, device, seed, out);
    } else {
      cuda_test::run_gradient<D, E, false>(call, got, device, seed, out);
    }
  }

  /// Returns the bits of all gradients of a call under a schedule. Outputs start as poison.
  static std::vector<std::string> bits(GradientCall<T>& call, const CallShape& shape,
                                       const Device& device, unsigned seed,
                                       const cuda_test::Tensor<T>* out = nullptr) {
    GradientTensors<T> got(call, shape.layout);
    run_into(got, call, shape, device, seed, out);
    return cuda_test::bits_of(got);
  }
};

TYPED_TEST_SUITE(GradientForms, cuda_test::Widths);

// Cases: full and short blocks, slots that are and are not a multiple of 8, keys that are not the
// queries, and more pairs than thread blocks.
TYPED_TEST(GradientForms, OfFewTokensTakeOneKernel) {
  if constexpr (TypeParam::D <= 72) {
    CallShape shapes[] = {
        {.batch = 2, .heads = 3, .tokens = 64, .block = 16},
        {.heads = 2, .tokens = {1, 7, 9}, .block = {1, 3, 4}, .layout = 2},
        {.tokens = 90, .block = 45, .key_tokens = {1, 9, 8}, .key_block = {1, 4, 3}, .layout = 1},
        {.tokens = 32, .block = 1},
        {.tokens = 20, .block = 40}};
    shapes[1].op.query_map = shapes[1].op.key_map = FeatureMap::elu_plus_one();
    shapes[2].op.key_map = FeatureMap::elu_plus_one();
    shapes[2].op.denominator = Denominator::kNone;
    shapes[2].op.scale = 0.25f;
    shapes[3].op.eps = 0.5f;
    for (const CallShape& shape : shapes) {
      EXPECT_TRUE(this->template run<false>(shape, {Arch::kSm90a, 2}).quadratic);
    }
  }
}

TYPED_TEST(GradientForms, OfFewTokensTakeScores) {
  for (const Arch arch : this->archs(0)) {
    CallShape shape{.heads = 2, .tokens = {1, 7, 9}, .block = {1, 3, 4}, .layout = 2};
    const Device device = mhla::cuda::with_shared_bytes({arch, 2}, mhla::cuda::kLeastShared);
    EXPECT_TRUE(this->template run<false>(shape, device).scores);
  }
}

// Blocks at the edges of an image are short, so that 256 tokens have 36 blocks of up to 9. Scores
// are summed for 32.
TYPED_TEST(GradientForms, OfFewTokensInManyBlocksTakeNoScores) {
  for (const Arch arch : this->archs(0)) {
    const CallShape shape{.tokens = {1, 16, 16}, .block = {1, 3, 3}};
    EXPECT_FALSE(this->template run<false>(shape, Device{arch, 2}).scores);
  }
}

TEST(OrderedSums, CoverMatricesOfMoreThanTwoToThe32Numbers) {
  mhla::cuda::OrderedSumParameters p{};
  p.rows = p.columns = 65537;
  EXPECT_EQ(mhla::cuda::OrderedSumsSm80::grid(p, 1), 65537u * 4097u);
  p.matrices = 3;
  p.columns = 16;
  EXPECT_EQ(mhla::cuda::OrderedSumsSm80::grid(p, 1), 3u * 65537u);
}

// Only products take summaries in pairs.
TYPED_TEST(GradientForms, OfManyTokensTakeSummaries) {
  for (const Arch arch : this->archs(1)) {
    CallShape shape{.tokens = 300, .block = 64, .layout = 1};
    shape.op.summaries = Precision::kPair;
    const GradientPlan plan = this->template run<false>(shape, Device{arch, 8});
    EXPECT_FALSE(plan.scores || plan.fused || plan.staged);
  }
}

TYPED_TEST(GradientForms, OfFewBlocksTakeOneKernel) {
  if constexpr (TypeParam::D <= 72) {
    CallShape shape{.batch = 2, .tokens = 300, .block = 80, .layout = 1};
    for (const Device& device : this->devices()) {
      EXPECT_TRUE(this->template run<false>(shape, device).fused);
    }
  }
}

TYPED_TEST(GradientForms, OfCausalForms) {
  for (const Arch arch : this->archs(0)) {
    for (const int block : {40, 100}) {
      CallShape shape{.heads = 2, .tokens = 230, .block = block};
      this->template run<true>(shape, Device{arch, 2});
    }
  }
}

TYPED_TEST(GradientForms, OfCrossQueries) {
  CallShape shape{.batch = 2, .tokens = {1, 12, 12}, .block = {1, 3, 4}};
  shape.op.denominator = Denominator::kCrossQuery;
  shape.op.eps = 1e-3f;
  for (const Arch arch : this->archs(1)) {
    const Device device = mhla::cuda::with_shared_bytes({arch, 2}, mhla::cuda::kLeastShared);
    EXPECT_FALSE(this->template run<false>(shape, device).quadratic);
  }
}

// Cases: slots that are and are not a multiple of 8, keys that are not the queries, short last
// blocks of keys, one block, and more pairs than thread blocks.
TYPED_TEST(GradientForms, OfCrossQueriesOfFewTokensTakeOneKernel) {
  if constexpr (TypeParam::D <= 72) {
    CallShape shapes[] = {
        {.batch = 2, .heads = 3, .tokens = {1, 8, 16}, .block = {1, 4, 4}},
        {.tokens = 90, .block = 45, .key_tokens = {1, 9, 4}, .key_block = {1, 5, 4}, .layout = 1},
        {.heads = 2, .tokens = {1, 6, 9}, .block = {1, 2, 3}, .layout = 2},
        {.tokens = 20, .block = 20}};
    shapes[1].op.key_map = FeatureMap::elu_plus_one();
    shapes[2].op.query_map = shapes[2].op.key_map = FeatureMap::elu_plus_one();
    shapes[2].op.scale = 0.25f;
    for (CallShape& shape : shapes) {
      shape.op.denominator = Denominator::kCrossQuery;
      shape.op.eps = shape.tokens[2] == 20 ? 0 : 1e-3f;  // dm of one block is 0, up to eps
      EXPECT_TRUE(this->template run<false>(shape, {Arch::kSm90a, 2}).quadratic);
    }
  }
}

// Cases: one kernel, scores, summaries in pairs and denominators of cross queries. Matrices of
// heads add the gradients of two batch items.
TYPED_TEST(GradientForms, OfMatricesOfHeadsAndItems) {
  CallShape few{.batch = 2, .heads = 2, .tokens = 54, .block = 9};
  few.key_tokens = {1, 7, 9}, few.key_block = {1, 3, 4};
  CallShape pairs{.batch = 2, .heads = 2, .tokens = 66, .block = 6};
  pairs.op.summaries = Precision::kPair;
  CallShape cross{.batch = 2, .heads = 2, .tokens = 48, .block = 16};
  cross.op.denominator = Denominator::kCrossQuery;
  cross.op.eps = 1e-3f;
  CallShape causal{.batch = 2, .heads = 2, .tokens = 90, .block = 5};
  for (const std::size_t turn : {0, 1}) {
    for (const Matrices matrices : this->matrices(turn)) {
      for (CallShape* shape : {&few, &pairs, &cross, &causal}) shape->op.matrices = matrices;
      for (const Device& device : this->devices(turn)) {
        const GradientPlan plan = this->template run<false>(few, device);
        EXPECT_TRUE(plan.quadratic || plan.scores);
        this->template run<false>(cross, device);
      }
      if (turn == 1) continue;
      EXPECT_FALSE(this->template run<false>(pairs, this->devices()[1]).scores);
      this->template run<true>(causal, Device{Arch::kSm80, 2});
    }
    if (this->kAllCases) return;
  }
}

TYPED_TEST(GradientForms, OfOutputsWithNormAndGate) {
  CallShape shape{.tokens = 70, .block = 35, .normed = true};
  for (const bool gate : {false, true}) {
    shape.gated = gate;
    shape.op.denominator = gate ? Denominator::kNone : Denominator::kKeySum;
    this->template run<false>(shape, Device{Arch::kSm80, 2});
    this->template run<true>(shape, Device{Arch::kSm90a, 2});
  }
}

TYPED_TEST(GradientForms, OfFeaturesThatTurn) {
  if constexpr (TypeParam::D != 72) {
    CallShape shape{.tokens = {1, 8, 12}, .block = {1, 4, 6}, .layout = 1};
    for (const Denominator denominator :
         {Denominator::kNone, Denominator::kKeySum, Denominator::kCrossQuery}) {
      shape.op.denominator = denominator;
      shape.op.eps = 1e-3f;
      this->template run<false, true>(shape, Device{Arch::kSm90a, 2});
    }
    CallShape causal{.tokens = 150, .block = 64};
    causal.op.denominator = Denominator::kNone;
    this->template run<true, true>(causal, Device{Arch::kSm80, 2});
  }
}

TYPED_TEST(GradientForms, OfOtherKeysThanQueriesInPairs) {
  CallShape shape{.tokens = 90, .block = 30, .key_tokens = {1, 20, 18}, .key_block = {1, 4, 3}};
  shape.op.query_map = FeatureMap::identity();
  shape.op.key_map = FeatureMap::elu_plus_one();
  shape.op.denominator = Denominator::kNone;
  shape.op.scale = 0.125f;
  for (const Precision summaries : {Precision::kSingle, Precision::kPair}) {
    shape.op.summaries = summaries;
    this->template run<false>(shape, Device{Arch::kSm90a, 2});
  }
}

// Bits depend neither on the order of thread blocks nor on whether outputs are kept.
TYPED_TEST(GradientForms, BitsAreTheSameEachTime) {
  using Number = typename TypeParam::T;
  for (const std::size_t turn : {0, 1, 2}) {
    const bool causal = turn == 1;
    CallShape shape{.heads = 2, .tokens = turn == 2 ? 120 : 150, .block = 40, .causal = causal};
    if (turn == 2) shape.op.denominator = Denominator::kCrossQuery;
    GradientCall<Number> call =
        cuda_test::random_gradient_call<Number, TypeParam::D, TypeParam::E>(shape, 5);
    for (const Device& device : this->devices(turn)) {
      const auto first = this->bits(call, shape, device, 0);
      const auto plan = mhla::cuda::plan<TypeParam::D, TypeParam::E>(problem_of(call), device);
      cuda_test::Call<Number>& forward = call;
      cuda_test::run_only<TypeParam::D, TypeParam::E>(forward, plan, device, 1);
      EXPECT_EQ(this->bits(call, shape, device, 7, &call.o), first);
    }
  }
}

// Outputs with a denominator of 0 are constants: a zero row of the mixing matrix adds exactly 0.
TYPED_TEST(GradientForms, DenominatorsMayBeZero) {
  using Number = typename TypeParam::T;
  for (const std::size_t turn : {0, 1, 2}) {
    for (const Device& device : this->devices(turn + 1)) {
      CallShape shape{.tokens = 60, .block = 20, .causal = turn == 1};
      if (turn == 2) shape.op.denominator = Denominator::kCrossQuery;
      GradientCall<Number> call =
          cuda_test::random_gradient_call<Number, TypeParam::D, TypeParam::E>(shape, 5);
      for (int b = 0; b < 3; ++b) call.mixing[b] = 0;
      GradientTensors<Number> first(call, 0), got(call, 0);
      this->run_into(first, call, shape, device, 3);
      for (int t = 0; t < 20; ++t) {
        for (int e = 0; e < TypeParam::E; ++e) call.dout.at(0, t, 0, e) = Number{0};
      }
      this->run_into(got, call, shape, device, 3);
      EXPECT_EQ(cuda_test::bits_of(got), cuda_test::bits_of(first));
      for (int i = 0; i < 9; ++i) EXPECT_TRUE(std::isfinite(got.mixing.value(i))) << i;
      for (int i = 0; i < 3; ++i) EXPECT_EQ(got.mixing.value(i), 0) << i;
    }
  }
}

// Zero rows of dout add exactly 0, even where outputs are infinite.
TYPED_TEST(GradientForms, TokensWithoutGradientsAddNothing) {
  using Number = typename TypeParam::T;
  for (const Denominator denominator : {Denominator::kKeySum, Denominator::kCrossQuery}) {
    CallShape shape{.tokens = 60, .block = 20};
    shape.op.denominator = denominator;
    GradientCall<Number> call =
        cuda_test::random_gradient_call<Number, TypeParam::D, TypeParam::E>(shape, 5);
    const Device device{Arch::kSm80, 2};
    const auto plan = mhla::cuda::plan<TypeParam::D, TypeParam::E>(problem_of(call), device);
    cuda_test::Call<Number>& forward = call;
    cuda_test::run_only<TypeParam::D, TypeParam::E>(forward, plan, device, 1);
    for (int t = 0; t < 20; ++t) {
      for (int e = 0; e < TypeParam::E; ++e) {
        call.dout.at(0, t, 0, e) = Number{0};
        call.o.at(0, t, 0, e) = cuda_test::from_double<Number>(INFINITY);
      }
    }
    for (const Device& target : this->devices()) {
      GradientTensors<Number> got(call, 0);
      cuda_test::run_gradient<TypeParam::D, TypeParam::E, false>(call, got, target, 3, &call.o);
      got.q.each([&](int b, int t, int h, int d) {
        if (t < 20 && denominator == Denominator::kKeySum) {  // no other output reads the query
          EXPECT_EQ(got.q.value(b, t, h, d), 0);
        } else {
          EXPECT_TRUE(std::isfinite(got.q.value(b, t, h, d)));
        }
      });
      for (int i = 0; i < 9; ++i) EXPECT_TRUE(std::isfinite(got.mixing.value(i))) << i;
      for (int i = 0; i < 3; ++i) EXPECT_EQ(got.mixing.value(i), 0) << i;
    }
  }
}

// Outputs of block 1 have a denominator of 0.
TYPED_TEST(GradientForms, InfiniteOutputsBeforeANormAddNothing) {
  using Number = typename TypeParam::T;
  CallShape shape{.tokens = 40, .block = 20, .normed = true, .gated = true};
  shape.op.query_map = shape.op.key_map = FeatureMap::identity();
  GradientCall<Number> call =
      cuda_test::random_gradient_call<Number, TypeParam::D, TypeParam::E>(shape, 5);
  for (int i = 0; i < 4; ++i) call.mixing[i] = i % 3 == 0 ? 1 : 0;
  call.q.fill([] { return 1; });
  call.k.each([&](int b, int t, int h, int d) {
    const double x = t < 20 ? 1 : t % 2 == 0 ? 1 : -1;
    call.k.at(b, t, h, d) = cuda_test::from_double<Number>(x);
  });
  for (int t = 20; t < 40; ++t) {
    for (int e = 0; e < TypeParam::E; ++e) call.dout.at(0, t, 0, e) = Number{0};
  }
  GradientTensors<Number> got(call, 0);
  cuda_test::run_gradient<TypeParam::D, TypeParam::E, false>(call, got, Device{Arch::kSm80, 2}, 3);
  for (const auto* x : {&got.q, &got.k, &got.v, &got.gate}) {
    x->each([&](int b, int t, int h, int d) {
      ASSERT_TRUE(std::isfinite(x->value(b, t, h, d))) << t;
      if (t >= 20) {
        ASSERT_EQ(x->value(b, t, h, d), 0) << t;
      }
    });
  }
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(std::isfinite(got.mixing.value(i))) << i;
  for (int e = 0; e < TypeParam::E; ++e) EXPECT_TRUE(std::isfinite(got.gain.value(e))) << e;
}

// Sums over no heads are written as 0.
TYPED_TEST(GradientForms, WithoutHeadsAreZero) {
  constexpr int kD = TypeParam::D, kE = TypeParam::E;
  using Number = typename TypeParam::T;
  CallShape shape{.heads = 2, .tokens = 60, .block = 20, .normed = true};
  shape.op.matrices = Matrices::kPerHead;
  GradientCall<Number> call = cuda_test::random_gradient_call<Number, kD, kE>(shape, 5);
  GradientTensors<Number> got(call, 0);
  mhla::cuda::GradientProblem problem = cuda_test::gradient_problem(call, got);
  problem.forward.batch = 0;
  emulator::Device device(0);
  device.track("dmixing", got.mixing.raw(), got.mixing.bytes(), emulator::Access::kWrite);
  device.track("dgain", got.gain.raw(), got.gain.bytes(), emulator::Access::kWrite);
  const cuda_test::EmulatedStream stream(device);
  const Device gpu{Arch::kSm90a, 2};
  const auto plan = mhla::cuda::gradient_plan<kD, kE, false, false>(problem, gpu);
  mhla::cuda::run_gradient<Number, kD, kE, false, false>(plan, problem, {}, nullptr, gpu, stream);
  for (std::int64_t i = 0; i < 9; ++i) {
    for (int h = 0; h < 2; ++h) EXPECT_EQ(got.mixing.value(call.matrix_of(0, h) + i), 0);
  }
  for (std::int64_t i = 0; i < got.gain.size(); ++i) EXPECT_EQ(got.gain.value(i), 0);
}

}  // namespace

#pragma once

/// \file
/// Tests that kernels which compute all gradients of a bidirectional form share: those of one
/// kernel, and those of a block of queries or keys.

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <vector>

#include "support/cuda/gradient_run.hpp"

namespace cuda_test {

/// \tparam Kernels  has devices(), and run_kernels_of() for a gradient whose plan they take
template <class Kernels, class T, int D>
class GradientSuite : public testing::Test {
 protected:
  static GradientCall<T> call_of(const CallShape& shape) {
    return random_gradient_call<T, D, D>(shape, 5);
  }
  static std::vector<emulator::Report> run(GradientCall<T>& call, GradientTensors<T>& to,
                                           const mhla::cuda::GradientProblem& problem,
                                           const mhla::cuda::Device& device, unsigned seed = 3) {
    return Kernels::run_kernels_of(call, to, problem, device, seed);
  }
  static GradientTensors<T> run(GradientCall<T>& call, const mhla::cuda::Device& device,
                                unsigned seed = 3) {
    GradientTensors<T> got(call, 1);
    run(call, got, gradient_problem(call, got), device, seed);
    return got;
  }
  static void run_and_compare(const CallShape& shape, const mhla::cuda::Device& device) {
    GradientCall<T> call = call_of(shape);
    compare_gradients(call, run(call, device));
  }

  /// Cases: short last blocks, several pairs, images, and one block. Blocks have more and fewer
  /// tokens than a stage, and keys are not the queries.
  /// \param queries, keys  tokens of a block of 90 queries, and of 90 keys
  static void expect_bounds(int queries, int keys) {
    using mhla::cuda::FeatureMap;
    CallShape shapes[] = {
        {.batch = 2, .heads = 2, .tokens = 300, .block = 80},
        {.heads = 3, .tokens = {2, 9, 17}, .block = {1, 5, 17}, .layout = 2},
        {.tokens = 90,
         .block = queries,
         .key_tokens = {1, 20, 18},
         .key_block = {1, 10, 9},
         .layout = 1},
        {.tokens = {1, 20, 18}, .block = {1, 20, 9}, .key_tokens = 90, .key_block = keys},
        {.tokens = 270, .block = 270}};
    shapes[1].op.query_map = shapes[1].op.key_map = FeatureMap::elu_plus_one();
    shapes[2].op.query_map = FeatureMap::identity();
    shapes[2].op.key_map = FeatureMap::elu_plus_one();
    shapes[2].op.denominator = mhla::cuda::Denominator::kNone;
    shapes[2].op.scale = 0.25f;
    shapes[3].op.eps = 0.5f;
    for (const mhla::cuda::Device& device : Kernels::devices()) {
      for (const CallShape& shape : shapes) run_and_compare(shape, device);
    }
  }

  static void expect_bounds_of_matrices() {
    using mhla::cuda::Matrices;
    for (const Matrices matrices : {Matrices::kPerHead, Matrices::kPerItemAndHead}) {
      CallShape shape{.batch = 2, .heads = 2, .tokens = 280, .block = 90};
      shape.op.matrices = matrices;
      run_and_compare(shape, Kernels::devices()[matrices == Matrices::kPerHead ? 0 : 1]);
    }
  }

  /// Bits do not depend on the order of thread blocks.
  static void expect_same_bits() {
    GradientCall<T> call = call_of({.heads = 3, .tokens = 290, .block = 75});
    for (const mhla::cuda::Device& device : Kernels::devices()) {
      const auto first = bits_of(run(call, device, 0));
      EXPECT_EQ(bits_of(run(call, device, 7)), first);
    }
  }

  /// Each gradient alone has the bits that it has with the others.
  static void expect_bits_of_each_alone() {
    GradientCall<T> call = call_of({.tokens = 260, .block = 70});
    const mhla::cuda::Device device = Kernels::devices()[0];
    const auto all = bits_of(run(call, device));
    for (std::size_t wanted = 0; wanted < 4; ++wanted) {
      GradientTensors<T> got(call, 1);
      mhla::cuda::GradientProblem problem = gradient_problem(call, got);
      problem.wants = {wanted == 0, wanted == 1, wanted == 2, wanted == 3, false, false};
      if (wanted != 0) problem.dq = {};
      if (wanted != 1) problem.dk = {};
      if (wanted != 2) problem.dv = {};
      run(call, got, problem, device);
      EXPECT_EQ(bits_of(got)[wanted], all[wanted]) << wanted;
    }
  }

  /// Outputs with a denominator of 0 are constants, and rows of zeros in dout add exactly 0.
  static void expect_nothing_of_constants() {
    GradientCall<T> call = call_of({.tokens = 270, .block = 90});
    for (int b = 0; b < 3; ++b) call.mixing[b] = 0;
    const mhla::cuda::Device device = Kernels::devices()[0];
    const GradientTensors<T> got = run(call, device);
    for (int t = 0; t < 90; ++t) {
      for (int e = 0; e < D; ++e) {
        ASSERT_EQ(got.q.value(0, t, 0, e), 0);
        call.dout.at(0, t, 0, e) = T{0};
      }
    }
    for (int i = 0; i < 9; ++i) EXPECT_TRUE(std::isfinite(got.mixing.value(i))) << i;
    for (int i = 0; i < 3; ++i) EXPECT_EQ(got.mixing.value(i), 0) << i;
    EXPECT_EQ(bits_of(run(call, device)), bits_of(got));
  }

  /// Sums over 270 queries exceed the range of half.
  static void expect_bounds_of_large_sums() {
    CallShape shape{.tokens = 270, .block = 270};
    shape.op.denominator = mhla::cuda::Denominator::kNone;
    auto call = call_of(shape);
    Random random(7);
    for (auto* x : {&call.q, &call.dout}) x->fill([&] { return random.uniform(0, 50); });
    for (auto* x : {&call.k, &call.v}) x->fill([&] { return random.uniform(0, 1); });
    call.mixing[0] = 1e-4f;
    compare_gradients(call, run(call, Kernels::devices()[0]));
  }
};

}  // namespace cuda_test

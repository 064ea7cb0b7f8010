#pragma once

/// \file
/// Runs of forms and gradients of tokens that are masked or packed, in the emulator.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "mhla/cuda/launch/gradient_staging.cuh"
#include "support/cuda/form_test.hpp"
#include "support/cuda/gradient_run.hpp"
#include "support/cuda/masked_tokens.hpp"

namespace cuda_test {

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
  Tensor<T> y(1, total, x.heads(), x.width(), Layout::padded(total, x.heads(), x.width()));
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
    const T got = y.at(0, row, h, d), padded = x.at(b, t, h, d);
    wrong += std::memcmp(&got, &padded, sizeof(T)) != 0 ? 1 : 0;
  });
  EXPECT_EQ(wrong, 0) << name;
  EXPECT_TRUE(y.padding_is_untouched());
}

inline Array<std::int32_t> offsets_of(const std::vector<int>& length) {
  Array<std::int32_t> offsets(static_cast<std::int64_t>(length.size()) + 1);
  offsets[0] = 0;
  for (std::size_t s = 0; s < length.size(); ++s) {
    const auto i = static_cast<std::int64_t>(s);
    offsets[i + 1] = offsets[i] + length[s];
  }
  return offsets;
}

template <class W>
class SelectedTokens : public FormTest<W> {
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
  /// Expects outputs of masked queries and gradients of masked values to be 0, where gates of
  /// masked queries, a value that others read, and its gradient of an output are NaN.
  static void expect_zeros_beside_nan(const CallShape& shape, const mhla::cuda::Device& device) {
    auto call = random_gradient_call<T, D, E>(shape, 3);
    mask_some(call, static_cast<int>(shape.block[2]));
    if (shape.gated) spoil_masked(call.gate, call.query_keep);
    int kept = 0;
    while (call.key_keep[kept] == 0 || call.query_keep[kept] == 0) ++kept;
    call.v.at(0, kept, 0, 1) = call.dout.at(0, kept, 0, 1) = from_double<T>(NAN);
    run_only<D, E>(call, mhla::cuda::plan<D, E>(problem_of(call), device), device, 1);
    expect_zero_outputs(call);
    GradientTensors<T> got(call, shape.layout);
    run_gradient<D, E, false>(call, got, device, 1, &call.o);
    got.v.each([&](int b, int t, int h, int d) {
      if (call.key_keep[b * got.v.tokens() + t] == 0) {
        ASSERT_EQ(got.v.value(b, t, h, d), 0) << t;
      }
    });
  }
  /// Runs a masked call in its planned form, which must be `form`.
  static void run_masked(const CallShape& shape, mhla::cuda::Form form,
                         const mhla::cuda::Device& device) {
    auto call = random_call<T, D, E>(shape, 3);
    mask_some(call, static_cast<int>(shape.block[2]));
    const auto plan = mhla::cuda::plan<D, E>(problem_of(call), device);
    EXPECT_EQ(plan.form, form) << plan.reason;
    run_and_compare<D, E>(call, plan, device, 2);
    expect_zero_outputs(call);
  }
  template <bool kCausal, bool kRotary = false>
  static void run_masked_gradient(const CallShape& shape, const mhla::cuda::Device& device) {
    run_and_compare_gradient<T, D, E, kCausal, kRotary>(shape, device,
                                                        static_cast<int>(shape.block[2]));
  }
  /// Expects the bits of padded sequences in packed ones.
  template <bool kCausal>
  static void expect_packed_bits(const CallShape& of, const mhla::cuda::Device& device) {
    const std::vector<int> length{40, 64, 0, 17};
    CallShape shape = of;
    shape.causal = kCausal;
    auto call = random_gradient_call<T, D, E>(shape, 5);
    GradientTensors<T> padded(call, 0);
    auto packed_call = random_gradient_call<T, D, E>(shape, 5);
    mask_ends<T>(call, length);
    packed_call.q = packed(call.q, length), packed_call.k = packed(call.k, length);
    packed_call.v = packed(call.v, length), packed_call.dout = packed(call.dout, length);
    packed_call.o = packed(call.o, length);
    if (call.gated()) packed_call.gate = packed(call.gate, length);
    GradientTensors<T> got(packed_call, 0);
    const Array<std::int32_t> offsets = offsets_of(length);
    const auto run = [&](auto& x, auto& to, bool is_packed) {
      mhla::cuda::GradientProblem problem = gradient_problem(x, to, &x.o);
      mhla::cuda::Problem forward = problem_of(x);
      forward.batch = static_cast<std::int32_t>(length.size());
      for (mhla::cuda::Selection* selection : {&forward.queries, &forward.keys}) {
        if (is_packed) selection->packed = true, selection->offsets = offsets.data();
      }
      problem.forward = forward;
      emulator::Device emulated(3);
      const auto plan = mhla::cuda::plan<D, E>(forward, device);
      const auto backward = mhla::cuda::gradient_plan<D, E, kCausal, false>(problem, device);
      Array<unsigned char> workspace(
          static_cast<std::int64_t>(std::max(plan.workspace_bytes, backward.workspace_bytes)));
      const mhla::cuda::MixingArray mixing{call.mixing.data(), forward.key_blocks.blocks()};
      const auto track = [&](const char* name, const auto& y) {
        if (y.bytes() == 0) return;
        emulated.track(name, y.raw(), y.bytes(), emulator::Access::kReadWrite);
      };
      for (Tensor<T>* y : {&x.q, &x.k, &x.v, &x.o, &x.dout, &x.gate, &to.q, &to.k, &to.v, &to.gate})
        track("tensor", *y);
      track("mixing", call.mixing), track("workspace", workspace), track("offsets", offsets);
      track("gradient", to.mixing), track("gradient", to.gain), track("gain", x.gain);
      track_masks(x, emulated);
      const EmulatedStream stream(emulated);
      mhla::cuda::run<T, D, E, kCausal>(plan, forward, mixing, workspace.data(), device, stream);
      mhla::cuda::run_gradient<T, D, E, kCausal, false>(backward, problem, mixing, workspace.data(),
                                                        device, stream);
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
  }
};

}  // namespace cuda_test

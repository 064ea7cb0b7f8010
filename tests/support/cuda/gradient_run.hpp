#pragma once

/// \file
/// A gradient on a device, run in the emulator by the library's host code, and compared with the
/// CPU's gradient.

#include <gtest/gtest.h>

#include <string>
#include <type_traits>
#include <vector>

#include "mhla/cuda/launch/gradient.cuh"
#include "support/cuda/emulated_call.hpp"
#include "support/cuda/gradient_call.hpp"
#include "support/cuda/masked_tokens.hpp"

namespace cuda_test {

/// The problem of a call.
/// \param out  outputs of the forward call, or null
template <class T>
mhla::cuda::GradientProblem gradient_problem(GradientCall<T>& call, GradientTensors<T>& to,
                                             const Tensor<T>* out = nullptr) {
  mhla::cuda::GradientProblem problem{};
  problem.forward = problem_of(call);
  problem.forward.o = {};
  problem.wants = {true, true, true, true, call.normed(), out != nullptr};
  problem.dout = call.dout.input();
  if (out != nullptr) problem.out = out->input();
  problem.dq = to.q.output();
  problem.dk = to.k.output();
  problem.dv = to.v.output();
  if (call.gated()) problem.dgate = to.gate.output();
  const mhla::cuda::MixingArray m = call.mixing_array();
  problem.dmixing = {to.mixing.data(), m.stride, m.item_stride, m.head_stride};
  problem.dgain = to.gain.data();
  return problem;
}

/// Runs a gradient under a schedule: launch(problem, workspace, stream) launches its kernels. Lets
/// them access the memory of the call. Returns the reports of the kernels.
/// \param problem  gradient_problem(call, to, out), of which some gradients may be unwanted
template <class T, class Launch>
std::vector<emulator::Report> run_kernels(GradientCall<T>& call, GradientTensors<T>& to,
                                          const mhla::cuda::GradientProblem& problem,
                                          std::size_t workspace_bytes, unsigned seed,
                                          const std::type_identity_t<Tensor<T>>* out,
                                          const Launch& launch) {
  using emulator::Access;
  emulator::Device device(seed);
  Array<unsigned char> workspace(static_cast<std::int64_t>(workspace_bytes) + 1);
  const auto track = [&](const char* name, auto& x, Access access) {
    if (x.bytes() > 0) device.track(name, x.raw(), x.bytes(), access);
  };
  track("q", call.q, Access::kRead);
  track("k", call.k, Access::kRead);
  track("v", call.v, Access::kRead);
  track("dout", call.dout, Access::kRead);
  track("mixing", call.mixing, Access::kRead);
  track("gain", call.gain, Access::kRead);
  if (call.gated()) track("gate", call.gate, Access::kRead);
  track("query angles", call.query_angles, Access::kRead);
  track("key angles", call.key_angles, Access::kRead);
  if (out != nullptr) device.track("out", out->raw(), out->bytes(), Access::kRead);
  track_masks(call, device);
  if (call.bits.bytes() > 0) {
    device.track("pattern", call.bits.data(), call.bits.bytes(), Access::kRead);
  }
  // Gradients of features, which are multiplied by phi' where copies replace tensors.
  const Access inputs = problem.forward.copies() ? Access::kReadWrite : Access::kWrite;
  track("dq", to.q, inputs);
  track("dk", to.k, inputs);
  track("dv", to.v, Access::kReadWrite);
  track("dgate", to.gate, Access::kWrite);
  track("dmixing", to.mixing, Access::kWrite);
  track("dgain", to.gain, Access::kWrite);
  if (workspace_bytes > 0) {
    device.track("workspace", workspace.data(), workspace_bytes, Access::kReadWrite);
  }
  const EmulatedStream stream(device);
  launch(problem, workspace.data(), stream);
  for (const Tensor<T>* x : {&to.q, &to.k, &to.v, &to.gate}) {
    EXPECT_TRUE(x->padding_is_untouched());
  }
  return stream.reports();
}

/// Runs a gradient under a schedule and returns its plan.
/// \param maps  call.op, or a MappedOperator of the call's own feature maps
template <int D, int E, bool kCausal, bool kRotary = false, class T, class Maps>
mhla::cuda::GradientPlan run_gradient(GradientCall<T>& call, GradientTensors<T>& to,
                                      mhla::cuda::Device target, unsigned seed,
                                      const std::type_identity_t<Tensor<T>>* out,
                                      const Maps& maps) {
  const mhla::cuda::GradientProblem problem = gradient_problem(call, to, out);
  const mhla::cuda::GradientPlan plan =
      mhla::cuda::gradient_plan<D, E, kCausal, kRotary>(problem, target);
  const auto launch = [&](const auto& of, unsigned char* workspace, const EmulatedStream& stream) {
    mhla::cuda::run_gradient<T, D, E, kCausal, kRotary>(plan, of, call.mixing_array(), workspace,
                                                        target, stream, maps);
  };
  run_kernels(call, to, problem, plan.workspace_bytes, seed, out, launch);
  return plan;
}

template <int D, int E, bool kCausal, bool kRotary = false, class T>
mhla::cuda::GradientPlan run_gradient(GradientCall<T>& call, GradientTensors<T>& to,
                                      mhla::cuda::Device target, unsigned seed,
                                      const Tensor<T>* out = nullptr) {
  return run_gradient<D, E, kCausal, kRotary>(call, to, target, seed, out, call.op);
}

/// Compares all gradients with the CPU's and returns the largest error over its bound.
template <class T>
double compare_gradients(const GradientCall<T>& call, const GradientTensors<T>& got) {
  const double worst = compare(call, got, [](const std::string& wrong) { ADD_FAILURE() << wrong; });
  testing::Test::RecordProperty("worst", std::to_string(worst));
  return worst;
}

/// Runs the gradient of a random call, compares it with the CPU's, and returns its plan.
/// \param masked_block  0, or the tokens of a block of which some are masked
template <class T, int D, int E, bool kCausal, bool kRotary = false>
mhla::cuda::GradientPlan run_and_compare_gradient(CallShape shape, const mhla::cuda::Device& device,
                                                  int masked_block = 0) {
  shape.causal = kCausal;
  shape.rotary = kRotary;
  GradientCall<T> call = random_gradient_call<T, D, E>(shape, 5);
  if (masked_block > 0) {
    mask_some<T>(call, masked_block);
    spoil_masked(call.dout, call.query_keep);
  }
  GradientTensors<T> got(call, shape.layout);
  const mhla::cuda::GradientPlan plan = run_gradient<D, E, kCausal, kRotary>(call, got, device, 3);
  compare_gradients(call, got);
  return plan;
}

/// The bits of the gradients of q, k, v and the mixing matrix.
template <class T>
std::vector<std::string> bits_of(const GradientTensors<T>& got) {
  std::vector<std::string> all;
  const auto add = [&](const auto& x) {
    all.emplace_back(reinterpret_cast<const char*>(x.raw()), x.bytes());
  };
  add(got.q), add(got.k), add(got.v), add(got.mixing);
  return all;
}

}  // namespace cuda_test

#pragma once

/// \file
/// A gradient on a device, run in the emulator by the library's host code, and compared with the
/// CPU's gradient.

#include <gtest/gtest.h>

#include <string>
#include <type_traits>

#include "mhla/cuda/launch/gradient.cuh"
#include "support/cuda/emulated_call.hpp"
#include "support/cuda/gradient_call.hpp"

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

/// Runs a gradient under a schedule and returns its plan.
/// \param maps  call.op, or a MappedOperator of the call's own feature maps
template <int D, int E, bool kCausal, bool kRotary = false, class T, class Maps>
mhla::cuda::GradientPlan run_gradient(GradientCall<T>& call, GradientTensors<T>& to,
                                      mhla::cuda::Device target, unsigned seed,
                                      const std::type_identity_t<Tensor<T>>* out,
                                      const Maps& maps) {
  using emulator::Access;
  const mhla::cuda::GradientProblem problem = gradient_problem(call, to, out);
  const mhla::cuda::GradientPlan plan =
      mhla::cuda::gradient_plan<D, E, kCausal, kRotary>(problem, target);
  emulator::Device device(seed);
  Array<unsigned char> workspace(static_cast<std::int64_t>(plan.workspace_bytes) + 1);
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
  device.track("workspace", workspace.data(), plan.workspace_bytes, Access::kReadWrite);
  const mhla::cuda::MixingArray mixing = call.mixing_array();
  mhla::cuda::run_gradient<T, D, E, kCausal, kRotary>(plan, problem, mixing, workspace.data(),
                                                      target, EmulatedStream(device), maps);
  for (const Tensor<T>* x : {&to.q, &to.k, &to.v, &to.gate}) {
    EXPECT_TRUE(x->padding_is_untouched());
  }
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

}  // namespace cuda_test

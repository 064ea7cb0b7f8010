/// \file
/// The forms of csrc/cuda/forms.hpp, with kernels in the emulator. bfloat16 and float of widths
/// (64, 64) have kernels, and float of (128, 256). Memory that a call does not name faults.

#include "cuda/forms.hpp"

#include <cstddef>
#include <cstdint>
#include <mhla/cuda/attention/gradient_inputs.cuh>
#include <mhla/cuda/attention/make_problem.cuh>
#include <mhla/cuda/attention/rotary_inputs.cuh>
#include <mhla/cuda/attention/same_layout.cuh>
#include <mhla/cuda/launch/forms.cuh>
#include <mhla/cuda/launch/gradient.cuh>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

#include "cuda/views.hpp"
#include "emulator.hpp"

namespace mhla_torch {
namespace {

using mhla::cuda::GradientProblem;
using mhla::cuda::MixingArray;
using mhla::cuda::NoRotary;
using mhla::cuda::Problem;

constexpr const char* kName = "emulated";

MixingArray mixing_of(const Call& call, const Problem& problem) {
  return mhla::cuda::detail::mixing_array(kName, call.mixing, problem);
}

/// Calls work.operator()<kCausal, R>() for the call's form.
template <class T, int D, class Work>
auto with_form(const Call& call, const Work& work) {
  return with_rotary<T, D>(call, [&]<class R>() {
    if (call.causal) return work.template operator()<true, R>();
    return work.template operator()<false, R>();
  });
}

template <class T, int D, int E, bool kCausal, class R>
Problem problem_of(const Call& call) {
  Problem problem = mhla::cuda::detail::make_problem<D, E>(kName, inputs<T>(call),
                                                           call.query_blocks, call.key_blocks,
                                                           kCausal, call.op, of_type<T>(call.out));
  mhla::cuda::detail::add_rotary(kName, rotary<R>(call), D, problem);
  return problem;
}

template <class T, int D, int E, bool kCausal, class R>
GradientProblem problem_of(const GradientCall& call) {
  const Call& forward = call.forward;
  GradientProblem problem = mhla::cuda::detail::make_gradient<D, E>(
      kName, inputs<T>(forward), forward.query_blocks, forward.key_blocks, kCausal, forward.op,
      of_type<const T>(call.dout), gradients<T>(call), {of_type<const T>(call.out)});
  mhla::cuda::detail::add_rotary(kName, rotary<R>(forward), D, problem.forward);
  return problem;
}

void track(Emulation& device, const Call& call) {
  device.track("q", call.q), device.track("k", call.k), device.track("v", call.v);
  device.track("gate", call.gate), device.track("out", call.out);
  device.track("gain", call.gain);
  device.track("query_offsets", call.query_offsets);
  if (!call.causal) device.track("key_offsets", call.key_offsets);
  device.track("query_mask", call.query_mask), device.track("key_mask", call.key_mask);
  device.track("mixing", call.mixing, call.q);
  if (!call.rotary) return;
  device.track("query_angles", call.rotary->query_angles);
  device.track("key_angles", call.rotary->key_angles);
}

template <class T, int D, int E>
constexpr bool kHasKernels = (!std::is_same_v<T, Eigen::half> && D == 64 && E == 64) ||
                             (std::is_same_v<T, float> && D == 128 && E == 256);

/// Checks a call as a prepared one does, if forms.cu would use the preparation of the latest call.
template <class T, class AnyCall, class AnyProblem, class Check>
void expect_prepared(const AnyCall& call, const AnyProblem& problem, const Check& check) {
  thread_local std::optional<std::pair<AnyCall, AnyProblem>> latest;
  if (latest && same_layout(latest->first, call)) check(kName, problem, latest->second);
  latest.emplace(call, problem);
}

[[noreturn]] void refuse_widths() {
  throw mhla::option_error("emulated: q and v are of half or of other widths than (64, 64)");
}

}  // namespace

template <class T, int D, int E>
void Forms<T, D, E>::check(const Call& call) {
  with_form<T, D>(call,
                  [&]<bool kCausal, class R>() { (void)problem_of<T, D, E, kCausal, R>(call); });
}

template <class T, int D, int E>
void Forms<T, D, E>::check(const GradientCall& call) {
  with_form<T, D>(call.forward,
                  [&]<bool kCausal, class R>() { (void)problem_of<T, D, E, kCausal, R>(call); });
}

template <class T, int D, int E>
const char* Forms<T, D, E>::form(const Call& call, int) {
  return with_form<T, D>(call, [&]<bool kCausal, class R>() {
    return name(
        mhla::cuda::plan<D, E>(problem_of<T, D, E, kCausal, R>(call), Emulation::kTarget).form);
  });
}

template <class T, int D, int E>
void Forms<T, D, E>::run(const Call& call, int,
                         const std::function<mhla::Workspace(std::size_t)>& workspace, void*) {
  if constexpr (kHasKernels<T, D, E>) {
    with_form<T, D>(call, [&]<bool kCausal, class R>() {
      const Problem problem = problem_of<T, D, E, kCausal, R>(call);
      mhla::cuda::detail::expect_data(kName, inputs<T>(call), of_type<T>(call.out));
      expect_prepared<T>(call, problem, mhla::cuda::detail::expect_same_layout);
      const auto plan = mhla::cuda::plan<D, E>(problem, Emulation::kTarget);
      Emulation device(sizeof(T));
      track(device, call);
      unsigned char* const memory = device.track("workspace", workspace(plan.workspace_bytes));
      mhla::cuda::run<mhla::cuda::kernel_scalar_t<T>, D, E, kCausal, !std::is_same_v<R, NoRotary>>(
          plan, problem, mixing_of(call, problem), memory, Emulation::kTarget, device);
    });
  } else {
    refuse_widths();
  }
}

template <class T, int D, int E>
void Forms<T, D, E>::run(const GradientCall& call, int,
                         const std::function<mhla::Workspace(std::size_t)>& workspace, void*) {
  if constexpr (kHasKernels<T, D, E>) {
    with_form<T, D>(call.forward, [&]<bool kCausal, class R>() {
      constexpr bool kRotary = !std::is_same_v<R, NoRotary>;
      const GradientProblem problem = problem_of<T, D, E, kCausal, R>(call);
      mhla::cuda::detail::expect_gradient_data(kName, inputs<T>(call.forward),
                                               of_type<const T>(call.dout), gradients<T>(call),
                                               mhla::cuda::Kept<T>{of_type<const T>(call.out)});
      expect_prepared<T>(call, problem, mhla::cuda::detail::expect_same_gradient);
      const auto plan =
          mhla::cuda::gradient_plan<D, E, kCausal, kRotary>(problem, Emulation::kTarget);
      Emulation device(sizeof(T));
      track(device, call.forward);
      device.track("dout", call.dout), device.track("kept", call.out);
      device.track("dq", call.dq), device.track("dk", call.dk), device.track("dv", call.dv);
      device.track("dgate", call.dgate), device.track("dgain", call.dgain);
      device.track("dmixing", call.dmixing, call.forward.q);
      unsigned char* const memory = device.track("workspace", workspace(plan.workspace_bytes));
      mhla::cuda::run_gradient<mhla::cuda::kernel_scalar_t<T>, D, E, kCausal, kRotary>(
          plan, problem, mixing_of(call.forward, problem.forward), memory, Emulation::kTarget,
          device, problem.forward.op);
    });
  } else {
    refuse_widths();
  }
}

template struct Forms<Eigen::bfloat16, 32, 32>;
template struct Forms<Eigen::bfloat16, 48, 48>;
template struct Forms<Eigen::bfloat16, 48, 96>;
template struct Forms<Eigen::bfloat16, 64, 64>;
template struct Forms<Eigen::bfloat16, 72, 72>;
template struct Forms<Eigen::bfloat16, 96, 48>;
template struct Forms<Eigen::bfloat16, 96, 96>;
template struct Forms<Eigen::bfloat16, 128, 128>;
template struct Forms<Eigen::bfloat16, 128, 256>;
template struct Forms<Eigen::bfloat16, 256, 256>;
template struct Forms<Eigen::half, 32, 32>;
template struct Forms<Eigen::half, 48, 48>;
template struct Forms<Eigen::half, 48, 96>;
template struct Forms<Eigen::half, 64, 64>;
template struct Forms<Eigen::half, 72, 72>;
template struct Forms<Eigen::half, 96, 48>;
template struct Forms<Eigen::half, 96, 96>;
template struct Forms<Eigen::half, 128, 128>;
template struct Forms<Eigen::half, 128, 256>;
template struct Forms<Eigen::half, 256, 256>;
template struct Forms<float, 32, 32>;
template struct Forms<float, 48, 48>;
template struct Forms<float, 48, 96>;
template struct Forms<float, 64, 64>;
template struct Forms<float, 72, 72>;
template struct Forms<float, 96, 48>;
template struct Forms<float, 96, 96>;
template struct Forms<float, 128, 128>;
template struct Forms<float, 128, 256>;

}  // namespace mhla_torch

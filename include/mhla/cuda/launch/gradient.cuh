#pragma once

/// \file
/// Plan and launch of a gradient (gradient_run.cuh). If tokens are masked or packed, have a prefix,
/// or feature maps are one's own, features precede its kernels, and selected_rows follow
/// (gradient_staging.cuh).

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/launch/gradient_layout.cuh"
#include "mhla/cuda/launch/gradient_plan.cuh"
#include "mhla/cuda/launch/gradient_problem.cuh"
#include "mhla/cuda/launch/gradient_run.cuh"
#include "mhla/cuda/launch/gradient_staging.cuh"

namespace mhla::cuda {

/// Plans a gradient on a device. Does not read the tensors.
template <int D, int E, bool kCausal, bool kRotary>
GradientPlan gradient_plan(const GradientProblem& problem, const Device& device) {
  if (!problem.forward.copies()) {
    return GradientLayout<D, E, kCausal, kRotary>(problem, {}, nullptr, device).plan;
  }
  const GradientStaging<D, E> staging(problem, nullptr);
  GradientPlan plan = gradient_plan<D, E, kCausal, kRotary>(staging.inner(), device);
  plan.workspace_bytes += staging.bytes();
  plan.traffic.tensors += staging.traffic();
  return plan;
}

/// Launches the kernels of a planned gradient into a stream.
/// \tparam kCausal   problem.forward.causal
/// \tparam kRotary   problem.forward.rotary
/// \param workspace  the plan's workspace_bytes, aligned to 256 bytes
template <class T, int D, int E, bool kCausal, bool kRotary, class Stream>
void run_gradient(const GradientPlan& plan, const GradientProblem& problem, MixingArray mixing,
                  unsigned char* workspace, const Device& device, const Stream& stream);

/// The same with the feature maps of a MappedOperator.
template <class T, int D, int E, bool kCausal, bool kRotary, class Stream, AnyOperator Maps>
void run_gradient(const GradientPlan& plan, const GradientProblem& problem, MixingArray mixing,
                  unsigned char* workspace, const Device& device, const Stream& stream,
                  const Maps& maps) {
  if (problem.forward.pairs() == 0 || !problem.forward.copies()) {
    run_gradient<T, D, E, kCausal, kRotary>(plan, problem, mixing, workspace, device, stream);
    return;
  }
  const GradientStaging<D, E> staging(problem, workspace);
  staging.template copy_inputs<T, kRotary>(stream, maps);
  run_gradient<T, D, E, kCausal, kRotary>(plan, staging.inner(), mixing,
                                          workspace + staging.bytes(), device, stream);
  staging.template write_gradients<T>(stream, maps);
}

template <class T, int D, int E, bool kCausal, bool kRotary, class Stream>
void run_gradient(const GradientPlan& plan, const GradientProblem& problem, MixingArray mixing,
                  unsigned char* workspace, const Device& device, const Stream& stream) {
  if (problem.forward.pairs() > 0 && problem.forward.copies()) {
    run_gradient<T, D, E, kCausal, kRotary>(plan, problem, mixing, workspace, device, stream,
                                            problem.forward.op);
    return;
  }
  const GradientLayout<D, E, kCausal, kRotary> layout(problem, mixing, workspace, device, &plan);
  GradientRun<T, D, E, kCausal, kRotary>{layout}(stream);
}

}  // namespace mhla::cuda

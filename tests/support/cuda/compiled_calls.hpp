#pragma once

/// \file
/// Calls that several tests run. With MHLA_CALLS_APART the tests of a program do not compile them:
/// a unit for each group instantiates MHLA_CALLS_<group>(template) (tests/cuda/CMakeLists.txt).
/// Calls of a type and a pair of widths share kernels, so they are in one group.

#include "mhla/cuda/launch/gradient.cuh"
#include "mhla/cuda/launch/prefill.cuh"
#include "support/cuda/emulated_stream.hpp"

#define MHLA_RUN(template_, run, Plan, Problem, T, D, E, kCausal, kRotary)                \
  template_ void run<T, D, E, kCausal, kRotary>(const Plan&, const Problem&, MixingArray, \
                                                unsigned char*, const Device&,            \
                                                const cuda_test::EmulatedStream&)
#define MHLA_FORM(template_, T, D, E, kRotary)                      \
  MHLA_RUN(template_, run, Plan, Problem, T, D, E, false, kRotary); \
  MHLA_RUN(template_, run, Plan, Problem, T, D, E, true, kRotary)
#define MHLA_BOTH(template_, T, D, E, kRotary)                                               \
  MHLA_FORM(template_, T, D, E, kRotary);                                                    \
  MHLA_RUN(template_, run_gradient, GradientPlan, GradientProblem, T, D, E, false, kRotary); \
  MHLA_RUN(template_, run_gradient, GradientPlan, GradientProblem, T, D, E, true, kRotary)
#define MHLA_PLAN(template_, D, E)                                                                 \
  template_ GradientPlan gradient_plan<D, E, false, false>(const GradientProblem&, const Device&); \
  template_ GradientPlan gradient_plan<D, E, true, false>(const GradientProblem&, const Device&)
#define MHLA_PREFILL(template_, T, D, E)                                                           \
  template_ void run_prefill<T, D, E>(const Plan&, const Problem&, const StreamingStepParameters&, \
                                      std::int32_t, unsigned char*, const Device&,                 \
                                      const cuda_test::EmulatedStream&)

#define MHLA_CALLS_0(template_)                  \
  MHLA_PLAN(template_, 64, 64);                  \
  MHLA_BOTH(template_, bfloat16, 64, 64, false); \
  MHLA_BOTH(template_, bfloat16, 64, 64, true);  \
  MHLA_BOTH(template_, half, 64, 64, false);     \
  MHLA_BOTH(template_, half, 64, 64, true);      \
  MHLA_PREFILL(template_, bfloat16, 64, 64);     \
  MHLA_PREFILL(template_, half, 64, 64)
#define MHLA_CALLS_1(template_)                    \
  MHLA_PLAN(template_, 128, 128);                  \
  MHLA_PLAN(template_, 128, 256);                  \
  MHLA_BOTH(template_, bfloat16, 128, 128, false); \
  MHLA_BOTH(template_, bfloat16, 128, 128, true);  \
  MHLA_BOTH(template_, half, 128, 256, false);     \
  MHLA_BOTH(template_, half, 128, 256, true);      \
  MHLA_PREFILL(template_, bfloat16, 128, 128)
#define MHLA_CALLS_2(template_)                    \
  MHLA_PLAN(template_, 72, 72);                    \
  MHLA_FORM(template_, bfloat16, 72, 72, false);   \
  MHLA_BOTH(template_, half, 72, 72, false);       \
  MHLA_FORM(template_, half, 128, 128, false);     \
  MHLA_FORM(template_, bfloat16, 128, 256, false); \
  MHLA_FORM(template_, bfloat16, 128, 256, true);  \
  MHLA_PREFILL(template_, half, 72, 72);           \
  MHLA_PREFILL(template_, bfloat16, 128, 256)
#define MHLA_CALLS_3(template_)                 \
  MHLA_PLAN(template_, 32, 32);                 \
  MHLA_PLAN(template_, 48, 96);                 \
  MHLA_BOTH(template_, float, 32, 32, false);   \
  MHLA_BOTH(template_, float, 48, 96, false);   \
  MHLA_BOTH(template_, float, 64, 64, false);   \
  MHLA_BOTH(template_, float, 72, 72, false);   \
  MHLA_FORM(template_, float, 96, 48, false);   \
  MHLA_BOTH(template_, float, 128, 128, false); \
  MHLA_BOTH(template_, float, 128, 256, false)

#if defined(MHLA_CALLS_APART)
namespace mhla::cuda {
MHLA_CALLS_0(extern template);
MHLA_CALLS_1(extern template);
MHLA_CALLS_2(extern template);
MHLA_CALLS_3(extern template);
}  // namespace mhla::cuda
#endif

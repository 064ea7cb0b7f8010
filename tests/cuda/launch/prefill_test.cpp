// Prefill of streams as it is launched, run in the emulation: outputs are those of the causal form
// in three stages, and steps after it are within the bound of streams (streaming_run.hpp), with the
// bits of steps alone where kernels of sm_80 made the summaries.

#include "mhla/cuda/launch/prefill.cuh"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

#include "mhla/cuda/kernel/streaming_prefill_sm80.cuh"
#include "support/cuda/emulated_call.hpp"
#include "support/cuda/streaming_run.hpp"

namespace cuda_test {
namespace {

using mhla::cuda::Arch, mhla::cuda::Device, mhla::cuda::Plan, mhla::cuda::Problem;
using mhla::cuda::bfloat16, mhla::cuda::half, mhla::cuda::Denominator, mhla::cuda::Precision;

/// The first tokens of the sequences of streams from `first` on.
template <class T, int D, int E, Precision P>
Problem problem_of(Streams<T, D, E, P>& x, int first, int tokens) {
  const auto from = [first](auto tensor) {
    tensor.data += first * tensor.batch_stride;
    return tensor;
  };
  const mhla::cuda::TokenBlocks blocks(1, 1, tokens, 1, 1, std::min(tokens, x.c.length));
  const mhla::cuda::Normalization n = x.c.normalization();
  return {.q = from(x.q.input()),
          .k = from(x.k.input()),
          .v = from(x.v.input()),
          .o = from(x.o.output()),
          .batch = x.c.batch - first,
          .heads = x.c.heads,
          .query_blocks = blocks,
          .key_blocks = blocks,
          .op = {x.c.map, x.c.map, n.denominator, n.eps, n.scale, P},
          .causal = true};
}

/// Prefills the sequences from `first` on, in the emulator of the streams.
template <class T, int D, int E, Precision P>
void prefill(Streams<T, D, E, P>& x, int first, int tokens, Arch arch) {
  const Problem problem = problem_of(x, first, tokens);
  const Device target{arch, 2};
  const Plan plan = mhla::cuda::prefill_plan<D, E>(problem, target);
  EXPECT_EQ(plan.form, mhla::cuda::Form::kThreeStage);
  EXPECT_EQ(plan.summary, arch);
  Array<unsigned char> workspace(static_cast<std::int64_t>(plan.workspace_bytes));
  x.device.track("workspace", workspace.data(), plan.workspace_bytes, emulator::Access::kReadWrite);
  auto parameters = x.parameters([](auto tensor) { return tensor; });
  parameters.k = problem.k;
  parameters.v = problem.v;
  const EmulatedStream stream(x.device);
  mhla::cuda::run_prefill<T, D, E>(plan, problem, {parameters, first, tokens}, workspace.data(),
                                   target, stream);
  for (const emulator::Report& report : stream.reports()) EXPECT_EQ(report.bank_conflicts, 0u);
}

/// The outputs of the causal form in three stages, which are those of a prefill.
template <class T, int D, int E, Precision P>
void expect_causal_outputs(Streams<T, D, E, P>& x, int first, int tokens, Arch arch) {
  Streams<T, D, E, P> other(x.c, 2);  // the same tensors
  const Problem problem = problem_of(other, first, tokens);
  const Device target{arch, 2};
  const Plan plan =
      mhla::cuda::detail::planned<D, E>(problem, target, mhla::cuda::Form::kThreeStage, "");
  EXPECT_GT(plan.workspace_bytes,
            (mhla::cuda::prefill_plan<D, E>(problem, target).workspace_bytes));
  Array<unsigned char> workspace(static_cast<std::int64_t>(plan.workspace_bytes));
  other.device.track("workspace", workspace.data(), plan.workspace_bytes,
                     emulator::Access::kReadWrite);
  mhla::cuda::run<T, D, E, true>(plan, problem, other.mixing.array(), workspace.data(), target,
                                 EmulatedStream(other.device));
  EXPECT_EQ(std::memcmp(x.o.raw(), other.o.raw(), x.o.bytes()), 0);
}

/// Prefills the sequences after the first one; the first one has steps alone.
template <class T, int D, int E, Precision P>
void check(const StreamCase& c, int tokens, Arch arch) {
  SCOPED_TRACE(std::string(arch == Arch::kSm80 ? "sm_80" : "sm_90a") + " D " + std::to_string(D) +
               " E " + std::to_string(E) + " N " + std::to_string(tokens));
  Streams<T, D, E, P> steps(c, 1), x(c, 1);
  prefill(x, 1, tokens, arch);
  if (c.length <= tokens) expect_causal_outputs(x, 1, tokens, arch);
  for (int t = 0; t < c.tokens; ++t) steps.step(t);
  for (int t = 0; t + tokens < c.tokens; ++t) x.step({0, t}, {1, t + tokens});
  Comparison comparison("after a prefill");
  for (int h = 0; h < c.heads; ++h) compare(comparison, x, 1, h, tokens);
  EXPECT_GT(comparison.worst(), 0);
  const bool same = arch == Arch::kSm80 || D == 72;
  for (int t = tokens; same && t < c.tokens; ++t) {
    for (int h = 0; h < c.heads; ++h) {
      for (int e = 0; e < E; ++e) ASSERT_EQ(x.o.value(1, t, h, e), steps.o.value(1, t, h, e)) << t;
    }
  }
}

constexpr auto kRelu = mhla::cuda::FeatureMap::relu(1e-6f);

/// Every place of a boundary: inside the first block, at the begin of a block and its first steps,
/// which add to the mixture, in the middle, and at the end of all.
TEST(Prefill, StepsGoOn) {
  const StreamCase c{5, 6, 30, kRelu, Denominator::kKeySum, 2, 2, 0, 1};
  for (const int tokens : {3, 12, 13, 14, 17, 29}) {
    check<bfloat16, 64, 64, Precision::kSingle>(c, tokens, Arch::kSm80);
  }
}

TEST(Prefill, AllWidths) {
  const StreamCase c{4, 16, 50, kRelu, Denominator::kKeySum, 2, 2, 0, 2};
  check<bfloat16, 64, 64, Precision::kSingle>(c, 33, Arch::kSm90a);
  check<half, 72, 72, Precision::kPair>(c, 34, Arch::kSm80);
  check<half, 72, 72, Precision::kPair>(c, 34, Arch::kSm90a);
  check<bfloat16, 128, 256, Precision::kSingle>(c, 34, Arch::kSm80);
  check<bfloat16, 128, 256, Precision::kPair>(c, 35, Arch::kSm90a);
}

TEST(Prefill, AFullStreamHasNoRoom) {
  const StreamCase c{3, 4, 12, kRelu, Denominator::kNone, 1, 1, 0, 3};
  Streams<bfloat16, 64, 64, Precision::kSingle> x(c, 1);
  prefill(x, 0, 12, Arch::kSm80);
  const double before = x.o.value(0, 10, 0, 0);
  x.step(11);
  EXPECT_EQ(x.o.value(0, 10, 0, 0), before);
  EXPECT_TRUE(std::isnan(x.o.value(0, 11, 0, 0)));
}

}  // namespace
}  // namespace cuda_test

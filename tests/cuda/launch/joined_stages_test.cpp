// Three stages in one kernel, in the emulator: the bits of three kernels, and the plans that join.

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <string>

#include "emulator/device.hpp"
#include "emulator/fault.hpp"
#include "mhla/cuda/launch/forms.cuh"
#include "mhla/cuda/launch/plan.cuh"
#include "support/cuda/form_test.hpp"

namespace joined_stages_test {
namespace {

using cuda_test::Array;
using cuda_test::Call;
using cuda_test::CallShape;
using cuda_test::EmulatedStream;
using mhla::cuda::Arch;
using mhla::cuda::bfloat16;
using mhla::cuda::Denominator;
using mhla::cuda::Device;
using mhla::cuda::Form;
using mhla::cuda::half;
using mhla::cuda::Plan;
using mhla::cuda::Precision;
using mhla::cuda::Problem;
using mhla::cuda::TokenBlocks;

template <int D, int E>
Plan three_stages(const Problem& problem, const Device& device) {
  Plan plan = mhla::cuda::detail::planned<D, E>(problem, device, Form::kThreeStage, "");
  EXPECT_FALSE(plan.joins_stages);
  mhla::cuda::detail::join_stages<D, E>(problem, device, plan);
  return plan;
}

/// Runs a call `times` times in one workspace, in which nothing is zero at first, and returns the
/// bits of the outputs.
template <class T, int D, int E>
std::string outputs(Call<T>& call, bool joins, const Device& target, unsigned seed, int times) {
  using emulator::Access;
  call.op.joins_stages = joins;
  const Problem problem = cuda_test::problem_of(call);
  const Plan plan = three_stages<D, E>(problem, target);
  EXPECT_EQ(plan.joins_stages, joins);
  emulator::Device device(seed);
  Array<unsigned char> workspace(static_cast<std::int64_t>(plan.workspace_bytes));
  device.track("q", call.q.raw(), call.q.bytes(), Access::kRead);
  device.track("k", call.k.raw(), call.k.bytes(), Access::kRead);
  device.track("v", call.v.raw(), call.v.bytes(), Access::kRead);
  device.track("mixing", call.mixing.raw(), call.mixing.bytes(), Access::kRead);
  device.track("o", call.o.raw(), call.o.bytes(), Access::kWrite);
  device.track("workspace", workspace.data(), plan.workspace_bytes, Access::kReadWrite);
  if (call.normed()) {
    device.track("gain", call.gain.raw(), call.gain.bytes(), Access::kRead);
    device.track("gate", call.gate.raw(), call.gate.bytes(), Access::kRead);
  }
  const EmulatedStream stream(device, target.shared_bytes);
  for (int i = 0; i < times; ++i) {
    std::memset(call.o.raw(), 0xFF, call.o.bytes());
    if (call.causal) {
      mhla::cuda::run<T, D, E, true>(plan, problem, call.mixing_array(), workspace.data(), target,
                                     stream);
    } else {
      mhla::cuda::run<T, D, E, false>(plan, problem, call.mixing_array(), workspace.data(), target,
                                      stream);
    }
  }
  const std::size_t launches = joins ? 2u : 3u;
  EXPECT_EQ(stream.reports().size(), launches * static_cast<unsigned>(times));
  std::uint64_t moved = 0;
  for (const emulator::Report& report : stream.reports()) {
    EXPECT_EQ(report.bank_conflicts, 0u);
    moved += report.bytes_read("workspace") + report.bytes_written("workspace");
  }
  if (joins && times == 1 && !call.causal && problem.query_blocks.blocks() <= 64) {
    // Reads of S and S~, and of their key sums, come from L2 and do not count. Mixing reads key
    // sums more than once.
    EXPECT_GE(moved, 2 * plan.traffic.summaries);
    EXPECT_LE(moved, 5 * plan.traffic.summaries / 2);
  }
  EXPECT_TRUE(call.o.padding_is_untouched());
  return {reinterpret_cast<const char*>(call.o.raw()), call.o.bytes()};
}

/// Expects the bits of three kernels under each of some schedules, with thread blocks in order and
/// in any order, whatever number of them runs at a time.
template <class T, int D, int E>
void expect_bits_of_three_kernels(const CallShape& shape, int schedules = 3) {
  Call<T> call = cuda_test::random_call<T, D, E>(shape, 1);
  const std::string three = outputs<T, D, E>(call, false, {Arch::kSm80, 1}, 0, 1);
  for (int seed = 0; seed < schedules; ++seed) {
    const Device device = seed % 2 == 0 ? Device{Arch::kSm80, 1} : Device{Arch::kSm90a, 1000};
    const int times = seed == 1 ? 2 : 1;
    EXPECT_EQ((outputs<T, D, E>(call, true, device, static_cast<unsigned>(seed), times)), three)
        << "schedule " << seed;
  }
}

TEST(JoinedStages, HaveTheBitsOfThreeKernels) {
  // With one multiprocessor, pairs are two or three steps between their first and last stage.
  CallShape shape{.batch = 2, .heads = 4, .tokens = 100, .block = 30};
  expect_bits_of_three_kernels<bfloat16, 64, 64>(shape);
  shape = {.heads = 3, .tokens = {9, 14}, .block = {4, 5}, .layout = 2};
  shape.op.denominator = Denominator::kNone;
  expect_bits_of_three_kernels<half, 64, 64>(shape, 1);
  shape = {.heads = 3, .tokens = 70, .block = 40};
  expect_bits_of_three_kernels<bfloat16, 128, 128>(shape, 2);
}

TEST(JoinedStages, HaveTheBitsOfThreeCausalKernels) {
  CallShape shape{.batch = 2, .heads = 3, .tokens = 230, .block = 100, .causal = true};
  expect_bits_of_three_kernels<bfloat16, 64, 64>(shape);
  shape = {.heads = 2, .tokens = 70, .block = 1, .causal = true};
  expect_bits_of_three_kernels<half, 64, 64>(shape, 1);
  shape = {.heads = 3, .tokens = 70, .block = 40, .causal = true};
  expect_bits_of_three_kernels<bfloat16, 128, 128>(shape, 1);
}

TEST(JoinedStages, MixByMatricesPerHeadAndNormaliseOutputs) {
  CallShape shape{.batch = 2,
                  .heads = 2,
                  .tokens = 66,
                  .block = 1,
                  .key_tokens = 50,
                  .key_block = 10,
                  .normed = true,
                  .gated = true};
  shape.op.matrices = mhla::cuda::Matrices::kPerItemAndHead;
  expect_bits_of_three_kernels<bfloat16, 64, 64>(shape, 1);
}

TEST(JoinedStages, AreWithinTheBound) {
  for (const bool causal : {false, true}) {
    CallShape shape{.batch = 2, .heads = 2, .tokens = 260, .block = 20, .causal = causal};
    shape.op.joins_stages = true;
    auto call = cuda_test::random_call<half, 64, 64>(shape, 1);
    const Device device{Arch::kSm90a, 132};
    const Plan plan = three_stages<64, 64>(cuda_test::problem_of(call), device);
    EXPECT_TRUE(plan.joins_stages);
    cuda_test::run_and_compare<64, 64>(call, plan, device, 1);
  }
}

// The calls that three kernels take, though the operator joins stages.
TEST(JoinedStages, AreForSomeCalls) {
  const Device hopper{Arch::kSm90a, 132};
  const auto plan_of = [&](const CallShape& shape, const Device& device) {
    auto call = cuda_test::random_call<bfloat16, 64, 64>(shape, 1);
    call.op.joins_stages = true;
    return three_stages<64, 64>(cuda_test::problem_of(call), device);
  };
  CallShape shape{.heads = 2, .tokens = 400, .block = 20};
  const Plan joined = plan_of(shape, hopper);
  EXPECT_TRUE(joined.joins_stages);
  EXPECT_EQ(joined.summary, Arch::kSm80);
  EXPECT_EQ(joined.read_out, Arch::kSm80);
  auto call = cuda_test::random_call<bfloat16, 64, 64>(shape, 1);
  const Plan three = three_stages<64, 64>(cuda_test::problem_of(call), hopper);
  EXPECT_FALSE(three.joins_stages);
  EXPECT_EQ(three.summary, Arch::kSm90a);
  EXPECT_EQ(joined.traffic.tensors, three.traffic.tensors);
  EXPECT_EQ(2 * joined.traffic.summaries, three.traffic.summaries);

  EXPECT_FALSE(plan_of(shape, with_shared_bytes(hopper, 20000)).joins_stages);
  shape.op.denominator = Denominator::kCrossQuery;
  EXPECT_FALSE(plan_of(shape, hopper).joins_stages);
  shape.op.denominator = Denominator::kNone;
  shape.rotary = true;
  EXPECT_FALSE(plan_of(shape, hopper).joins_stages);
  shape.rotary = false;
  shape.op.summaries = Precision::kPair;
  EXPECT_FALSE(plan_of(shape, hopper).joins_stages);
  shape.op.summaries = Precision::kSingle;
  // 2 x 8 KB for each block of at least two pairs: 1,024 blocks are 32 MB.
  shape.tokens = shape.key_tokens = 1024;
  shape.block = shape.key_block = 1;
  EXPECT_TRUE(plan_of(shape, {Arch::kSm80, 1}).joins_stages);
  shape.tokens = shape.key_tokens = 1025;
  EXPECT_FALSE(plan_of(shape, {Arch::kSm80, 1}).joins_stages);
}

// Shapes of the benchmarks on an H100. The last one's summaries do not fit into L2.
TEST(JoinedStages, AreForLongSequences) {
  const auto joins = [](int heads, const TokenBlocks& blocks, bool causal) {
    Problem problem{};
    problem.batch = 1;
    problem.heads = heads;
    problem.query_blocks = problem.key_blocks = blocks;
    problem.op.joins_stages = true;
    problem.causal = causal;
    return mhla::cuda::plan<128, 128>(problem, {Arch::kSm90a, 132}).joins_stages;
  };
  EXPECT_TRUE(joins(12, TokenBlocks(21, 30, 50, 7, 6, 5), false));  // wan_1300m
  EXPECT_TRUE(joins(16, TokenBlocks(1, 1, 8192, 1, 1, 256), true));
  EXPECT_TRUE(joins(96, TokenBlocks(1, 1, 8192, 1, 1, 256), true));
  EXPECT_TRUE(joins(96, TokenBlocks(1, 1, 8192, 1, 1, 64), true));
  EXPECT_FALSE(joins(16, TokenBlocks(1, 1, 32768, 1, 1, 64), true));
}

TEST(JoinedStages, OfAPatternAreThreeKernels) {
  CallShape shape{.heads = 2, .tokens = 70, .block = 1, .pattern = mhla::Pattern(70, 70, 2, 1)};
  shape.op.joins_stages = true;
  auto call = cuda_test::random_call<bfloat16, 64, 64>(shape, 1);
  const Device device{Arch::kSm80, 2};
  const Plan plan = three_stages<64, 64>(cuda_test::problem_of(call), device);
  EXPECT_TRUE(plan.joins_stages);
  EXPECT_EQ((cuda_test::run_and_compare<64, 64>(call, plan, device, 1).early_launches), 2);
}

}  // namespace
}  // namespace joined_stages_test

// Plans for devices with less shared memory than an H100: every kernel that a call launches fits,
// outputs are within the bound, and a refusal says what is missing.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "mhla/core/error.hpp"
#include "mhla/cuda/attention/fitting_plan.cuh"
#include "mhla/cuda/launch/forms.cuh"
#include "mhla/cuda/launch/gradient_plan.cuh"
#include "mhla/cuda/launch/plan.cuh"
#include "mhla/cuda/launch/prefill.cuh"
#include "mhla/cuda/launch/problem.cuh"
#include "support/cuda/form_test.hpp"

namespace shared_memory_test {
namespace {

using cuda_test::CallShape;
using mhla::cuda::Arch;
using mhla::cuda::Denominator;
using mhla::cuda::Device;
using mhla::cuda::Form;
using mhla::cuda::kLeastShared;
using mhla::cuda::Plan;
using mhla::cuda::plan;
using mhla::cuda::Precision;
using mhla::cuda::Problem;
using mhla::cuda::Start;
using mhla::cuda::TokenBlocks;

/// An RTX 4090, an A100, an H100, and an H100 whose kernels of sm_90a do not fit.
constexpr Device kRtx{Arch::kSm80, 128, 89, 0, kLeastShared};
constexpr Device kAmpere{Arch::kSm80, 108, 80, 0, 166912};
constexpr Device kHopper{Arch::kSm90a, 132, 90, 0, 232448};
constexpr Device kDevices[] = {kRtx, kAmpere, kHopper, mhla::cuda::with_arch(kHopper, Arch::kSm80),
                               mhla::cuda::with_shared_bytes(kHopper, kLeastShared)};

/// True for kernels that replace those that do not fit into kLeastShared bytes.
template <class Kernel>
inline constexpr bool kSmaller = false;
template <class T, int D, int E, Precision P, bool kRotary>
inline constexpr bool kSmaller<mhla::cuda::ReadOutSm80<T, D, E, P, kRotary, kLeastShared>> = true;
template <class T, int D, int E, int kRegions>
inline constexpr bool kSmaller<mhla::cuda::FusedSm80<T, D, E, kRegions, kLeastShared>> = true;

/// A stream that records the most shared memory of a kernel instead of launching.
struct SharedMemoryStream {
  template <class Kernel>
  void run(const typename Kernel::Params&, std::int32_t, Start = Start::kInOrder) const {
    most = std::max<std::int32_t>(most, Kernel::kSharedBytes);
    sm90a = sm90a || Kernel::kArchitecture == Arch::kSm90a;
    smaller = smaller || kSmaller<Kernel>;
  }
  mhla::cuda::TensorMap tensor_map(const mhla::cuda::TensorBox&) const { return {}; }

  mutable std::int32_t most = 0;
  mutable bool sm90a = false;
  mutable bool smaller = false;
};

constexpr TokenBlocks sequence(int tokens, int block) { return {1, 1, tokens, 1, 1, block}; }

template <int D, int E>
Problem problem_of(const TokenBlocks& blocks, bool causal) {
  static unsigned char byte;
  Problem problem{};
  problem.batch = 32;
  problem.heads = 12;
  problem.query_blocks = problem.key_blocks = blocks;
  const std::int64_t row = 256 * 2, token = problem.heads * row;
  problem.q = problem.k = problem.v = {&byte, blocks.tokens() * token, row, token};
  problem.o = {&byte, blocks.tokens() * token, row, token};
  problem.causal = causal;
  return problem;
}

/// Returns the kernels that a problem's plan launches.
template <int D, int E>
SharedMemoryStream launched(const Plan& planned, const Problem& problem, const Device& device) {
  using T = mhla::cuda::bfloat16;
  SharedMemoryStream stream;
  alignas(256) static unsigned char workspace[256];
  const auto run = [&]<bool kCausal, bool kRotary>() {
    mhla::cuda::run<T, D, E, kCausal, kRotary>(planned, problem, {}, workspace, device, stream);
  };
  if constexpr (D != 72) {
    if (problem.rotary && problem.causal) run.template operator()<true, true>();
    if (problem.rotary && !problem.causal) run.template operator()<false, true>();
  }
  if (!problem.rotary && problem.causal) run.template operator()<true, false>();
  if (!problem.rotary && !problem.causal) run.template operator()<false, false>();
  return stream;
}

/// Calls visit(problem) for all kinds of problems with these widths.
template <int D, int E, class Visit>
void for_each_problem(const Visit& visit) {
  for (const TokenBlocks& blocks :
       {sequence(1, 1), sequence(256, 16), sequence(257, 257), sequence(600, 200),
        sequence(1000, 250), TokenBlocks(1, 32, 32, 1, 16, 8), TokenBlocks(1, 32, 32, 1, 8, 8),
        TokenBlocks(1, 48, 48, 1, 16, 16), sequence(4096, 64), sequence(5000, 257)}) {
    for (const bool causal : {false, true}) {
      if (causal && blocks.rows() > 1) continue;
      for (const Precision summaries : {Precision::kSingle, Precision::kPair}) {
        for (const Denominator denominator :
             {Denominator::kNone, Denominator::kKeySum, Denominator::kCrossQuery}) {
          if (causal && denominator == Denominator::kCrossQuery) continue;
          for (const bool rotary : {false, true}) {
            if (rotary && D == 72) continue;
            for (const bool normed : {false, true}) {
              Problem problem = problem_of<D, E>(blocks, causal);
              problem.op.summaries = summaries;
              problem.op.denominator = denominator;
              problem.rotary = rotary;
              problem.norm.normed = normed;
              if (!plan<D, E>(problem, kRtx).lacks_norm) visit(problem);
            }
          }
        }
      }
    }
  }
}

template <class F>
void for_each_width(const F& f) {
  f.template operator()<32, 32>();
  f.template operator()<48, 48>();
  f.template operator()<48, 96>();
  f.template operator()<64, 64>();
  f.template operator()<72, 72>();
  f.template operator()<96, 48>();
  f.template operator()<96, 96>();
  f.template operator()<128, 128>();
  f.template operator()<128, 256>();
  f.template operator()<256, 256>();
}

std::string text(const Problem& problem, const Device& device) {
  return std::to_string(device.shared_bytes) + " bytes, " +
         std::to_string(problem.query_blocks.blocks()) + " blocks of " +
         std::to_string(problem.query_blocks.slots()) + (problem.causal ? ", causal" : "") +
         (problem.op.summaries == Precision::kPair ? ", pairs" : "");
}

TEST(SharedMemory, EveryPlanFitsItsDevice) {
  for_each_width([]<int D, int E>() {
    for (const Device& device : kDevices) {
      for_each_problem<D, E>([&](const Problem& problem) {
        const SharedMemoryStream stream =
            launched<D, E>(plan<D, E>(problem, device), problem, device);
        EXPECT_GT(stream.most, 0);
        EXPECT_EQ((plan<D, E>(problem, device).missing.kernel), nullptr);
        EXPECT_LE(stream.most, device.shared_bytes)
            << D << " " << E << " " << text(problem, device);
        if (device.shared_bytes < 232448 || device.arch == Arch::kSm80) {
          EXPECT_FALSE(stream.sm90a) << text(problem, device);
        } else {  // build/kernels.cmake compiles none for sm_90a
          EXPECT_FALSE(stream.smaller) << text(problem, device);
        }
      });
    }
  });
}

TEST(SharedMemory, EveryFormRunsOnDevicesWithTheLeast) {
  std::vector<Form> forms;
  for_each_problem<64, 64>(
      [&](const Problem& problem) { forms.push_back(plan<64, 64>(problem, kRtx).form); });
  for (const Form form : {Form::kQuadratic, Form::kFused, Form::kThreeStage}) {
    EXPECT_EQ(std::count(forms.begin(), forms.end(), form) > 0, true) << name(form);
  }
  const auto form = []<int D, int E>(const TokenBlocks& blocks, const Device& device) {
    return plan<D, E>(problem_of<D, E>(blocks, false), device).form;
  };
  const TokenBlocks eight(1, 32, 32, 1, 16, 8), nine(1, 48, 48, 1, 16, 16),
      four(1, 32, 32, 1, 16, 16);
  EXPECT_EQ((form.template operator()<64, 64>(eight, kRtx)), Form::kFused);
  EXPECT_EQ((form.template operator()<64, 64>(nine, kRtx)), Form::kThreeStage);
  EXPECT_EQ((form.template operator()<64, 64>(nine, kAmpere)), Form::kFused);
  EXPECT_EQ((form.template operator()<72, 72>(four, kRtx)), Form::kFused);
  EXPECT_EQ((form.template operator()<128, 128>(four, kRtx)), Form::kThreeStage);
  EXPECT_EQ((form.template operator()<128, 128>(four, kAmpere)), Form::kFused);
  EXPECT_EQ((form.template operator()<128, 128>(sequence(256, 16), kRtx)), Form::kQuadratic);
  EXPECT_EQ((form.template operator()<128, 256>(sequence(256, 16), kRtx)), Form::kThreeStage);
  EXPECT_EQ((form.template operator()<128, 256>(sequence(256, 16), kAmpere)), Form::kQuadratic);
}

TEST(SharedMemory, KernelsOfSm90aAreTakenWhereTheyFit) {
  constexpr Device kSmall = mhla::cuda::with_shared_bytes(kHopper, kLeastShared);
  EXPECT_EQ(kHopper.kernels(), Arch::kSm90a);
  EXPECT_EQ(kSmall.kernels(), Arch::kSm80);
  EXPECT_EQ(mhla::cuda::with_arch(kHopper, Arch::kSm80).kernels(), Arch::kSm80);
  EXPECT_EQ((Device{Arch::kSm90a, 132}.kernels()), Arch::kSm90a);
  EXPECT_EQ((Device{Arch::kSm80, 108}.shared_bytes), 166912);
  const Problem problem = problem_of<128, 128>(sequence(4096, 64), false);
  EXPECT_TRUE((launched<128, 128>(plan<128, 128>(problem, kHopper), problem, kHopper)).sm90a);
  EXPECT_EQ((plan<128, 128>(problem, kSmall).workspace_bytes),
            (plan<128, 128>(problem, kRtx).workspace_bytes));
}

TEST(SharedMemory, SmallerKernelsAreTakenWhereOthersDoNotFit) {
  const Problem problem = problem_of<128, 256>(sequence(4096, 64), false);
  EXPECT_TRUE((launched<128, 256>(plan<128, 256>(problem, kRtx), problem, kRtx)).smaller);
  EXPECT_FALSE((launched<128, 256>(plan<128, 256>(problem, kAmpere), problem, kAmpere)).smaller);
  const auto limit = [](int of_device) { return of_device; };
  for (const Device& device : {kRtx, kAmpere, kHopper}) {
    EXPECT_EQ(mhla::cuda::detail::of_fused_gradient(device, limit), device.shared_bytes);
  }
}

/// Returns the error of a call whose kernels do not fit, or an empty string.
template <int D, int E>
std::string refusal(const Problem& problem, std::int32_t shared_bytes) {
  try {
    const Device device = mhla::cuda::with_shared_bytes(kRtx, shared_bytes);
    mhla::cuda::detail::fitting("cuda::bidirectional", plan<D, E>(problem, device), device);
  } catch (const mhla::option_error& error) {
    return error.what();
  }
  return "";
}

TEST(SharedMemory, RefusalsNameKernelAndBytes) {
  const std::string name = "mhla::cuda::bidirectional: device has ";
  const std::string bytes = " bytes of shared memory per thread block, expected at least ";
  const Problem few = problem_of<128, 128>(sequence(256, 16), false);
  EXPECT_EQ((refusal<128, 128>(few, 65536)),
            name + "65536" + bytes + "82688 for kernel quadratic of the quadratic form");
  const Problem many = problem_of<128, 256>(sequence(4096, 64), true);
  EXPECT_EQ((refusal<128, 256>(many, 98815)),
            name + "98815" + bytes + "98816 for kernel summary of the three-stage form");
  EXPECT_EQ((refusal<128, 256>(many, 98816)), "");
  const Problem image = problem_of<64, 64>(TokenBlocks(1, 32, 32, 1, 16, 8), false);
  EXPECT_EQ((refusal<64, 64>(image, 65536)),
            name + "65536" + bytes + "100736 for kernel fused of the fused form");
}

/// A call is refused with one byte less than the refusal asks for, and accepted with these bytes.
TEST(SharedMemory, WhatFitsIsNotRefused) {
  for_each_width([]<int D, int E>() {
    for_each_problem<D, E>([&](const Problem& problem) {
      const Device device = mhla::cuda::with_shared_bytes(kRtx, kLeastShared - 1);
      const Plan least = plan<D, E>(problem, kRtx);
      const std::int32_t most = launched<D, E>(least, problem, kRtx).most;
      if (most > device.shared_bytes) {
        EXPECT_NE((refusal<D, E>(problem, most - 1)), "") << text(problem, device);
        return;
      }
      EXPECT_EQ((refusal<D, E>(problem, most)), "") << D << " " << E << text(problem, device);
      EXPECT_NE((refusal<D, E>(problem, most - 1)), "") << D << " " << E << text(problem, device);
    });
  });
}

// ---- in the emulator ----------------------------------------------------------------------------

template <class W>
class LeastSharedMemory : public cuda_test::FormTest<W> {
 protected:
  static constexpr int D = W::D, E = W::E;

  /// Runs the planned form, which must be `form`, on a device of 99 KB with two multiprocessors.
  static void expect_right(const CallShape& shape, Form form) {
    auto call = cuda_test::random_call<typename W::T, D, E>(shape, 1);
    const Device device{Arch::kSm80, 2, 89, 0, kLeastShared};
    const Plan planned = plan<D, E>(cuda_test::problem_of(call), device);
    EXPECT_EQ(std::string(name(planned.form)), name(form)) << planned.reason;
    cuda_test::run_and_compare<D, E>(call, planned, device, 1);
  }
};
TYPED_TEST_SUITE(LeastSharedMemory, cuda_test::Widths);

TYPED_TEST(LeastSharedMemory, ThreeStagesAreWithinTheBound) {
  for (const Precision summaries : {Precision::kSingle, Precision::kPair}) {
    CallShape shape{.tokens = {19, 14}, .block = {4, 5}, .layout = 2};
    shape.op.summaries = summaries;
    this->expect_right(shape, Form::kThreeStage);
  }
  CallShape shape{.tokens = 4 * 70, .block = 70};
  shape.op.denominator = Denominator::kCrossQuery;
  shape.op.eps = 1e-6f;
  shape.op.summaries = Precision::kPair;
  this->expect_right(shape, Form::kThreeStage);
}

TYPED_TEST(LeastSharedMemory, FewKeysAreWithinTheBound) {
  constexpr bool kQuadratic = TypeParam::E < 256;
  const Form form = kQuadratic ? Form::kQuadratic : Form::kThreeStage;
  this->expect_right({.heads = 2, .tokens = 100, .block = 16}, form);
  CallShape causal{.heads = 1, .tokens = 100, .block = 16};
  causal.causal = true;
  this->expect_right(causal, form);
  CallShape cross{.heads = 2, .tokens = {8, 16}, .block = {4, 4}};
  cross.op.denominator = Denominator::kCrossQuery;
  cross.op.eps = 1e-3f;
  this->expect_right(cross, form);
}

TYPED_TEST(LeastSharedMemory, FewBlocksAreWithinTheBound) {
  constexpr int kBlocks = TypeParam::D == 64 ? 8 : 4;
  const Form form = TypeParam::D == 128 ? Form::kThreeStage : Form::kFused;
  this->expect_right({.tokens = {1, 23, 4 * kBlocks}, .block = {1, 24, 4}}, form);
}

}  // namespace
}  // namespace shared_memory_test

#pragma once

/// \file
/// Common parts of the tests of forms: types with widths of keys and values, architectures, and a
/// run of the planned form.

#include <gtest/gtest.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/ptx/convert.cuh"
#include "support/cuda/emulated_call.hpp"
#include "support/cuda/random_call.hpp"

namespace cuda_test {

template <class T_, int D_, int E_>
struct Width {
  using T = T_;
  static constexpr int D = D_, E = E_;
};

using First = Width<mhla::cuda::bfloat16, 64, 64>;
#if defined(MHLA_FIRST_WIDTH)  // for faults that show at one width: tests/mutants
using Widths = testing::Types<First>;
#else
using Widths =
    testing::Types<First, Width<mhla::cuda::half, 72, 72>, Width<mhla::cuda::bfloat16, 128, 128>,
                   Width<mhla::cuda::half, 128, 256>>;
#endif

template <class W>
class FormTest : public testing::Test {
 protected:
  static constexpr int D = W::D, E = W::E;
  using T = typename W::T;

  /// True for the type that runs all cases of a test, each on both architectures.
  /// tests/cuda/kernel tests each kernel at all widths. The tests of forms only check how kernels
  /// fit together.
  static constexpr bool kAllCases = std::is_same_v<W, First>;
  /// The architectures of a test's `turn`-th case: both, or alternately one of them.
  static std::vector<mhla::cuda::Arch> archs(std::size_t turn) {
    using mhla::cuda::Arch;
    if (kAllCases) return {Arch::kSm80, Arch::kSm90a};
    return {(turn + (D == E ? 1 : 0)) % 2 == 0 ? Arch::kSm80 : Arch::kSm90a};
  }
  /// The matrices of a test's `turn`-th case: both kinds, or alternately one of them.
  static std::vector<mhla::cuda::Matrices> matrices(std::size_t turn) {
    using mhla::cuda::Matrices;
    if (kAllCases) return {Matrices::kPerHead, Matrices::kPerItemAndHead};
    return {turn % 2 == 0 ? Matrices::kPerHead : Matrices::kPerItemAndHead};
  }
  /// Indices of the cases that run, of `count` cases: all, or the last two.
  static std::vector<std::size_t> turns(std::size_t count) {
    std::vector<std::size_t> turns;
    for (std::size_t i = kAllCases ? 0 : count - 2; i < count; ++i) turns.push_back(i);
    return turns;
  }

  /// Runs the planned form, which must be `form`, by kernels of `arch` if there are any, and
  /// compares it with the CPU's. With two multiprocessors the plan prefers the fused form, with
  /// kMany it does not. With kMoreThanStrips multiprocessors the quadratic form splits keys.
  static constexpr std::int32_t kMany = 8, kMoreThanStrips = 64;
  static constexpr bool kSplitsKeys = D == E && D != 72;
  static Outcome run(const CallShape& shape, mhla::cuda::Arch arch, mhla::cuda::Form form,
                     unsigned seed = 1, std::int32_t multiprocessors = 2) {
    Call<T> call = random_call<T, D, E>(shape, seed);
    return run(call, arch, form, seed, multiprocessors);
  }
  static Outcome run(Call<T>& call, mhla::cuda::Arch arch, mhla::cuda::Form form, unsigned seed = 1,
                     std::int32_t multiprocessors = 2) {
    const mhla::cuda::Device device{arch, multiprocessors};
    const mhla::cuda::Plan plan = mhla::cuda::plan<D, E>(problem_of(call), device);
    EXPECT_EQ(std::string(name(plan.form)), name(form)) << plan.reason;
    if (form == mhla::cuda::Form::kQuadratic) {
      EXPECT_EQ(plan.quadratic, quadratic_kernel(arch, call.causal, multiprocessors));
    }
    if (form == mhla::cuda::Form::kFused) {
      EXPECT_EQ(plan.fused, arch);
    }
    if (form == mhla::cuda::Form::kThreeStage) {
      const bool has_kernel = D != 72 || !call.causal;
      EXPECT_EQ(plan.summary, arch);
      EXPECT_EQ(plan.read_out, has_kernel ? arch : mhla::cuda::Arch::kSm80);
    }
    return run_and_compare<D, E>(call, plan, device, seed);
  }

  /// Expected kernel of the quadratic form.
  static mhla::cuda::QuadraticKernel quadratic_kernel(mhla::cuda::Arch arch, bool causal,
                                                      std::int32_t multiprocessors) {
    using mhla::cuda::QuadraticKernel;
    if (causal || D == 72) return QuadraticKernel::kSm80;
    if (kSplitsKeys && multiprocessors == kMoreThanStrips) return QuadraticKernel::kSplit;
    return arch == mhla::cuda::Arch::kSm90a ? QuadraticKernel::kSm90a : QuadraticKernel::kSm80;
  }

  /// Runs the form in three stages, even if the plan has another form, and compares it with the
  /// CPU's.
  static Outcome run_three_stages(const CallShape& shape, mhla::cuda::Arch arch, unsigned seed,
                                  std::int32_t multiprocessors) {
    Call<T> call = random_call<T, D, E>(shape, seed);
    const mhla::cuda::Device device{arch, multiprocessors};
    const mhla::cuda::Plan plan = mhla::cuda::detail::planned<D, E>(
        problem_of(call), device, mhla::cuda::Form::kThreeStage, "");
    EXPECT_EQ(plan.summary, arch);
    EXPECT_EQ(plan.read_out, arch);
    return run_and_compare<D, E>(call, plan, device, seed);
  }

  /// Runs a form with keys of alternately 1 and -1, and even blocks. All denominators are 0, in a
  /// causal form those of odd tokens. Numerators are 0 in even columns, negative in odd columns.
  static void run_over_zero(CallShape shape, mhla::cuda::Arch arch, mhla::cuda::Form form,
                            std::int32_t multiprocessors = 2) {
    using mhla::cuda::FeatureMap;
    shape.op.query_map = shape.op.key_map = FeatureMap::identity();
    Call<T> call = random_call<T, D, E>(shape, 1);
    call.q.fill([] { return 1; });
    call.k.each([&](int b, int t, int h, int d) {
      call.k.at(b, t, h, d) = from_double<T>(t % 2 == 0 ? 1 : -1);
    });
    call.v.each([&](int b, int t, int h, int e) {
      call.v.at(b, t, h, e) = from_double<T>(1 + t % 2 * (e % 2));
    });
    for (std::int64_t i = 0; i < call.mixing.size(); ++i) call.mixing[i] = 1;
    const mhla::cuda::Device device{arch, multiprocessors};
    const auto plan = mhla::cuda::detail::planned<D, E>(problem_of(call), device, form, "");
    run_only<D, E>(call, plan, device, 1);
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    for (int t = 0; t < call.o.tokens(); ++t) {
      for (int e = 0; e < E; ++e) {
        const double o = call.o.value(0, t, 0, e);
        if (call.causal && t % 2 == 0) {
          ASSERT_TRUE(std::isfinite(o)) << t << " " << e;
        } else {
          ASSERT_EQ(o, e % 2 == 0 ? 0 : -kInfinity) << t << " " << e << name(form);
        }
      }
    }
  }

  /// A call whose sums of W products of keys and values exceed the range of half.
  static Call<T> call_of_large_sums(const CallShape& shape) {
    Call<T> call = random_call<T, D, E>(shape, 1);
    for (Tensor<T>* x : {&call.k, &call.v}) {
      Random random(7);
      x->fill([&random] { return random.uniform(0, 50); });
    }
    return call;
  }

  /// Expects that tensors move as many bytes as the plan says, or at most 5 % more.
  static void expect_traffic(const Outcome& outcome) {
    EXPECT_LE(static_cast<double>(outcome.tensor_bytes),
              1.05 * static_cast<double>(outcome.plan.traffic.tensors));
    EXPECT_GE(outcome.tensor_bytes, outcome.plan.traffic.tensors);
    EXPECT_LE(static_cast<double>(outcome.workspace_bytes),
              1.05 * static_cast<double>(outcome.plan.traffic.summaries));
  }
};

}  // namespace cuda_test

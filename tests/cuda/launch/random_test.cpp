// Random problems of forms as launched, in the emulator, against the CPU's forms. The device test
// of random problems takes the same ones.

#include <gtest/gtest.h>

#include "mhla/cuda/launch/forms.cuh"
#include "mhla/cuda/launch/plan.cuh"
#include "support/cuda/emulated_call.hpp"
#include "support/cuda/form_test.hpp"
#include "support/cuda/own_maps.hpp"
#include "support/cuda/random_shape.hpp"
#include "support/seeds.hpp"

namespace random_test {
namespace {

using namespace cuda_test;  // NOLINT
using mhla::cuda::Arch, mhla::cuda::Device, mhla::cuda::MappedOperator;

template <bool kRotary>
void run_random(const CallShape& shape, std::uint64_t seed) {
  using Number = First::T;
  for (const Arch arch : {Arch::kSm80, Arch::kSm90a}) {
    Call<Number> call = random_call<Number, 64, 64>(shape, seed);
    const Device device{arch, seed % 2 == 0 ? 2 : 8};
    const auto plan = mhla::cuda::plan<64, 64>(problem_of(call), device);
    ASSERT_EQ(plan.missing.kernel, nullptr);
    const auto order = static_cast<unsigned>(seed);
    if (shape.own_maps) {
      const MappedOperator maps(call.op, Softplus{}, kSquaredRelu);
      run_and_compare<64, 64, kRotary>(call, plan, device, order, maps);
    } else {
      run_and_compare<64, 64, kRotary>(call, plan, device, order, call.op);
    }
  }
}

TEST(RandomProblems, OfFormsAreWithinTheBound) {
  for (const std::uint64_t seed : mhla::test::seeds(6)) {
    Random random(seed);
    const CallShape shape = random_shape(random, 50, true);
    if (shape.rotary) {
      run_random<true>(shape, seed);
    } else {
      run_random<false>(shape, seed);
    }
    if (HasFailure()) FAIL() << "seed " << seed;
  }
}

}  // namespace
}  // namespace random_test

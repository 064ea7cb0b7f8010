// Random problems of gradients as launched, in the emulator, against the CPU's gradients. The
// device test of random problems takes the same ones.

#include <gtest/gtest.h>

#include "mhla/cuda/launch/gradient.cuh"
#include "support/cuda/form_test.hpp"
#include "support/cuda/gradient_run.hpp"
#include "support/cuda/own_maps.hpp"
#include "support/cuda/random_shape.hpp"
#include "support/seeds.hpp"

namespace random_gradient_test {
namespace {

using namespace cuda_test;  // NOLINT
using mhla::cuda::Arch, mhla::cuda::Device, mhla::cuda::MappedOperator;

template <bool kCausal, bool kRotary>
void run_random(const CallShape& shape, std::uint64_t seed) {
  using Number = First::T;
  auto call = random_gradient_call<Number, 64, 64>(shape, seed);
  GradientTensors<Number> got(call, shape.layout);
  const Device device{seed % 2 == 0 ? Arch::kSm80 : Arch::kSm90a, seed % 4 < 2 ? 2 : 8};
  const auto order = static_cast<unsigned>(seed);
  if (shape.own_maps) {
    const MappedOperator maps(call.op, Softplus{}, kSquaredRelu);
    run_gradient<64, 64, kCausal, kRotary>(call, got, device, order, nullptr, maps);
  } else {
    run_gradient<64, 64, kCausal, kRotary>(call, got, device, order);
  }
  compare_gradients(call, got);
}

TEST(RandomProblems, OfGradientsAreWithinTheBound) {
  for (const std::uint64_t seed : mhla::test::seeds(4)) {
    Random random(seed);
    const CallShape shape = random_shape(random, 50, true);
    if (shape.causal) {
      shape.rotary ? run_random<true, true>(shape, seed) : run_random<true, false>(shape, seed);
    } else {
      shape.rotary ? run_random<false, true>(shape, seed) : run_random<false, false>(shape, seed);
    }
    if (HasFailure()) FAIL() << "seed " << seed;
  }
}

}  // namespace
}  // namespace random_gradient_test

// Random problems on a device, for all widths and types, against the CPU's forms and gradients in
// double. Guard zones surround all memory, and several runs have the same bits.
//
// MHLA_TEST_SEED  the first seed; 1 by default
// MHLA_PROBLEMS   problems per test, type and widths; 10 by default
// MHLA_RUNS       runs with equal bits; 20 by default

#include <cstdio>
#include <cstdlib>
#include <string>
#include <type_traits>

#include "cuda/device/check.hpp"
#include "cuda/device/device_call.hpp"
#include "cuda/device/device_gradient.hpp"
#include "support/cuda/random_shape.hpp"

namespace {

using cuda_test::Call;
using cuda_test::CallShape;
using device_test::expect;
using device_test::failures;

int number_of(const char* variable, int otherwise) {
  const char* const text = std::getenv(variable);
  return text == nullptr ? otherwise : std::atoi(text);
}

/// Calls run.operator()<T, D, E>(shape, seed, multiprocessors) for random problems of each kind.
template <class Run>
void for_random(int problems, const Run& run) {
  const std::int32_t all = device_test::current_device().multiprocessors;
  int count = 0;
  const auto of_kind = [&]<class T, int D, int E>() {
    const std::uint64_t first = device_test::first_seed();
    for (std::uint64_t seed = first; seed < first + static_cast<std::uint64_t>(problems); ++seed) {
      cuda_test::Random random(seed);
      const bool rotates = D != 72 && !std::is_same_v<T, float>;
      CallShape shape = cuda_test::random_shape(random, 300, rotates);
      if constexpr (!device_test::kTakesNorm<T, E>) shape.normed = shape.gated = false;
      const int before = failures();
      run.template operator()<T, D, E>(shape, seed, random.chance(0.5) ? 1 : all);
      ++count;
      if (failures() == before) continue;
      std::printf("  repeat by MHLA_TEST_SEED=%llu MHLA_PROBLEMS=1: D %d, E %d, %s\n",
                  static_cast<unsigned long long>(seed), D, E,
                  std::is_same_v<T, float>              ? "float"
                  : std::is_same_v<T, mhla::cuda::half> ? "half"
                                                        : "bfloat16");
    }
  };
  device_test::for_each_kind(of_kind);
  device_test::for_widths<float>("float", of_kind);
  std::printf("%d problems\n", count);
}

template <class T, int D, int E>
void run_form(const CallShape& shape, std::uint64_t seed, std::int32_t multiprocessors, int runs) {
  const device_test::Stream stream;
  device_test::DeviceCall<T, D, E> call(shape, seed);
  for (const mhla::cuda::Device& device : device_test::targets(multiprocessors)) {
    call.plan_for(device);
    call.run(stream);
    stream.wait();
    call.expect_right();
    const auto first = call.output();
    for (int i = 1; i < runs; ++i) {
      if (i % 10 == 0) call.poison();
      call.run(stream);
      stream.wait();
      if (call.output() == first) continue;
      expect(false, call.text() + ": other bits in run " + std::to_string(i));
      break;
    }
  }
}

template <class T, int D, int E>
void run_gradient(const CallShape& shape, std::uint64_t seed, std::int32_t multiprocessors,
                  int runs) {
  const device_test::Stream stream;
  device_test::DeviceGradient<T, D, E> call(shape, seed);
  for (const mhla::cuda::Device& device : device_test::targets(multiprocessors)) {
    call.check(device, stream, runs);
  }
}

void forms() {
  for_random(number_of("MHLA_PROBLEMS", 10),
             []<class T, int D, int E>(const auto& shape, auto seed, auto multiprocessors) {
               run_form<T, D, E>(shape, seed, multiprocessors, 2);
             });
}

void gradients() {
  for_random(number_of("MHLA_PROBLEMS", 10),
             []<class T, int D, int E>(const auto& shape, auto seed, auto multiprocessors) {
               run_gradient<T, D, E>(shape, seed, multiprocessors, 2);
             });
}

/// One problem in a hundred, since each has many runs.
void runs_have_the_same_bits() {
  const int runs = number_of("MHLA_RUNS", 20);
  for_random((number_of("MHLA_PROBLEMS", 10) + 99) / 100,
             [&]<class T, int D, int E>(const auto& shape, auto seed, auto multiprocessors) {
               run_form<T, D, E>(shape, seed, multiprocessors, runs);
               run_gradient<T, D, E>(shape, seed, multiprocessors, runs);
             });
}

}  // namespace

int main(int count, char** arguments) {
  return device_test::run_tests({{"Random.Forms", forms},
                                 {"Random.Gradients", gradients},
                                 {"Random.RunsHaveTheSameBits", runs_have_the_same_bits}},
                                count, arguments);
}

#pragma once

/// \file
/// Runs of kernels in the emulator: their launch, and the checks of each run.
///
/// A run is constructed from a Case. It has
///
///     name()                  the kernel's type and widths
///     launch(schedule)        returns false if the kernel does not support the case
///     expect_traffic()        it moved what it should, and no more
///     check()                 it wrote what the definition says
///     wrote_as(other)         it wrote the same bits

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <type_traits>

#include "emulator/async_box.hpp"
#include "emulator/device.hpp"
#include "mhla/cuda/ptx/tensor_copy.cuh"
#include "mhla/cuda/tile/tensor_box.cuh"
#include "support/cuda/kernel_case.hpp"
#include "support/cuda/output_bound.hpp"

namespace cuda_test {

using mhla::cuda::Precision;

/// Parameters of a kernel for a stage: the stage itself, or what the kernel derives from it, with
/// tensor maps if needed. Empty if the kernel does not support the stage.
template <class Kernel, class Stage>
std::optional<typename Kernel::Params> prepared(const Stage& stage, const Case& c) {
  if constexpr (std::is_same_v<typename Kernel::Params, Stage>) {
    return stage;
  } else if constexpr (requires { Kernel::parameters(stage); }) {
    return Kernel::parameters(stage);
  } else {
    typename Kernel::Params p{};
    constexpr std::size_t kBoxes = std::extent_v<decltype(p.maps)>;
    mhla::cuda::TensorBox boxes[kBoxes] = {};
    if (!Kernel::prepare(stage, c.pairs(), c.multiprocessors, p, boxes)) return std::nullopt;
    for (std::size_t i = 0; i < kBoxes; ++i) {
      if (boxes[i].base != nullptr) p.maps[i] = emulator::tensor_map(boxes[i]);
    }
    return p;
  }
}

/// Empty if the kernel does not support the stage, or after a fault, which fails the test.
template <class Kernel, class Stage>
std::optional<emulator::Report> launched(emulator::Device& device, const Stage& stage,
                                         const Case& c) {
  const auto p = prepared<Kernel>(stage, c);
  if (!p) return std::nullopt;
  const unsigned blocks = Kernel::grid(*p, c.pairs());
  try {
    return device.launch<Kernel>(blocks, *p);
  } catch (const emulator::Fault& fault) {
    ADD_FAILURE() << fault.what();
    return std::nullopt;
  }
}

template <class T>
std::string kernel_name(int d, int e) {
  return std::to_string(d) + " x " + std::to_string(e) + " of " + Format<T>::kName;
}

/// Compares the outputs of all pairs, by run.check(comparison, b, h).
template <class Run>
void expect_right_outputs(const Run& run) {
  Comparison comparison(Run::name());
  for (int b = 0; b < run.c.batch; ++b) {
    for (int h = 0; h < run.c.heads; ++h) run.check(comparison, b, h);
  }
  EXPECT_GT(comparison.worst(), 0);
  EXPECT_TRUE(run.o.padding_is_untouched());
}

template <class Run>
void expect_right(const Case& c) {
  SCOPED_TRACE(Run::name() + ", " + text(c));
  Run run(c);
  ASSERT_TRUE(run.launch(c.seed % 7));
  run.expect_traffic();
  run.check();
}

/// Runs both types and precisions; all four combinations for the smallest widths.
template <template <class T, int D, int E, Precision P> class Run, int D, int E>
void expect_right_for_types(const Case& c) {
  using mhla::cuda::bfloat16, mhla::cuda::half;
  expect_right<Run<bfloat16, D, E, Precision::kSingle>>(c);
  expect_right<Run<half, D, E, Precision::kPair>>(c);
  if constexpr (D == 64) {
    expect_right<Run<half, D, E, Precision::kSingle>>(c);
    expect_right<Run<bfloat16, D, E, Precision::kPair>>(c);
  }
}

/// Expects that neither the order of threads nor the number of multiprocessors changes a bit.
template <class Run>
void expect_same_in_any_order(Case c) {
  c.multiprocessors = 1;
  Run first(c);
  ASSERT_TRUE(first.launch(0));
  for (std::uint64_t schedule = 1; schedule < 6; ++schedule) {
    c.multiprocessors = 1 + static_cast<int>(schedule % 2);
    Run other(c);
    ASSERT_TRUE(other.launch(schedule));
    EXPECT_TRUE(other.wrote_as(first)) << schedule;
  }
}

}  // namespace cuda_test

#pragma once

/// \file
/// Contracts of kernels that exist for sm_80 and sm_90a: tests typed over both.
///
///     template <class Kernels> class Summary : public KernelContract<Kernels> {};
///     TYPED_TEST_SUITE(Summary, Both);
///
/// Kernels: ::Kernel<T, D, E, P>, kArch, and kHas72 if there are kernels of (72, 72).

#include <gtest/gtest.h>

#include "mhla/cuda/arch.cuh"
#include "support/cuda/kernel_run.hpp"

namespace cuda_test {

template <class Kernels>
class KernelContract : public testing::Test {
 protected:
  static constexpr bool kSm80 = Kernels::kArch == mhla::cuda::Arch::kSm80;
  static constexpr int kNarrow = Kernels::kHas72 ? 72 : 64;

  /// Calls expect_right_for_types for all widths, and for (128, 256) if `wide`.
  template <template <class T, int D, int E, Precision P> class Run>
  static void expect_right_for_widths(const Case& c, const Case& wide) {
    expect_right_for_types<Run, 64, 64>(c);
    if constexpr (Kernels::kHas72) expect_right_for_types<Run, 72, 72>(c);
    expect_right_for_types<Run, 128, 128>(c);
    expect_right_for_types<Run, 128, 256>(wide);
  }
};

}  // namespace cuda_test

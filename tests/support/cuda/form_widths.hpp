#pragma once

/// \file
/// What tests of forms run them for: types with widths of keys and values, and architectures.

#include <gtest/gtest.h>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/ptx/convert.cuh"

namespace cuda_test {

template <class T_, int D_, int E_>
struct Width {
  using T = T_;
  static constexpr int D = D_, E = E_;
};

using Widths =
    testing::Types<Width<mhla::cuda::bfloat16, 64, 64>, Width<mhla::cuda::bfloat16, 72, 72>,
                   Width<mhla::cuda::bfloat16, 128, 128>, Width<mhla::cuda::bfloat16, 128, 256>,
                   Width<mhla::cuda::half, 64, 64>>;

inline constexpr mhla::cuda::Arch kArchs[] = {mhla::cuda::Arch::kSm80, mhla::cuda::Arch::kSm90a};

}  // namespace cuda_test

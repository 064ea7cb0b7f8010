#pragma once

/// \file
/// Arguments of forms on a device, for tests of their checks.

#include <cstddef>

#include "mhla/cuda/attention/make_problem.cuh"

namespace cuda_test {

/// Tensors of 2 sequences of 100 tokens and 3 heads. No data is read, so tensors share memory.
struct FormArguments {
  using T = Eigen::bfloat16;

  alignas(256) std::byte memory[512] = {};
  T* data = reinterpret_cast<T*>(memory);
  mhla::cuda::Inputs<T> in{mhla::bnhd<const T>(data, 2, 100, 3, 64),
                           mhla::bnhd<const T>(data, 2, 100, 3, 64),
                           mhla::bhnd<const T>(data, 2, 3, 100, 64)};
  mhla::TensorView<T> out = mhla::bnhd(data, 2, 100, 3, 64);
  mhla::cuda::TokenBlocks blocks = mhla::cuda::contiguous(100, 16);
  mhla::cuda::Operator op;

  mhla::cuda::Problem problem(bool causal = false) const {
    return mhla::cuda::detail::make_problem<64, 64>("cuda::f", in, blocks, blocks, causal, op, out);
  }
};

}  // namespace cuda_test

#pragma once

/// \file
/// Arguments of the call in prepared.cu and package.cu, and the time of a call.

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <utility>

#include "cuda/build/runtime.hpp"
#include "mhla/cuda/attention/inputs.cuh"

namespace stand_in {

using mhla::Index;
using T = Eigen::bfloat16;

/// A sequence with 12 heads in blocks of 64, [B, N, H, 64]. Nothing reads the addresses.
struct Arguments {
  static constexpr Index kTokens = 4096, kBlocks = 64, kHeads = 12;

  static T* address(Index at) { return reinterpret_cast<T*>(at << 28); }
  static mhla::TensorView<T> tensor(Index at) {
    return mhla::bnhd(address(at), 1, kTokens, kHeads, 64);
  }
  static mhla::TensorView<const T> input(Index at) {
    return mhla::bnhd<const T>(address(at), 1, kTokens, kHeads, 64);
  }

  mhla::cuda::Inputs<T> in{input(1), input(2), input(3)};
  mhla::TensorView<T> out = tensor(4);
  mhla::MatrixView<const float> mixing{reinterpret_cast<const float*>(address(5)), kBlocks, kBlocks,
                                       kBlocks};
  mhla::Workspace workspace{reinterpret_cast<std::byte*>(address(6)), std::size_t{1} << 28};
  mhla::cuda::TokenBlocks blocks = mhla::cuda::contiguous(kTokens, 64);
  mhla::cuda::Operator op;
  mhla::cuda::Device device{mhla::cuda::Arch::kSm90a, 132};
};

/// Returns and clears the count of CUDA calls.
inline stand_in::Calls asked() { return std::exchange(stand_in::calls, {}); }

template <class Work>
double microseconds(const Work& work) {
  constexpr int kCalls = 20000;
  double best = 1e9;
  for (int i = 0; i < 5; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    for (int j = 0; j < kCalls; ++j) work();
    const std::chrono::duration<double, std::micro> time = std::chrono::steady_clock::now() - begin;
    best = std::min(best, time.count() / kCalls);
  }
  return best;
}

}  // namespace stand_in

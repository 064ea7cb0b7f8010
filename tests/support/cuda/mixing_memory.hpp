#pragma once

/// \file
/// A mixing matrix in device memory, with gaps between its rows; NaN until it is filled.

#include <cstdint>

#include "emulator/device.hpp"
#include "mhla/cuda/kernel/parameters.cuh"
#include "support/cuda/problem.hpp"

namespace cuda_test {

class MixingMemory {
 public:
  MixingMemory(int rows, int columns)
      : rows_(rows),
        columns_(columns),
        stride_(columns + 3),
        numbers_((rows - 1) * stride_ + columns) {}

  /// Draws coefficients of both signs, or none below 0; up to the diagonal only if `causal`.
  void fill(Random& random, bool both_signs, bool causal = false) {
    for (int i = 0; i < rows_; ++i) {
      for (int b = 0; b < (causal ? i + 1 : columns_); ++b) {
        at(i, b) = static_cast<float>(random.uniform(both_signs ? -1 : 0, 1));
      }
    }
  }

  float& at(int i, int b) { return numbers_[i * stride_ + b]; }
  double value(int i, int b) const { return numbers_.value(i * stride_ + b); }
  mhla::cuda::MixingArray array() const { return {numbers_.data(), stride_}; }
  void track(emulator::Device& device) const {
    device.track("m", numbers_.data(), numbers_.bytes(), emulator::Access::kRead);
  }

 private:
  int rows_, columns_;
  std::int64_t stride_;
  Array<float> numbers_;
};

}  // namespace cuda_test

#pragma once

/// \file
/// A mixing matrix or decaying terms in device memory, or those of each head, with gaps between
/// rows; NaN until filled.

#include <cmath>
#include <cstdint>

#include "emulator/device.hpp"
#include "mhla/cuda/kernel/parameters.cuh"
#include "support/cuda/problem.hpp"

namespace cuda_test {

class MixingMemory {
 public:
  /// \param matrices  1 that all heads share, or the number of heads
  MixingMemory(int rows, int columns, int matrices = 1)
      : rows_(rows),
        columns_(columns),
        matrices_(matrices),
        stride_(columns + 3),
        numbers_((matrices * rows - 1) * stride_ + columns) {}

  /// Draws coefficients of both signs, or none below 0; up to the diagonal only if `causal`.
  void fill(Random& random, bool both_signs, bool causal = false) {
    for (int row = 0; row < matrices_ * rows_; ++row) {
      for (int b = 0; b < (causal ? row % rows_ + 1 : columns_); ++b) {
        at(row, b) = static_cast<float>(random.uniform(both_signs ? -1 : 0, 1));
      }
    }
  }

  /// Draws decaying terms [2, R]: weights of both signs, or none below 0, and decays. The first two
  /// decays are those of causal linear attention and of no earlier block.
  void fill_terms(Random& random, bool both_signs) {
    for (int row = 0; row < matrices_ * rows_; ++row) {
      for (int r = 0; r < columns_; ++r) {
        at(row, r) = static_cast<float>(row % 2 == 0 ? random.uniform(both_signs ? -1 : 0.1, 1)
                                        : r < 2      ? 1 - r
                                                     : random.uniform(0.2, 1));
      }
    }
  }
  /// m_ib of decaying terms for i - b = distance, or the sum of the terms' magnitudes.
  double decay(int distance, int head, bool magnitude) const {
    double sum = 0;
    for (int r = 0; r < columns_; ++r) {
      const double weight = value(0, r, head);
      sum += (magnitude ? std::abs(weight) : weight) * std::pow(value(1, r, head), distance);
    }
    return sum;
  }

  float& at(int i, int b) { return numbers_[i * stride_ + b]; }
  double value(int i, int b, int head = 0) const {
    const int matrix = matrices_ > 1 ? head : 0;
    return numbers_.value((matrix * rows_ + i) * stride_ + b);
  }
  mhla::cuda::MixingArray array() const {
    mhla::cuda::MixingArray array{numbers_.data(), stride_};
    if (matrices_ > 1) array.head_stride = rows_ * stride_;
    return array;
  }
  void track(emulator::Device& device) const {
    device.track("m", numbers_.data(), numbers_.bytes(), emulator::Access::kRead);
  }

 private:
  int rows_, columns_, matrices_;
  std::int64_t stride_;
  Array<float> numbers_;
};

}  // namespace cuda_test

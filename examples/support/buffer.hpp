#pragma once

/// \file
/// Memory of activations: a matrix of a fixed width, for up to a number of rows.

#include <algorithm>
#include <cstddef>
#include <mhla/core/matrix.hpp>
#include <vector>

namespace examples {

template <class T>
class Buffer {
  using Index = mhla::Index;

 public:
  Buffer(Index rows, Index cols) : values_(static_cast<std::size_t>(rows * cols)), cols_(cols) {}

  mhla::MatrixView<T> rows(Index count) { return {values_.data(), count, cols_, cols_}; }
  mhla::MatrixView<T> zero_rows(Index count) {
    std::fill_n(values_.begin(), count * cols_, T(0));
    return rows(count);
  }

 private:
  std::vector<T> values_;
  Index cols_;
};

}  // namespace examples

#pragma once

/// \file
/// Whole numbers as tensors of bfloat16, for tests of tensor copies and products.

#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "emulator/async_box.hpp"
#include "mhla/cuda/tile/tensor_box.cuh"

namespace emulator {

/// A whole number from -3 to 3 that depends on two indices.
constexpr int number(int i, int j) { return (i * 7 + j * 5 + i * j) % 7 - 3; }

/// The bits of a whole number as bfloat16.
inline std::uint16_t bits(int x) {
  return static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(static_cast<float>(x)) >> 16);
}

/// Numbers of 16 bits at a multiple of 128 bytes, so that tests do not depend on the allocator.
class Numbers {
 public:
  explicit Numbers(std::size_t count) : lines_((count + 63) / 64), size_(count) {}

  std::uint16_t* data() { return lines_.data()->x; }
  std::uint16_t& operator[](std::size_t i) { return lines_[i / 64].x[i % 64]; }
  std::size_t size() const { return size_; }
  std::size_t bytes() const { return size_ * 2; }

 private:
  struct alignas(128) Line {
    std::uint16_t x[64] = {};
  };
  std::vector<Line> lines_;
  std::size_t size_;
};

/// Rows of `columns` numbers, and boxes of `box_rows` rows of 64.
inline mhla::cuda::TensorBox matrix_box(Numbers& x, std::uint64_t columns, std::uint32_t box_rows) {
  const std::uint64_t rows = x.size() / columns;
  const std::uint64_t row = columns * 2;
  return {x.data(),
          {columns, rows, 1, 1, 1},
          {row, rows * row, rows * row, rows * row},
          {64, box_rows, 1, 1, 1}};
}

}  // namespace emulator

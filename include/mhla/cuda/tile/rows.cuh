#pragma once

/// \file
/// Operations on rows of a fragment: sums of their elements, and products with a vector.

#include <cstdint>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/ptx/barrier.cuh"
#include "mhla/cuda/ptx/convert.cuh"
#include "mhla/cuda/ptx/shared.cuh"
#include "mhla/cuda/tile/fragment.cuh"
#include "mhla/cuda/tile/pieces.cuh"
#include "mhla/cuda/tile/tensor_box.cuh"

namespace mhla::cuda {

// -------------------------------------------------------------------------------------------------
// Products of rows in registers with a vector of floats in shared memory: q . z, in float.

/// A number for row lane / 4 and one for row lane / 4 + 8 of a fragment.
struct RowPair {
  float x;
  float x_8;
};

/// Adds the sums of the four threads of a row. All threads of the warp call together.
MHLA_DEVICE RowPair over_row(RowPair sums) {
  MHLA_CUDA_UNROLL
  for (std::uint32_t mask = 1; mask < 4; mask *= 2) {
    sums.x += ptx::shfl_bfly(sums.x, mask);
    sums.x_8 += ptx::shfl_bfly(sums.x_8, mask);
  }
  return sums;
}

/// Products of both rows with the vector at a shared address, a multiple of 8. All threads of the
/// warp call together. The four threads of a row get the same result.
template <class T, int kColumns>
MHLA_DEVICE RowPair row_products(const Fragment<kColumns>& rows, std::uint32_t vector,
                                 std::uint32_t lane) {
  RowPair sum{0, 0};
  MHLA_CUDA_UNROLL
  for (int j = 0; j < kColumns / 8; ++j) {
    const std::uint32_t at = vector + 32 * j + lane % 4 * 8;
    const ptx::Words2 two = ptx::ld_shared_v2(at);
    const float y = as_float(two.x[0]), z = as_float(two.x[1]);
    sum.x += ptx::low<T>(rows.x[2 * j]) * y + ptx::high<T>(rows.x[2 * j]) * z;
    sum.x_8 += ptx::low<T>(rows.x[2 * j + 1]) * y + ptx::high<T>(rows.x[2 * j + 1]) * z;
  }
  return over_row(sum);
}

// -------------------------------------------------------------------------------------------------
// Sums of the elements of rows in Fragments (fragment.cuh), in float. A thread first adds its
// elements of its two rows, over any number of fragments. Then the four threads that share rows add
// their sums.

/// Adds the thread's elements of both rows.
template <class T, int kColumns>
MHLA_DEVICE void add_elements(RowPair& sums, const Fragment<kColumns>& rows) {
  MHLA_CUDA_UNROLL
  for (int j = 0; j < kColumns / 8; ++j) {
    sums.x += ptx::low<T>(rows.x[2 * j]) + ptx::high<T>(rows.x[2 * j]);
    sums.x_8 += ptx::low<T>(rows.x[2 * j + 1]) + ptx::high<T>(rows.x[2 * j + 1]);
  }
}

/// Adds the thread's sums of a product (ptx/mma.cuh) in both rows.
template <int kTiles>
MHLA_DEVICE void add_elements(RowPair& to, const float (&sums)[kTiles][4]) {
  MHLA_CUDA_UNROLL
  for (int j = 0; j < kTiles; ++j) {
    to.x += sums[j][0] + sums[j][1];
    to.x_8 += sums[j][2] + sums[j][3];
  }
}

// -------------------------------------------------------------------------------------------------
// Vectors of floats that tensor copies load. Rows of 32 floats, 128 bytes, are swizzled
// (ptx/tensor_copy.cuh). Vectors of another length are contiguous.

/// A vector of kSize floats, at most 256, at a shared address: a multiple of 1024 if kSize is a
/// multiple of 32, otherwise of 128.
template <int kSize_>
struct BoxVector {
  static constexpr int kSize = kSize_;
  static constexpr int kBytes = 4 * kSize;
  static constexpr bool kRows = kSize % 32 == 0;
  static_assert(kSize <= 256, "the swizzle repeats after eight rows of 32 floats");

  std::uint32_t begin;

  /// Shared address of a float.
  MHLA_HOST_DEVICE constexpr std::uint32_t at(std::uint32_t i) const {
    if constexpr (!kRows) return begin + 4 * i;
    const std::uint32_t row = i / 32;
    return begin + row * 128 + ((i / 4 % 8) ^ row) * 16 + i % 4 * 4;
  }

  /// Box of vector (i, j) of an array [outer, step, kSize]. Its origin is {0, 0, i, j, 0}, with i <
  /// inner.
  static constexpr TensorBox box(const float* array, std::int64_t inner, std::int64_t outer,
                                 std::int64_t step) {
    constexpr std::uint32_t kRowCount = kRows ? kSize / 32 : 1, kColumns = 2 * kSize / kRowCount;
    const auto bytes = static_cast<std::uint64_t>(step) * kBytes;
    return {const_cast<float*>(array),
            {kColumns, kRowCount, static_cast<std::uint64_t>(inner),
             static_cast<std::uint64_t>(outer), 1},
            {2 * kColumns, kBytes, bytes, bytes},
            {kColumns, kRowCount, 1, 1, 1}};
  }
};

/// Products of both rows of a fragment with the vector. All threads of the warp call together. The
/// four threads of a row get the same result.
template <class T, int kColumns>
MHLA_DEVICE RowPair row_products(const Fragment<kColumns>& rows, BoxVector<kColumns> vector,
                                 std::uint32_t lane) {
  if constexpr (!BoxVector<kColumns>::kRows) return row_products<T>(rows, vector.begin, lane);
  // Floats 8 j + p and p + 1 are in pieces 2 j and 2 j + 1 of a row of 8 pieces, which odd rows
  // exchange.
  const std::uint32_t even = vector.begin + lane / 2 % 2 * 16 + lane % 2 * 8;
  const std::uint32_t odd = even ^ 16;
  RowPair sum{0, 0};
  MHLA_CUDA_UNROLL
  for (int j = 0; j < kColumns / 8; ++j) {
    const int row = j / 4;
    const std::uint32_t at =
        (row % 2 == 0 ? even : odd) + row * 128 + ((j % 4 * 2) ^ (row / 2 * 2)) * 16;
    const float y = ptx::ld_shared_f32(at);
    const float z = ptx::ld_shared_f32(at + 4);
    sum.x += ptx::low<T>(rows.x[2 * j]) * y + ptx::high<T>(rows.x[2 * j]) * z;
    sum.x_8 += ptx::low<T>(rows.x[2 * j + 1]) * y + ptx::high<T>(rows.x[2 * j + 1]) * z;
  }
  return over_row(sum);
}

}  // namespace mhla::cuda

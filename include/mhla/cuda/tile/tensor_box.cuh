#pragma once

/// \file
/// A tensor in device memory and the box of it that one tensor copy moves.

#include <cstdint>

#include "mhla/cuda/arch.cuh"

namespace mhla::cuda {

/// Elements per row of a box: 64, in panels, if `width` is a multiple of 64, otherwise `width`.
MHLA_HOST_DEVICE constexpr int box_columns(int width) { return width % 64 == 0 ? 64 : width; }

/// A tensor of 16-bit elements, innermost dimension first, and the box that a copy moves. Rows of
/// 64 elements, 128 bytes, are in the swizzled order of ptx/tensor_copy.cuh. Rows of another
/// multiple of 8 elements are contiguous and not swizzled.
struct TensorBox {
  void* base;               ///< a multiple of 16
  std::uint64_t extent[5];  ///< elements along each dimension, 1 to 2^32
  std::uint64_t
      stride[4];  ///< bytes from one element to the next along dimensions 1 to 4, multiples of 16
  std::uint32_t box[5];  ///< elements of the box, at most 256 each

  constexpr bool swizzled() const { return box[0] == 64; }
  /// Bytes of the box in shared memory.
  constexpr std::uint32_t bytes() const { return 2 * box[0] * box[1] * box[2] * box[3] * box[4]; }

  friend bool operator==(const TensorBox&, const TensorBox&) = default;
};

}  // namespace mhla::cuda

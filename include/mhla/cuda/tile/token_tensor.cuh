#pragma once

/// \file
/// A [B, N, H, D] tensor of 16-bit numbers in device memory, as kernels see it: where a row begins.
/// The D elements of a row lie side by side, and rows begin at multiples of 16 bytes.

#include <cstdint>

#include "mhla/cuda/arch.cuh"

namespace mhla::cuda {

/// A (batch item, head) of a problem and where it stands: pair = b * heads + h.
struct Pair {
  std::int32_t batch;
  std::int32_t head;
};
MHLA_HOST_DEVICE constexpr Pair pair_of(std::int32_t pair, std::int32_t heads) {
  return {pair / heads, pair % heads};
}

template <class Byte>
struct BasicTokenTensor {
  Byte* data;
  std::int64_t batch_stride;  // in bytes
  std::int64_t head_stride;
  std::int64_t token_stride;

  /// The row of token 0 of a head.
  MHLA_HOST_DEVICE constexpr Byte* head(Pair pair) const {
    return data + pair.batch * batch_stride + pair.head * head_stride;
  }
};

using ConstTokenTensor = BasicTokenTensor<const unsigned char>;
using TokenTensor = BasicTokenTensor<unsigned char>;

}  // namespace mhla::cuda

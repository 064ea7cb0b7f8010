#pragma once

/// \file
/// Tokens of a batch that take part in a form, and where their rows are: tokens without a flag of
/// 0, and tokens of packed sequences.

#include <cstdint>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/ptx/global.cuh"
#include "mhla/cuda/tile/tokens.cuh"

namespace mhla::cuda {

/// Row of a token in the tensors of a call.
struct SelectedRow {
  std::int32_t batch;
  std::int32_t row;  ///< -1: the sequence has no such token

  /// Address of the row in a head of a tensor.
  template <class Byte>
  MHLA_DEVICE Byte* of(const BasicTokenTensor<Byte>& tensor, std::int32_t head) const {
    return tensor.head({batch, head}) + row * tensor.token_stride;
  }
};

/// Tokens that take part. By default, all.
struct Selection {
  bool masked = false;
  bool packed = false;
  /// Flag of row r of batch item b: keep[b * batch_stride + r * token_stride]; 0 masks the token.
  const unsigned char* keep = nullptr;
  std::int64_t batch_stride = 0;
  std::int64_t token_stride = 0;
  /// [B + 1]. Packed sequence b is rows offsets[b].. offsets[b + 1] - 1 of batch item 0.
  const std::int32_t* offsets = nullptr;

  constexpr bool all() const { return !masked && !packed; }

  MHLA_DEVICE SelectedRow row(std::int32_t sequence, std::int32_t token) const {
    if (!packed) return {sequence, token};
    const std::int32_t begin = ptx::ld_global_nc_s32(offsets + sequence);
    const std::int32_t end = ptx::ld_global_nc_s32(offsets + sequence + 1);
    return {0, token < end - begin ? begin + token : -1};
  }
  /// Returns true if the row exists and is not masked.
  MHLA_DEVICE bool has(SelectedRow at) const {
    if (at.row < 0 || !masked) return at.row >= 0;
    return ptx::ld_global_nc_u8(keep + at.batch * batch_stride + at.row * token_stride) != 0;
  }
};

}  // namespace mhla::cuda

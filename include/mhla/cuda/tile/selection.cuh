#pragma once

/// \file
/// Tokens of a batch that take part in a form, and where their rows are: tokens without a flag of
/// 0, tokens of packed sequences, and tokens after a prefix.

#include <cstdint>

#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/ptx/global.cuh"
#include "mhla/cuda/tile/token_blocks.cuh"
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
  std::int32_t prefix = 0;  ///< tokens before `blocks`
  TokenBlocks blocks{};     ///< the caller's, if there is a prefix
  Divisor slots{};          ///< slots of a block of the form, if there is a prefix

  constexpr bool all() const { return !masked && !moves(); }
  /// Returns true if tokens of the form are at other places than the caller's.
  constexpr bool moves() const { return packed || prefix > 0; }

  /// Adds `tokens` tokens before the caller's blocks. Returns the form's blocks. The prefix is one
  /// more block, the first, and all blocks are runs as long as the longest. Slot s of block b is
  /// token b * slots + s of the form, and may be empty.
  constexpr TokenBlocks add_prefix(std::int32_t tokens, const TokenBlocks& callers) {
    if (tokens == 0) return callers;
    const std::int32_t length = tokens > callers.slots() ? tokens : callers.slots();
    prefix = tokens, blocks = callers, slots = Divisor(length);
    return {1, 1, (callers.blocks() + 1) * length, 1, 1, length};
  }
  /// The caller's blocks, where the form has the blocks `of_form`.
  constexpr const TokenBlocks& after_prefix(const TokenBlocks& of_form) const {
    return prefix > 0 ? blocks : of_form;
  }
  /// Tokens of the longest sequence of the caller.
  constexpr std::int32_t tokens(const TokenBlocks& of_form) const {
    return prefix + after_prefix(of_form).tokens();
  }

  /// The caller's row of a token of the form.
  MHLA_DEVICE SelectedRow row(std::int32_t sequence, std::int32_t token) const {
    token = place(token);
    if (!packed) return {sequence, token};
    const std::int32_t begin = ptx::ld_global_nc_s32(offsets + sequence);
    const std::int32_t end = ptx::ld_global_nc_s32(offsets + sequence + 1);
    return {0, token >= 0 && token < end - begin ? begin + token : -1};
  }
  /// Returns true if the row exists and is not masked.
  MHLA_DEVICE bool has(SelectedRow at) const {
    if (at.row < 0 || !masked) return at.row >= 0;
    return ptx::ld_global_nc_u8(keep + at.batch * batch_stride + at.row * token_stride) != 0;
  }

  /// Place in its sequence of a token of the form, or -1 for an empty slot.
  MHLA_DEVICE std::int32_t place(std::int32_t token) const {
    if (prefix == 0) return token;
    const std::int32_t block = slots.quotient(token), slot = token - block * slots.value();
    if (block == 0) return slot < prefix ? slot : -1;
    const std::int32_t rest = blocks.token(blocks.origin(block - 1), slot);
    return rest < 0 ? -1 : prefix + rest;
  }
};

}  // namespace mhla::cuda

#pragma once

/// \file
/// The arguments of the forms on a device, and their checks: device tensors, masks, sizes.
///
/// Nothing here reads device memory or calls CUDA. All checks precede the first launch.

#include <algorithm>
#include <array>
#include <concepts>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <type_traits>

#include "mhla/core/error.hpp"
#include "mhla/core/matrix.hpp"
#include "mhla/core/overlap.hpp"
#include "mhla/core/tensor.hpp"
#include "mhla/core/workspace.hpp"
#include "mhla/cuda/arch.cuh"
#include "mhla/cuda/attention/blocks.cuh"
#include "mhla/cuda/launch/plan.cuh"
#include "mhla/cuda/launch/problem.cuh"

namespace mhla::cuda {

/// Element types of device tensors. __nv_bfloat16 and __half have the same bits: cast the pointers.
template <class T>
concept DeviceScalar =
    std::same_as<T, Eigen::bfloat16> || std::same_as<T, Eigen::half> || std::same_as<T, float>;

namespace detail {
template <DeviceScalar T>
struct kernel_scalar {
  using type = bfloat16;
};
template <>
struct kernel_scalar<Eigen::half> {
  using type = half;
};
template <>
struct kernel_scalar<float> {
  using type = float;
};
}  // namespace detail

/// The kernels' name of T.
template <DeviceScalar T>
using kernel_scalar_t = typename detail::kernel_scalar<T>::type;

/// Device tensors of a call. Rows are dense and aligned to 16 bytes. Batch, token and head strides
/// are any multiples of 16 bytes.
///
/// Masks and offsets are in device memory too. A masked key enters no sum, and a masked query gets
/// an output of 0. With offsets, B is 1, and sequence s is tokens offsets[s].. offsets[s + 1] - 1.
/// The blocks are those of the longest sequence, and a shorter one has the first of them. Tokens
/// beyond the blocks are left out, and nothing is written for them.
///
/// A prefix, such as a class token, precedes the tokens that the blocks describe. It is one more
/// block, the first, with the first row or column of the mixing matrix. Nq and Nk count it.
template <DeviceScalar T>
struct Inputs {
  TensorView<const T> q;  ///< [B, Nq, H, D]
  TensorView<const T> k;  ///< [B, Nk, H, D]
  TensorView<const T> v;  ///< [B, Nk, H, E]
  /// If there is a gain, each row o of a head becomes o gain / sqrt(mean of o^2 + op.norm_eps). A
  /// gate multiplies it by silu(gate) (layer/rms_norm.hpp).
  std::span<const float> gain{};                  ///< [E], aligned to 8 bytes, or empty
  TensorView<const T> gate{};                     ///< [B, Nq, H, E], or absent
  BatchMask query_mask{};                         ///< [B, Nq], absent: all
  BatchMask key_mask{};                           ///< [B, Nk], absent: all
  std::span<const std::int32_t> query_offsets{};  ///< [S + 1] of packed sequences, both or none
  std::span<const std::int32_t> key_offsets{};    ///< [S + 1]; of a causal form the same array
  Index query_prefix = 0;                         ///< tokens of each sequence before the blocks
  Index key_prefix = 0;                           ///< the same of a causal form
};

namespace detail {

using mhla::detail::expect_distinct;
using mhla::detail::expect_shape;
using mhla::detail::fail_option;
using mhla::detail::fail_shape;
using mhla::detail::shape_text;

/// Describes a tensor for kernels.
/// \throws shape_error unless it is [B, N, H, width]; option_error unless its rows are dense and
///         aligned to 16 bytes.
template <class Byte, class T>
BasicTokenTensor<Byte> token_tensor(const char* function, const char* argument, TensorView<T> x,
                                    const std::array<Index, 4>& shape) {
  const auto text = [](const std::array<Index, 4>& sizes) {
    return shape_text({sizes[0], sizes[1], sizes[2], sizes[3]});
  };
  if (x.shape != shape) fail_shape(function, argument, "has shape " + text(x.shape), text(shape));
  const auto* const begin = reinterpret_cast<const unsigned char*>(x.data);
  mhla::detail::checked_product(function, argument, {shape[0], shape[1], shape[2], shape[3]});
  const auto bytes = [&](int axis) {  // of a step; an axis of one element has no step
    const auto at = static_cast<std::size_t>(axis);
    return x.shape[at] > 1 ? static_cast<std::int64_t>(x.strides[at] * Index{sizeof(T)}) : 0;
  };
  bool aligned = reinterpret_cast<std::uintptr_t>(begin) % 16 == 0;
  for (int axis = 0; axis < 3; ++axis) aligned = aligned && bytes(axis) % 16 == 0;
  if (!aligned || x.strides[3] != 1) {
    fail_option(function, argument,
                "has strides " + text(x.strides) + " and begins " +
                    std::to_string(reinterpret_cast<std::uintptr_t>(begin) % 16) +
                    " bytes after a multiple of 16",
                "dense rows that begin at multiples of 16 bytes");
  }
  return {const_cast<Byte*>(begin), bytes(0), bytes(2), bytes(1)};
}

/// Describes the output tensor for kernels.
/// \throws shape_error, option_error as token_tensor() does; option_error unless its elements are
///         distinct.
template <class T>
TokenTensor output_tensor(const char* function, TensorView<T> out,
                          const std::array<Index, 4>& shape) {
  const TokenTensor tensor = token_tensor<unsigned char>(function, "out", out, shape);
  expect_distinct(function, "out", out);
  return tensor;
}

/// Describes the gain and the gate for kernels.
/// \throws shape_error, option_error for arguments that do not fit.
template <int E, DeviceScalar T>
OutputNorm output_norm(const char* function, const Inputs<T>& in, const Operator& op) {
  if (in.gain.empty()) {
    if (!in.gate.absent()) {
      fail_option(function, "gate", "is given without a gain", "both, or a gain alone");
    }
    return {};
  }
  if (in.gain.size() != E) {
    fail_shape(function, "gain", "has " + std::to_string(in.gain.size()) + " elements",
               std::to_string(E));
  }
  const auto odd = reinterpret_cast<std::uintptr_t>(in.gain.data()) % 8;
  if (odd != 0) {
    fail_option(function, "gain", "begins " + std::to_string(odd) + " bytes after a multiple of 8",
                "a multiple of 8");
  }
  if (!(op.norm_eps >= 0)) {
    fail_option(function, "op.norm_eps", "is " + std::to_string(op.norm_eps), ">= 0");
  }
  OutputNorm norm{.normed = true,
                  .gated = !in.gate.absent(),
                  .eps = op.norm_eps,
                  .gain = in.gain.data(),
                  .gate = {}};
  if (norm.gated) {
    norm.gate = token_tensor<const unsigned char>(function, "gate", in.gate,
                                                  {in.q.batch(), in.q.tokens(), in.q.heads(), E});
  }
  return norm;
}

/// \throws shape_error unless the argument's shape is [rows, columns], or contains that if
///         `larger`.
inline void expect_size(const char* function, const char* argument, Index has_rows,
                        Index has_columns, Index rows, Index columns, bool larger) {
  const bool fits = larger ? has_rows >= rows && has_columns >= columns
                           : has_rows == rows && has_columns == columns;
  if (fits) return;
  fail_shape(function, argument, "has shape " + shape_text({has_rows, has_columns}),
             (larger ? "at least " : "") + shape_text({rows, columns}));
}

/// \throws option_error for a negative prefix of a call's blocks, or 2^31 or more slots in all.
inline void expect_prefix(const char* function, const char* argument, Index prefix,
                          const TokenBlocks& blocks) {
  const Index length = std::max<Index>(prefix, blocks.slots());
  const Index most = std::numeric_limits<std::int32_t>::max() / (blocks.blocks() + Index{1});
  if (prefix < 0 || (prefix > 0 && length > most)) {
    fail_option(function, argument, "is " + std::to_string(prefix),
                "at least 0, and fewer than 2^31 slots of " + std::to_string(blocks.blocks()) +
                    " + 1 equal blocks");
  }
}

/// Describes a mask [B, N] and offsets for kernels.
/// \throws shape_error for a mask of another shape.
inline Selection selection(const char* function, const char* argument, const BatchMask& mask,
                           std::span<const std::int32_t> offsets, Index batch, Index tokens) {
  if (!mask.absent()) expect_size(function, argument, mask.rows, mask.cols, batch, tokens, false);
  return {.masked = !mask.absent(),
          .packed = !offsets.empty(),
          .keep = mask.keep,
          .batch_stride = mask.row_stride,
          .token_stride = mask.col_stride,
          .offsets = offsets.data()};
}

/// Returns true if the sequences are packed.
template <DeviceScalar T>
bool is_packed(const Inputs<T>& in) {
  return !in.query_offsets.empty() || !in.key_offsets.empty();
}
/// Returns the tokens that x, of a prefix and these blocks, must have.
template <DeviceScalar T>
Index tokens_of(const Inputs<T>& in, const TensorView<const T>& x, Index prefix,
                const TokenBlocks& blocks) {
  return is_packed(in) ? x.tokens() : prefix + blocks.tokens();
}

/// \throws option_error for a mask, offsets or a prefix.
template <DeviceScalar T>
void expect_all_tokens(const char* function, const Inputs<T>& in, const char* why) {
  const char* const argument = !in.query_mask.absent()     ? "query_mask"
                               : !in.key_mask.absent()     ? "key_mask"
                               : !in.query_offsets.empty() ? "query_offsets"
                               : !in.key_offsets.empty()   ? "key_offsets"
                               : in.query_prefix != 0      ? "query_prefix"
                               : in.key_prefix != 0        ? "key_prefix"
                                                           : nullptr;
  if (argument != nullptr) fail_option(function, argument, "is given", why);
}

/// Returns the workspace's begin.
/// \throws option_error unless it has the planned bytes and is aligned to 256 bytes.
inline unsigned char* workspace_begin(const char* function, Workspace workspace,
                                      std::size_t planned) {
  const auto address = reinterpret_cast<std::uintptr_t>(workspace.data());
  if (workspace.size() < planned || (planned > 0 && address % 256 != 0)) {
    fail_option(function, "workspace",
                "has " + std::to_string(workspace.size()) + " bytes, " +
                    std::to_string(address % 256) + " after a multiple of 256",
                "at least " + std::to_string(planned) + " at a multiple of 256");
  }
  return reinterpret_cast<unsigned char*>(workspace.data());
}

}  // namespace detail
}  // namespace mhla::cuda

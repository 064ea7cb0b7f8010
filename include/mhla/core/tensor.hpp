#pragma once

/// \file
/// Strided views of batches: [B, N, H, D], whatever the order in memory.

#include <array>
#include <concepts>

#include "mhla/core/arch.hpp"
#include "mhla/core/matrix.hpp"

namespace mhla::inline MHLA_TARGET {

/// A [B, N, H, D] tensor somewhere in memory: element (b, n, h, d) is
/// data[b * strides[0] + n * strides[1] + h * strides[2] + d * strides[3]]. Owns nothing.
/// Any strides: token-major, head-major, padded rows, a slice of a packed qkv, broadcast heads.
template <class T>
struct TensorView {
  T* data = nullptr;
  std::array<Index, 4> shape{};    ///< B, N, H, D
  std::array<Index, 4> strides{};  ///< in elements

  constexpr TensorView() = default;
  constexpr TensorView(T* data_, std::array<Index, 4> shape_, std::array<Index, 4> strides_)
      : data(data_), shape(shape_), strides(strides_) {}

  template <std::same_as<const T> C>
  requires(!std::is_const_v<T>) constexpr operator TensorView<C>() const {  // NOLINT
    return {data, shape, strides};
  }

  constexpr Index batch() const { return shape[0]; }
  constexpr Index tokens() const { return shape[1]; }
  constexpr Index heads() const { return shape[2]; }
  constexpr Index width() const { return shape[3]; }
  constexpr bool absent() const { return data == nullptr && shape == std::array<Index, 4>{}; }

  /// Tokens [begin, begin + count) of head h of batch item b, as [count, D].
  constexpr MatrixView<T> head(Index b, Index h, Index begin, Index count) const {
    if (data == nullptr) return {nullptr, count, shape[3], strides[1], strides[3]};
    return {data + b * strides[0] + begin * strides[1] + h * strides[2], count, shape[3],
            strides[1], strides[3]};
  }
  /// All tokens of head h of batch item b, as [N, D].
  constexpr MatrixView<T> head(Index b, Index h) const { return head(b, h, 0, shape[1]); }
};

/// The view of a dense [B, N, H, D] array: the heads of one token lie side by side.
template <class T>
constexpr TensorView<T> bnhd(T* data, Index batch, Index tokens, Index heads, Index width) {
  return {data,
          {batch, tokens, heads, width},
          {tokens * heads * width, heads * width, width, Index{1}}};
}

/// The same [B, N, H, D] view of a dense array stored as [B, H, N, D]: heads one after another.
template <class T>
constexpr TensorView<T> bhnd(T* data, Index batch, Index heads, Index tokens, Index width) {
  return {data,
          {batch, tokens, heads, width},
          {heads * tokens * width, width, tokens * width, Index{1}}};
}

}  // namespace mhla::inline MHLA_TARGET

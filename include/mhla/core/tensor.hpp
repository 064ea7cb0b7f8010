#pragma once

/// \file
/// Batches of heads [B, N, H, D]: strided views in any memory order, and owning tensors.

#include <array>
#include <concepts>
#include <cstddef>
#include <vector>

#include "mhla/core/allocator.hpp"
#include "mhla/core/arch.hpp"
#include "mhla/core/error.hpp"
#include "mhla/core/matrix.hpp"
#include "mhla/core/workspace.hpp"

namespace mhla {
inline namespace MHLA_TARGET {

/// B, N, H, D.
using Shape = std::array<Index, 4>;

/// A non-owning view of a [B, N, H, D] tensor. Element (b, n, h, d) is
///
///     data[b * strides[0] + n * strides[1] + h * strides[2] + d * strides[3]]
///
/// Strides are arbitrary: token-major, head-major, padded rows, a slice of a packed qkv, broadcast
/// heads.
template <class T>
struct TensorView {
  T* data = nullptr;
  Shape shape{};    ///< B, N, H, D
  Shape strides{};  ///< in elements

  constexpr TensorView() = default;
  constexpr TensorView(T* data_, Shape shape_, Shape strides_)
      : data(data_), shape(shape_), strides(strides_) {}

  template <std::same_as<const T> C>
  requires(!std::is_const_v<T>) constexpr operator TensorView<C>() const {  // NOLINT
    return {data, shape, strides};
  }

  constexpr Index batch() const { return shape[0]; }
  constexpr Index tokens() const { return shape[1]; }
  constexpr Index heads() const { return shape[2]; }
  constexpr Index width() const { return shape[3]; }
  constexpr bool absent() const { return data == nullptr && shape == Shape{}; }

  constexpr T& operator()(Index b, Index n, Index h, Index d) const {
    return data[b * strides[0] + n * strides[1] + h * strides[2] + d * strides[3]];
  }
  /// Tokens [begin, begin + count) of head h of batch item b, as [count, D].
  constexpr MatrixView<T> head(Index b, Index h, Index begin, Index count) const {
    if (data == nullptr) return {nullptr, count, shape[3], strides[1], strides[3]};
    return {data + b * strides[0] + begin * strides[1] + h * strides[2], count, shape[3],
            strides[1], strides[3]};
  }
  /// All tokens of head h of batch item b, as [N, D].
  constexpr MatrixView<T> head(Index b, Index h) const { return head(b, h, 0, shape[1]); }
};

/// Returns the view of a dense [B, N, H, D] array: the heads of one token lie side by side.
template <class T>
constexpr TensorView<T> bnhd(T* data, const Shape& shape) {
  const auto [batch, tokens, heads, width] = shape;
  return {data, shape, {tokens * heads * width, heads * width, width, Index{1}}};
}
template <class T>
constexpr TensorView<T> bnhd(T* data, Index batch, Index tokens, Index heads, Index width) {
  return bnhd(data, Shape{batch, tokens, heads, width});
}

/// Returns the [B, N, H, D] view of a dense array stored as [B, H, N, D]: heads one after another.
template <class T>
constexpr TensorView<T> bhnd(T* data, Index batch, Index heads, Index tokens, Index width) {
  return {data,
          {batch, tokens, heads, width},
          {heads * tokens * width, width, tokens * width, Index{1}}};
}

/// A dense [B, N, H, D] tensor that owns its elements, initially 0. Converts implicitly to views.
template <class T>
class Tensor {
 public:
  using Elements = std::vector<T, Allocator<T>>;

  Tensor() = default;
  /// \throws shape_error for a negative size or a product that does not fit Index.
  explicit Tensor(const Shape& shape)
      : shape_(shape),
        data_(static_cast<std::size_t>(detail::checked_product(
            "Tensor", "shape", {shape[0], shape[1], shape[2], shape[3]}))) {}

  const Shape& shape() const { return shape_; }
  TensorView<T> view() { return bnhd(data_.data(), shape_); }
  TensorView<const T> view() const { return bnhd(data_.data(), shape_); }
  /// A view of a temporary, as in BatchInputs{.q = f()}, dangles.
  operator TensorView<T>() MHLA_LIFETIMEBOUND { return view(); }              // NOLINT
  operator TensorView<const T>() const MHLA_LIFETIMEBOUND { return view(); }  // NOLINT

  T& operator()(Index b, Index n, Index h, Index d) { return view()(b, n, h, d); }
  const T& operator()(Index b, Index n, Index h, Index d) const { return view()(b, n, h, d); }
  /// All elements in memory order.
  Elements& data() { return data_; }
  const Elements& data() const { return data_; }

 private:
  Shape shape_{};
  Elements data_;
};

namespace detail {
template <class T>
inline constexpr bool kOwns<Tensor<T>> = true;
}  // namespace detail

}  // namespace MHLA_TARGET
}  // namespace mhla

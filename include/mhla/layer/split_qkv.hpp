#pragma once

/// \file
/// Queries, keys and values as views of one matrix, which a dense layer writes, or whose gradient
/// it reads. A row has a token's heads, one after another:
///
///     row = [q | k | v]                qkv [B*N, H*D + G*D + G*E]
///     q [B,N,H,D]    k [B,N,G,D]    v [B,N,G,E]
///
/// With G = H every head has separate keys, and the forms read the views directly:
///
///     const auto [q, k, v] = split_qkv(qkv, {.batch = B, .heads = H, .width = D});
///     ... inputs(q, k, v) ...
///
/// With fewer key heads, query head h reads key head h / (H/G). Strides cannot express that for all
/// heads at once. member(i) has one query head of each of the G groups, so H/G calls compute all
/// heads. Gradients of keys and values add up over the calls.

#include <algorithm>
#include <string>
#include <type_traits>

#include "mhla/core/arch.hpp"
#include "mhla/core/error.hpp"
#include "mhla/core/matrix.hpp"
#include "mhla/core/tensor.hpp"
#include "mhla/layer/rows.hpp"

namespace mhla {
inline namespace MHLA_TARGET {

/// The sizes of packed queries, keys and values.
struct QkvSizes {
  Index batch;          ///< B
  Index heads;          ///< H
  Index width;          ///< D
  Index values = 0;     ///< E; 0 means D
  Index key_heads = 0;  ///< G, a divisor of H; 0 means H
};

/// Views into a packed matrix.
template <class T>
struct QkvViews {
  TensorView<T> q;  ///< [B,N,H,D]
  TensorView<T> k;  ///< [B,N,G,D]
  TensorView<T> v;  ///< [B,N,G,E]

  /// Returns queries i, i + H/G, .. [B,N,G,D] with all keys and values, for 0 <= i < H/G.
  /// \throws option_error for another i.
  QkvViews member(Index i) const;
};

/// Splits rows [B*N, H*D + G*D + G*E] of any strides without copying.
/// \throws option_error for sizes out of range, shape_error for a matrix of another shape.
template <class T>
QkvViews<T> split_qkv(const MatrixView<T>& qkv, const QkvSizes& sizes);
/// Splits an Eigen object, which must outlive the views.
template <EigenDense M>
auto split_qkv(M&& qkv, const QkvSizes& sizes) {
  using T = std::remove_pointer_t<decltype(qkv.data())>;
  return split_qkv(MatrixView<T>(qkv), sizes);
}

// ------------------------------------------------------------------------------------------------

template <class T>
QkvViews<T> QkvViews<T>::member(Index i) const {
  const Index queries = k.heads() > 0 ? q.heads() / k.heads() : 0;
  if (i < 0 || i >= queries) {
    detail::fail_option("QkvViews::member", "i", "is " + std::to_string(i),
                        "at least 0 and less than " + std::to_string(queries));
  }
  QkvViews one = *this;
  if (q.data != nullptr) one.q.data += i * q.strides[2];
  one.q.shape[2] = k.heads();
  one.q.strides[2] *= queries;
  return one;
}

namespace detail {

inline void expect_qkv_sizes(const char* function, const QkvSizes& sizes) {
  const auto expect_some = [&](const char* argument, Index size, Index least) {
    if (size >= least) return;
    fail_option(function, argument, "is " + std::to_string(size),
                "at least " + std::to_string(least));
  };
  expect_some("batch", sizes.batch, 1);
  expect_some("heads", sizes.heads, 1);
  expect_some("width", sizes.width, 1);
  expect_some("values", sizes.values, 0);
  expect_some("key_heads", sizes.key_heads, 0);
  if (sizes.key_heads > 0 && sizes.heads % sizes.key_heads != 0) {
    fail_option(function, "key_heads", "is " + std::to_string(sizes.key_heads),
                "a divisor of " + std::to_string(sizes.heads) + " heads");
  }
}

}  // namespace detail

template <class T>
QkvViews<T> split_qkv(const MatrixView<T>& qkv, const QkvSizes& sizes) {
  constexpr const char* kName = "split_qkv";
  detail::expect_qkv_sizes(kName, sizes);
  const Index batch = sizes.batch, heads = sizes.heads, width = sizes.width;
  const Index values = sizes.values > 0 ? sizes.values : width;
  const Index groups = sizes.key_heads > 0 ? sizes.key_heads : heads;
  detail::checked_product(kName, "sizes", {heads, 3, std::max(width, values)});
  const Index keys_at = heads * width, values_at = keys_at + groups * width;
  detail::expect_shape(kName, "qkv", qkv, -1, values_at + groups * values);
  detail::expect_whole_items(kName, "qkv", qkv.rows, batch, "the batch");
  const Index tokens = qkv.rows / batch;
  const auto part = [&](Index column, Index count, Index size) {
    T* const data = qkv.data == nullptr ? nullptr : qkv.data + column * qkv.col_stride;
    return TensorView<T>(
        data, {batch, tokens, count, size},
        {tokens * qkv.row_stride, qkv.row_stride, size * qkv.col_stride, qkv.col_stride});
  };
  return {part(0, heads, width), part(keys_at, groups, width), part(values_at, groups, values)};
}

}  // namespace MHLA_TARGET
}  // namespace mhla

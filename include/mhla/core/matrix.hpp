#pragma once

/// \file
/// Matrices of one head: the owning row-major Matrix, and the strided MatrixView that all forms
/// read.

#include <Eigen/Core>
#include <algorithm>
#include <concepts>
#include <ranges>
#include <type_traits>

#include "mhla/core/arch.hpp"
#include "mhla/core/error.hpp"
#include "mhla/core/refused.hpp"
#include "mhla/core/scalar.hpp"

namespace mhla {
inline namespace MHLA_TARGET {

/// An owning matrix, one token per row.
template <class T>
using Matrix = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

/// An Eigen object with its coefficients in memory: Matrix, Map, Ref, Block, Array.
template <class M>
concept EigenDense = requires(M& m) {
  typename std::remove_cvref_t<M>::Scalar;
  {m.data()};
  { m.rowStride() } -> std::convertible_to<Index>;
  { m.colStride() } -> std::convertible_to<Index>;
};

namespace detail {
/// True for types that own their elements and have views: a view of a temporary would dangle.
template <class M>
inline constexpr bool kOwns = false;
template <EigenDense M>
inline constexpr bool kOwns<M> = std::derived_from<M, Eigen::PlainObjectBase<M>>;
/// M&& binds to a temporary that owns its elements.
template <class M>
concept OwningTemporary = !std::is_reference_v<M> && kOwns<std::remove_const_t<M>>;

/// Columns [begin, end) of a row.
struct ColumnSpan {
  Index begin, end;

  static ColumnSpan either(ColumnSpan a, ColumnSpan b) {
    return {std::min(a.begin, b.begin), std::max(a.end, b.end)};
  }
  static ColumnSpan both(ColumnSpan a, ColumnSpan b) {
    return {std::max(a.begin, b.begin), std::min(a.end, b.end)};
  }
};
}  // namespace detail

/// A non-owning view of a matrix: element (r, c) is data[r * row_stride + c * col_stride]. Strides
/// count elements and may be 0 (broadcast) or negative.
template <class T>
struct MatrixView {
  T* data = nullptr;
  Index rows = 0;
  Index cols = 0;
  Index row_stride = 0;
  Index col_stride = 1;

  constexpr MatrixView() = default;
  constexpr MatrixView(T* data_, Index rows_, Index cols_, Index row_stride_, Index col_stride_ = 1)
      : data(data_), rows(rows_), cols(cols_), row_stride(row_stride_), col_stride(col_stride_) {}

  /// Converts implicitly from Eigen objects, row-major or column-major.
  template <EigenDense M>
  requires(std::is_convertible_v<decltype(std::declval<M&>().data()), T*> &&
           !detail::OwningTemporary<M>) constexpr MatrixView(M&& m)  // NOLINT
      : MatrixView(m.data(), m.rows(), m.cols(), m.rowStride(), m.colStride()) {}
  /// Converts from a temporary matrix, as an argument of a call. Kept longer, as by
  /// Inputs{.q = f()}, the view dangles.
  template <EigenDense M>
  requires(std::is_convertible_v<decltype(std::declval<M&>().data()), T*>&&
               detail::OwningTemporary<M>) constexpr MatrixView(M&& m MHLA_LIFETIMEBOUND)  // NOLINT
      : MatrixView(m.data(), m.rows(), m.cols(), m.rowStride(), m.colStride()) {}

  /// Converts to a read-only view.
  template <std::same_as<const T> C>
  requires(!std::is_const_v<T>) constexpr operator MatrixView<C>() const {  // NOLINT
    return {data, rows, cols, row_stride, col_stride};
  }

  constexpr T& operator()(Index r, Index c) const { return data[r * row_stride + c * col_stride]; }
  constexpr T* row(Index r) const { return data + r * row_stride; }

  /// Rows [begin, begin + count).
  constexpr MatrixView middle_rows(Index begin, Index count) const {
    return {data + begin * row_stride, count, cols, row_stride, col_stride};
  }
  /// Columns [begin, begin + count).
  constexpr MatrixView middle_cols(Index begin, Index count) const {
    return {data + begin * col_stride, rows, count, row_stride, col_stride};
  }
  constexpr MatrixView transposed() const { return {data, cols, rows, col_stride, row_stride}; }
  /// True for a view that was never set, such as an optional input left out.
  constexpr bool absent() const { return data == nullptr && rows == 0 && cols == 0; }
};

/// Contiguous bools, or bytes that are 0 or not: std::vector<unsigned char>, std::array<bool, N>;
/// not std::vector<bool>, which packs bits.
template <class R>
concept Flags = requires(const R& r) {
  { r.size() } -> std::convertible_to<std::size_t>;
  requires sizeof(*r.data()) == 1 && std::is_integral_v<std::remove_cvref_t<decltype(*r.data())>>;
};

namespace detail {
/// Distance from one flag to the next.
/// \throws shape_error for an Eigen matrix whose flags have no common distance.
template <class R>
Index stride_of(const R& flags) {
  if constexpr (EigenDense<R>) {
    if (flags.rows() == 1) return flags.colStride();
    if (flags.cols() == 1) return flags.rowStride();
    if (flags.size() > 0 &&
        (flags.innerStride() != 1 || flags.outerStride() != flags.innerSize())) {
      fail_shape("Mask", "flags",
                 "are part of a matrix " + shape_text({flags.rows(), flags.cols()}),
                 "a row, a column or a whole matrix");
    }
  }
  return 1;
}
/// Address of the flags. It is not null even without flags, since null means no mask.
template <class R>
const unsigned char* bytes_of(const R& flags) {
  static constexpr unsigned char kNone = 0;
  return flags.size() == 0 ? &kNone : reinterpret_cast<const unsigned char*>(flags.data());
}
/// Flags that end with the lifetime of their object.
template <class R>
concept OwnedFlags = Flags<R> && !std::ranges::borrowed_range<R> && (!EigenDense<R> || kOwns<R>);
}  // namespace detail

/// A non-owning mask of the tokens of a sequence: token t takes part unless keep[t * stride] is 0.
/// The default keeps all tokens.
struct Mask {
  const unsigned char* keep = nullptr;
  Index size = 0;
  Index stride = 1;

  constexpr Mask() = default;
  Mask(const bool* keep_, Index size_, Index stride_ = 1)
      : Mask(reinterpret_cast<const unsigned char*>(keep_), size_, stride_) {}
  constexpr Mask(const unsigned char* keep_, Index size_, Index stride_ = 1)
      : keep(keep_), size(size_), stride(stride_) {}
  template <Flags R>
  Mask(const R& flags)  // NOLINT(google-explicit-constructor)
      : Mask(detail::bytes_of(flags), static_cast<Index>(flags.size()), detail::stride_of(flags)) {}
  template <detail::OwnedFlags R>
  Mask(const R&&, detail::Refused<detail::Mistake::kTemporary, R> = {});

  constexpr bool all() const { return keep == nullptr; }
  constexpr bool operator[](Index t) const { return keep == nullptr || keep[t * stride] != 0; }
};

/// Non-owning masks of a batch: token n of item b takes part unless
/// keep[b * row_stride + n * col_stride] is 0. The default keeps all tokens.
struct BatchMask {
  const unsigned char* keep = nullptr;
  Index rows = 0;  ///< B
  Index cols = 0;  ///< N
  Index row_stride = 0;
  Index col_stride = 1;

  constexpr BatchMask() = default;
  BatchMask(const bool* keep_, Index rows_, Index cols_, Index row_stride_, Index col_stride_ = 1)
      : keep(reinterpret_cast<const unsigned char*>(keep_)),
        rows(rows_),
        cols(cols_),
        row_stride(row_stride_),
        col_stride(col_stride_) {}
  /// Masks from an Eigen object of bool [B,N].
  template <EigenDense M>
  requires std::same_as<typename M::Scalar, bool> BatchMask(const M& m)  // NOLINT
      : BatchMask(m.data(), m.rows(), m.cols(), m.rowStride(), m.colStride()) {}
  /// Masks of one length for B items, one after another.
  /// \throws shape_error unless flags.size() is a multiple of `batch`.
  template <Flags R>
  BatchMask(const R& flags, Index batch)
      : keep(detail::bytes_of(flags)),
        rows(batch),
        cols(batch > 0 ? static_cast<Index>(flags.size()) / batch : 0),
        row_stride(cols * detail::stride_of(flags)),
        col_stride(detail::stride_of(flags)) {
    if (rows * cols == static_cast<Index>(flags.size())) return;
    detail::fail_shape("BatchMask", "flags", "has " + std::to_string(flags.size()) + " entries",
                       "as many for each of " + std::to_string(batch) + " sequences");
  }
  template <detail::OwnedFlags R>
  BatchMask(const R&&, Index) = delete;  // the flags of a temporary would dangle
  template <class M>
  requires detail::OwningTemporary<M> BatchMask(M&&)
  = delete;

  constexpr bool absent() const { return keep == nullptr && rows == 0 && cols == 0; }
};

namespace detail {

/// Throws unless `m` is [rows, cols] (a negative size means any) with data where it has elements.
/// \param why  origin of the sizes, appended to those of the message
template <class T>
void expect_shape(const char* function, const char* argument, const MatrixView<T>& m, Index rows,
                  Index cols, const char* why = "") {
  if (m.rows < 0 || m.cols < 0 || (rows >= 0 && m.rows != rows) || (cols >= 0 && m.cols != cols)) {
    fail_shape(function, argument, "has shape " + shape_text({m.rows, m.cols}),
               shape_text({rows, cols}) + why);
  }
  checked_product(function, argument, {m.rows, m.cols});
  if (m.data == nullptr && m.rows > 0 && m.cols > 0) {
    fail_option(function, argument, "is null with shape " + shape_text({m.rows, m.cols}),
                "a pointer to data");
  }
}

/// Throws unless `mask` is absent or has one entry for each of `tokens`.
inline void expect_mask(const char* function, const char* argument, const Mask& mask,
                        Index tokens) {
  if (!mask.all() && mask.size != tokens) {
    fail_shape(function, argument, "has " + std::to_string(mask.size) + " entries",
               std::to_string(tokens) + " (one for each token)");
  }
}

}  // namespace detail
}  // namespace MHLA_TARGET
}  // namespace mhla

#pragma once

/// \file
/// The parameters of a dense layer, and a layer with its weight packed for many calls.

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

#include "mhla/core/arch.hpp"
#include "mhla/core/executor.hpp"
#include "mhla/core/matrix.hpp"
#include "mhla/core/workspace.hpp"
#include "mhla/kernel/panels.hpp"
#include "mhla/kernel/product.hpp"
#include "mhla/layer/rows.hpp"

namespace mhla {
inline namespace MHLA_TARGET {

/// The parameters of a dense layer (T const) or their gradients.
template <class T>
struct DenseView {
  MatrixView<T> weight{};  ///< [O,I]; a gradient may be absent
  std::span<T> bias{};     ///< [O] or empty: no bias, or no gradient of it

  constexpr operator DenseView<const T>() const  // NOLINT(google-explicit-constructor)
      requires(!std::is_const_v<T>) {
    return {weight, bias};
  }
};

/// Bytes of memory of a PackedDense.
template <Accumulator A>
std::size_t packed_dense_bytes(Index inputs, Index outputs);

/// A dense layer with its weight in the order that the product reads:
///
///     std::vector<std::byte> memory(packed_dense_bytes<float>(I, O));
///     const PackedDense<float> packed(memory, {weight, bias});
///     dense(x, packed, y);
///
/// The weight is copied. The memory and the bias belong to the caller and must outlive the object.
template <Accumulator A>
class PackedDense {
 public:
  /// \param executor  splits over outputs
  /// \throws shape_error, option_error for a layer that does not fit, and option_error unless
  ///         `memory` has packed_dense_bytes.
  PackedDense(Workspace memory, const DenseView<const A>& dense, const ExecutorRef& executor = {});

  Index inputs() const { return inputs_; }    ///< I
  Index outputs() const { return outputs_; }  ///< O
  /// Writes y = x W^T + b, without checks. Each element is one chain of multiply-adds from b.
  void apply(MatrixView<const A> x, MatrixView<A> y) const {
    apply(x, y, 0, panels(weight_).count());
  }
  /// Writes y in strips of rows. If there are fewer strips than workers, each strip is split by
  /// outputs.
  void apply(MatrixView<const A> x, MatrixView<A> y, const ExecutorRef& executor) const;

 private:
  template <class T>
  detail::Panels<T> panels(T* weight) const {
    return {inputs_, outputs_, weight};
  }
  /// Computes the outputs of panels [begin, end).
  void apply(MatrixView<const A> x, MatrixView<A> y, Index begin, Index end) const {
    const detail::Panels<const A> all = panels(weight_);
    const Index first = all.first_column(begin);
    const A* const bias = bias_ == nullptr ? nullptr : bias_ + first;
    const MatrixView<A> to = y.middle_cols(first, all.first_column(end) - first);
    all.middle(begin, end).multiply(detail::start_from(bias, to), x, to);
  }

  Index inputs_, outputs_;
  const A* weight_;  // W^T in panels
  const A* bias_;    // [O] or null
};

// ------------------------------------------------------------------------------------------------

namespace detail {

template <Accumulator A>
void expect_dense(const char* function, const char* weight, const char* bias,
                  const DenseView<const A>& dense, Index inputs) {
  expect_rows(function, weight, dense.weight, -1, inputs);
  expect_elements_or_none(function, bias, dense.bias.size(), dense.weight.rows);
}

/// Copies a weight in its order in memory.
template <Accumulator A>
void pack_weight(MatrixView<const A> weight, const Panels<A>& to, const ExecutorRef& executor) {
  const Index pieces = pieces_of_work(executor, weight.rows * weight.cols, weight.rows);
  executor.for_each(pieces, [&](Index piece, Index /*worker*/) {
    to.pack_rows(weight, weight.rows * piece / pieces, weight.rows * (piece + 1) / pieces);
  });
}

}  // namespace detail

template <Accumulator A>
std::size_t packed_dense_bytes(Index inputs, Index outputs) {
  return detail::counted_bytes([&](detail::Arena& arena) {
    return detail::Panels<A>("packed_dense_bytes", arena, inputs, outputs);
  });
}

template <Accumulator A>
PackedDense<A>::PackedDense(Workspace memory, const DenseView<const A>& dense,
                            const ExecutorRef& executor)
    : inputs_(dense.weight.cols),
      outputs_(dense.weight.rows),
      bias_(dense.bias.empty() ? nullptr : dense.bias.data()) {
  constexpr const char* kName = "PackedDense";
  detail::expect_dense(kName, "weight", "bias", dense, -1);
  detail::expect_workspace(kName, memory, packed_dense_bytes<A>(inputs_, outputs_));
  detail::Arena arena(memory.data());
  const detail::Panels<A> packed(kName, arena, inputs_, outputs_);
  weight_ = packed.data();
  const Index count = packed.count();
  const Index pieces = detail::pieces_of_work(executor, inputs_ * outputs_, count);
  executor.for_each(pieces, [&](Index piece, Index /*worker*/) {
    const Index begin = count * piece / pieces, end = count * (piece + 1) / pieces;
    const Index first = packed.first_column(begin), outputs = packed.first_column(end) - first;
    packed.middle(begin, end).pack_transposed(dense.weight.middle_rows(first, outputs));
  });
}

template <Accumulator A>
void PackedDense<A>::apply(MatrixView<const A> x, MatrixView<A> y,
                           const ExecutorRef& executor) const {
  const Index count = panels(weight_).count(),
              strips = detail::ceil_div(x.rows, detail::kLayerStrip);
  const Index pieces =
      detail::pieces_of_work(executor, x.rows * inputs_ * outputs_, strips * count);
  const Index parts = strips == 0 ? 0 : detail::ceil_div(pieces, strips);  // of a strip
  executor.for_each(strips * parts, [&](Index piece, Index /*worker*/) {
    const Index part = piece % parts, row = piece / parts * detail::kLayerStrip;
    const Index rows = std::min(detail::kLayerStrip, x.rows - row);
    apply(x.middle_rows(row, rows), y.middle_rows(row, rows), count * part / parts,
          count * (part + 1) / parts);
  });
}

}  // namespace MHLA_TARGET
}  // namespace mhla

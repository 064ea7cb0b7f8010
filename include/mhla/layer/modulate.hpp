#pragma once

/// \file
/// Modulation of the rows of a batch by numbers of their item, as in adaptive layer normalisation,
/// the gated residual sum after it, and their adjoints.
///
///     modulate:    y = x * (1 + scale_b) + shift_b       x, h, y [N,C], scale, shift, gate [B,C]
///     add_gated:   y = x + gate_b * h
///
///     modulate:    dx += dy * (1 + scale_b)     dscale_b += sum dy * x      dshift_b += sum dy
///     add_gated:   dx += dy     dh += dy * gate_b     dgate_b += sum dy * h
///
/// B divides N: N/B consecutive rows are an item b, whose rows are summed in order. Rows of all
/// views are contiguous (column stride 1) at any row stride, so scale, shift and gate may be
/// columns of one matrix. Outputs overlap nothing else. Cost: 2*N*C or 3*N*C flops, the adjoints
/// twice that. Source: Peebles and Xie, arXiv:2212.09748.

#include <algorithm>

#include "mhla/core/arch.hpp"
#include "mhla/core/executor.hpp"
#include "mhla/core/matrix.hpp"
#include "mhla/kernel/packet.hpp"
#include "mhla/layer/rows.hpp"

MHLA_PACKETS_BEGIN

namespace mhla {
inline namespace MHLA_TARGET {

/// Writes y = x * (1 + scale_b) + shift_b.
/// \param x, y [N,C], scale, shift [B,C]
/// \param executor  splits over rows
/// \throws shape_error, option_error for anything that does not fit, before y is touched.
template <LayerInput X>
void modulate(const X& x, const detail::input_t<X>& scale, const detail::input_t<X>& shift,
              const detail::output_t<X>& y, const ExecutorRef& executor = {});

/// Adds the gradients of x, scale and shift for the gradient dy of y.
/// \param dx              [N,C] or absent
/// \param dscale, dshift  [B,C] or absent
/// \param executor        splits over rows; the sums over items and columns
/// \throws shape_error, option_error for anything that does not fit, before anything is touched.
template <LayerInput X>
void modulate_adjoint(const X& x, const detail::input_t<X>& scale, const detail::input_t<X>& dy,
                      const detail::output_t<X>& dx, const detail::output_t<X>& dscale,
                      const detail::output_t<X>& dshift, const ExecutorRef& executor = {});

/// Writes y = x + gate_b * h.
/// \param x, h, y [N,C], gate [B,C]
/// \param executor  splits over rows
/// \throws shape_error, option_error for anything that does not fit, before y is touched.
template <LayerInput X>
void add_gated(const X& x, const detail::input_t<X>& gate, const detail::input_t<X>& h,
               const detail::output_t<X>& y, const ExecutorRef& executor = {});

/// Adds the gradients of x, gate and h for the gradient dy of y.
/// \param dx, dh    [N,C] or absent
/// \param dgate     [B,C] or absent
/// \param executor  splits over rows; the sums over items and columns
/// \throws shape_error, option_error for anything that does not fit, before anything is touched.
template <LayerInput X>
void add_gated_adjoint(const X& gate, const detail::input_t<X>& h, const detail::input_t<X>& dy,
                       const detail::output_t<X>& dx, const detail::output_t<X>& dgate,
                       const detail::output_t<X>& dh, const ExecutorRef& executor = {});

// ------------------------------------------------------------------------------------------------

namespace detail {

template <class P>
MHLA_INLINE inline P one_plus(P p) {
  using A = typename Eigen::internal::unpacket_traits<P>::type;
  return Eigen::internal::padd(Eigen::internal::pset1<P>(A(1)), p);
}

/// The rows of an argument as items with equal numbers of rows.
struct ItemRows {
  Index items, each;

  /// \param whose  name of the argument in errors
  /// \throws shape_error unless the items divide the rows.
  ItemRows(const char* function, const char* argument, Index rows, Index items_, const char* whose)
      : items(items_), each(items_ == 0 ? 0 : rows / items_) {
    expect_whole_items(function, argument, rows, items, whose);
  }

  /// Calls f(row, item) for every row.
  template <class F>
  void for_each_row(const ExecutorRef& executor, F&& f) const {
    for_each_layer_strip(items * each, executor, [&](Index begin, Index count) {
      for (Index r = begin; r < begin + count; ++r) f(r, r / each);
    });
  }

  /// Computes to_b = f(to_b, views_r...) over the rows r of each item b in order, where f takes
  /// packets. A piece of work is some columns of an item.
  template <Accumulator A, class F, class... View>
  void add_sums(const ExecutorRef& executor, MatrixView<A> to, const F& f, View... views) const {
    constexpr Index kColumns = 64;
    const Index pieces = ceil_div(to.cols, kColumns);
    executor.for_each(items * pieces, [&](Index piece, Index /*worker*/) {
      const Index item = piece / pieces, c = piece % pieces * kColumns;
      const Index count = std::min(kColumns, to.cols - c);
      A sums[kColumns];  // away from the cache lines of other pieces
      std::copy_n(to.row(item) + c, count, sums);
      for (Index r = item * each; r < (item + 1) * each; ++r) {
        update(sums, count, f, views.row(r) + c...);
      }
      std::copy_n(sums, count, to.row(item) + c);
    });
  }
  /// to_b += sum over the rows of item b of x * dy.
  template <Accumulator A>
  void add_products(const ExecutorRef& executor, MatrixView<A> to, MatrixView<const A> x,
                    MatrixView<const A> dy) const {
    const auto add = [](auto sum, auto p, auto d) { return multiply_add(p, d, sum); };
    add_sums(executor, to, add, x, dy);
  }
};

}  // namespace detail

template <LayerInput X>
void modulate(const X& input, const detail::input_t<X>& scale, const detail::input_t<X>& shift,
              const detail::output_t<X>& y, const ExecutorRef& executor) {
  constexpr const char* kName = "modulate";
  const detail::input_t<X> x(input);
  detail::expect_rows(kName, "x", x, -1, -1);
  detail::expect_rows(kName, "scale", scale, -1, x.cols);
  const detail::ItemRows rows(kName, "x", x.rows, scale.rows, "the rows of scale");
  detail::expect_rows(kName, "shift", shift, scale.rows, x.cols);
  detail::expect_rows(kName, "y", y, x.rows, x.cols);
  rows.for_each_row(executor, [&](Index r, Index item) {
    const auto value = [](auto p, auto s, auto offset) {
      return detail::multiply_add(p, detail::one_plus(s), offset);
    };
    detail::combine(y.row(r), x.cols, value, x.row(r), scale.row(item), shift.row(item));
  });
}

template <LayerInput X>
void modulate_adjoint(const X& input, const detail::input_t<X>& scale, const detail::input_t<X>& dy,
                      const detail::output_t<X>& dx, const detail::output_t<X>& dscale,
                      const detail::output_t<X>& dshift, const ExecutorRef& executor) {
  constexpr const char* kName = "modulate_adjoint";
  const detail::input_t<X> x(input);
  detail::expect_rows(kName, "x", x, -1, -1);
  detail::expect_rows(kName, "scale", scale, -1, x.cols);
  const detail::ItemRows rows(kName, "x", x.rows, scale.rows, "the rows of scale");
  detail::expect_rows(kName, "dy", dy, x.rows, x.cols);
  detail::expect_rows_or_none(kName, "dx", dx, x.rows, x.cols);
  detail::expect_rows_or_none(kName, "dscale", dscale, scale.rows, x.cols);
  detail::expect_rows_or_none(kName, "dshift", dshift, scale.rows, x.cols);
  if (!dx.absent()) {
    rows.for_each_row(executor, [&](Index r, Index item) {
      const auto add = [](auto sum, auto d, auto s) {
        return detail::multiply_add(d, detail::one_plus(s), sum);
      };
      detail::update(dx.row(r), x.cols, add, dy.row(r), scale.row(item));
    });
  }
  if (!dscale.absent()) rows.add_products(executor, dscale, x, dy);
  if (dshift.absent()) return;
  const auto add = [](auto sum, auto d) { return Eigen::internal::padd(sum, d); };
  rows.add_sums(executor, dshift, add, dy);
}

template <LayerInput X>
void add_gated(const X& input, const detail::input_t<X>& gate, const detail::input_t<X>& h,
               const detail::output_t<X>& y, const ExecutorRef& executor) {
  constexpr const char* kName = "add_gated";
  const detail::input_t<X> x(input);
  detail::expect_rows(kName, "x", x, -1, -1);
  detail::expect_rows(kName, "gate", gate, -1, x.cols);
  const detail::ItemRows rows(kName, "x", x.rows, gate.rows, "the rows of gate");
  detail::expect_rows(kName, "h", h, x.rows, x.cols);
  detail::expect_rows(kName, "y", y, x.rows, x.cols);
  rows.for_each_row(executor, [&](Index r, Index item) {
    const auto value = [](auto p, auto z, auto q) { return detail::multiply_add(z, q, p); };
    detail::combine(y.row(r), x.cols, value, x.row(r), gate.row(item), h.row(r));
  });
}

template <LayerInput X>
void add_gated_adjoint(const X& input, const detail::input_t<X>& h, const detail::input_t<X>& dy,
                       const detail::output_t<X>& dx, const detail::output_t<X>& dgate,
                       const detail::output_t<X>& dh, const ExecutorRef& executor) {
  constexpr const char* kName = "add_gated_adjoint";
  const detail::input_t<X> gate(input);
  detail::expect_rows(kName, "gate", gate, -1, -1);
  detail::expect_rows(kName, "h", h, -1, gate.cols);
  const detail::ItemRows rows(kName, "h", h.rows, gate.rows, "the rows of gate");
  detail::expect_rows(kName, "dy", dy, h.rows, h.cols);
  detail::expect_rows_or_none(kName, "dx", dx, h.rows, h.cols);
  detail::expect_rows_or_none(kName, "dgate", dgate, gate.rows, h.cols);
  detail::expect_rows_or_none(kName, "dh", dh, h.rows, h.cols);
  rows.for_each_row(executor, [&](Index r, Index item) {
    if (!dx.absent()) detail::add_to(dy.row(r), dx.row(r), h.cols);
    if (dh.absent()) return;
    const auto add = [](auto sum, auto d, auto z) { return detail::multiply_add(d, z, sum); };
    detail::update(dh.row(r), h.cols, add, dy.row(r), gate.row(item));
  });
  if (!dgate.absent()) rows.add_products(executor, dgate, h, dy);
}

}  // namespace MHLA_TARGET
}  // namespace mhla

MHLA_PACKETS_END

#pragma once

/// \file
/// Rotary position embedding of the rows of a matrix, and its adjoint.
///
///     y_a = x_a cos t - x_b sin t        dx_a += dy_a cos t + dy_b sin t
///     y_b = x_b cos t + x_a sin t        dx_b += dy_b cos t - dy_a sin t
///                                        x, y, dx, dy [N,H*D], t [positions, R/2]
///
/// for the R/2 pairs (a, b) of the first R features of each of H heads. The table says which
/// features are pairs (rotary_table.hpp). The other D - R features are copied.
///
/// Rows of all views are contiguous (column stride 1) at any row stride. Outputs overlap nothing
/// else, because normalisers may need the rows before the rotation. Cost: 3*N*H*R flops. Source: Su
/// et al., arXiv:2104.09864, section 3.2.

#include <algorithm>
#include <complex>
#include <string>

#include "mhla/core/arch.hpp"
#include "mhla/core/executor.hpp"
#include "mhla/core/matrix.hpp"
#include "mhla/kernel/packet.hpp"
#include "mhla/layer/rotary_table.hpp"
#include "mhla/layer/rows.hpp"

MHLA_PACKETS_BEGIN

namespace mhla {
inline namespace MHLA_TARGET {

/// Writes the rotated rows of x [N,H*D] into y [N,H*D]. Row r uses row r of the table. In a batch,
/// N is a multiple of the table's rows, and each item begins with row 0 of the table.
/// \param table     a RotaryTable, or some rows of one.
/// \param executor  splits over rows
/// \throws shape_error, option_error for anything that does not fit, before y is touched.
template <LayerInput X>
void rotary(const X& x, const RotaryRows<detail::element_t<X>>& table, Index heads,
            const detail::output_t<X>& y, const ExecutorRef& executor = {});

/// dx += dy rotated by minus the angles, both [N,H*D].
/// \param executor  splits over rows
/// \throws shape_error, option_error for anything that does not fit, before dx is touched.
template <LayerInput X>
void rotary_adjoint(const X& dy, const RotaryRows<detail::element_t<X>>& table, Index heads,
                    const detail::output_t<X>& dx, const ExecutorRef& executor = {});

// ------------------------------------------------------------------------------------------------

namespace detail {

/// Complex numbers in lanes 2j and 2j + 1.
template <class A>
using ComplexPacket = typename Eigen::internal::packet_traits<std::complex<A>>::type;

/// True if a packet of A holds complex numbers: interleaved pairs are multiplied as complex
/// numbers.
template <class A>
inline constexpr bool kComplexPackets = 2 * kLanes<ComplexPacket<A>> == kLanes<Packet<A>>;

/// The rotation of one head at one position.
template <Accumulator A>
class HeadRotation {
  using Turned = ComplexPacket<A>;

 public:
  HeadRotation(const RotaryRows<A>& table, Index position)
      : features_(table.features), pairs_(table.pairs), turn_(table.row(position)) {}

  /// Writes the first R numbers of y from those of x.
  void apply(const A* x, A* y) const {
    if (pairs_ == RotaryPairs::kInterleaved) return apply_interleaved(x, y);
    using namespace Eigen::internal;
    const Index half = features_ / 2;
    const A *const cos = turn_, *const sin = turn_ + half;
    combine(
        y, half,
        [](auto a, auto b, auto c, auto s) { return multiply_add(pnegate(b), s, pmul(a, c)); }, x,
        x + half, cos, sin);
    combine(
        y + half, half,
        [](auto a, auto b, auto c, auto s) { return multiply_add(a, s, pmul(b, c)); }, x, x + half,
        cos, sin);
  }

  /// Adds the first R numbers of dy, rotated back, to dx.
  void add_adjoint(const A* dy, A* dx) const {
    if (pairs_ == RotaryPairs::kInterleaved) return add_adjoint_interleaved(dy, dx);
    const Index half = features_ / 2;
    const A *const cos = turn_, *const sin = turn_ + half;
    update(
        dx, half,
        [](auto sum, auto a, auto b, auto c, auto s) {
          return multiply_add(b, s, multiply_add(a, c, sum));
        },
        dy, dy + half, cos, sin);
    update(
        dx + half, half,
        [](auto sum, auto a, auto b, auto c, auto s) {
          return multiply_add(Eigen::internal::pnegate(a), s, multiply_add(b, c, sum));
        },
        dy, dy + half, cos, sin);
  }

 private:
  void apply_interleaved(const A* x, A* y) const {
    if constexpr (kComplexPackets<A>) {
      combine(
          y, features_,
          [](auto p, auto turn) { return Eigen::internal::pmul(Turned(turn), Turned(p)).v; }, x,
          turn_);
    } else {
      for (Index i = 0; i < features_; i += 2) {
        const A cos = turn_[i], sin = turn_[i + 1];
        y[i] = multiply_add(-x[i + 1], sin, x[i] * cos);
        y[i + 1] = multiply_add(x[i], sin, x[i + 1] * cos);
      }
    }
  }

  void add_adjoint_interleaved(const A* dy, A* dx) const {
    if constexpr (kComplexPackets<A>) {
      update(
          dx, features_,
          [](auto sum, auto g, auto turn) {
            using namespace Eigen::internal;
            return padd(sum, pmul(pconj(Turned(turn)), Turned(g)).v);
          },
          dy, turn_);
    } else {
      for (Index i = 0; i < features_; i += 2) {
        const A cos = turn_[i], sin = turn_[i + 1];
        dx[i] = multiply_add(dy[i + 1], sin, multiply_add(dy[i], cos, dx[i]));
        dx[i + 1] = multiply_add(-dy[i], sin, multiply_add(dy[i + 1], cos, dx[i + 1]));
      }
    }
  }

  Index features_;
  RotaryPairs pairs_;
  const A* turn_;  // a row of the table
};

/// Runs rotate(rotation, from, to) for the rotated features of every head, and pass(from, count,
/// to) for its other features.
/// \throws shape_error, option_error unless the table and the rows of `to` fit those of `from`.
template <Accumulator A, class Rotate, class Pass>
void rotate_heads(const char* function, const char* from_name, MatrixView<const A> from,
                  const RotaryRows<A>& table, Index heads, const char* to_name, MatrixView<A> to,
                  const ExecutorRef& executor, const Rotate& rotate, const Pass& pass) {
  expect_rows(function, from_name, from, -1, -1);
  expect_positive(function, "heads", heads);
  if (from.cols % heads != 0) {
    fail_shape(function, from_name, "has shape " + shape_text({from.rows, from.cols}),
               "columns for " + std::to_string(heads) + " heads");
  }
  const Index width = from.cols / heads, rotated = table.features;
  if (rotated > width) {
    fail_shape(function, "table", "has " + std::to_string(rotated) + " features",
               "at most " + std::to_string(width) + " (the width of a head)");
  }
  expect_whole_items(function, from_name, from.rows, table.positions, "the table's positions");
  expect_rows(function, to_name, to, from.rows, from.cols);
  for_each_layer_strip(from.rows, executor, [&](Index begin, Index count) {
    for (Index r = begin; r < begin + count; ++r) {
      const HeadRotation<A> rotation(table, r % table.positions);
      for (Index c = 0; c < from.cols; c += width) {
        const A* const x = from.row(r) + c;
        A* const y = to.row(r) + c;
        rotate(rotation, x, y);
        pass(x + rotated, width - rotated, y + rotated);
      }
    }
  });
}

}  // namespace detail

template <LayerInput X>
void rotary(const X& x, const RotaryRows<detail::element_t<X>>& table, Index heads,
            const detail::output_t<X>& y, const ExecutorRef& executor) {
  using A = detail::element_t<X>;
  detail::rotate_heads<A>(
      "rotary", "x", x, table, heads, "y", y, executor,
      [](const detail::HeadRotation<A>& rotation, const A* from, A* to) {
        rotation.apply(from, to);
      },
      [](const A* from, Index count, A* to) { std::copy_n(from, count, to); });
}

template <LayerInput X>
void rotary_adjoint(const X& dy, const RotaryRows<detail::element_t<X>>& table, Index heads,
                    const detail::output_t<X>& dx, const ExecutorRef& executor) {
  using A = detail::element_t<X>;
  detail::rotate_heads<A>(
      "rotary_adjoint", "dy", dy, table, heads, "dx", dx, executor,
      [](const detail::HeadRotation<A>& rotation, const A* from, A* to) {
        rotation.add_adjoint(from, to);
      },
      [](const A* from, Index count, A* to) { detail::add_to(from, to, count); });
}

}  // namespace MHLA_TARGET
}  // namespace mhla

MHLA_PACKETS_END

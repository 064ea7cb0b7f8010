#pragma once

/// \file
/// The product of a matrix and an activation of another, and its adjoint.
///
///     y = x * f(g)               x, g, y [N,C], element by element
///     dx += dy * f(g)      dg += dy * x * f'(g)
///
///     f(g) = silu(g) = g / (1 + e^(-g))   or   f(g) = sigmoid(g) = 1 / (1 + e^(-g))
///
/// With silu it is the product of SwiGLU: x and g are outputs of two dense layers on the same
/// input, such as the halves of one layer's columns. Rows of all views are contiguous (column
/// stride 1) at any row stride. Outputs overlap nothing else. Cost: one exponential per element, in
/// the adjoint one per gradient. Source: Shazeer, arXiv:2002.05202.

#include "mhla/core/arch.hpp"
#include "mhla/core/executor.hpp"
#include "mhla/core/matrix.hpp"
#include "mhla/kernel/packet.hpp"
#include "mhla/layer/activation.hpp"
#include "mhla/layer/rows.hpp"

namespace mhla {
inline namespace MHLA_TARGET {

/// Function of a gate before the product.
enum class GateFunction { kSilu, kSigmoid };

/// Writes y = x * f(g), all [N,C].
/// \param executor  splits over rows
/// \throws shape_error, option_error for anything that does not fit, before y is touched.
template <LayerInput X>
void gate(const X& x, const detail::input_t<X>& g, const detail::output_t<X>& y,
          GateFunction function = GateFunction::kSilu, const ExecutorRef& executor = {});

/// Adds the gradients of x and g for the gradient dy of y.
/// \param dx, dg    [N,C] or absent
/// \param executor  splits over rows
/// \throws shape_error, option_error for anything that does not fit, before anything is touched.
template <LayerInput X>
void gate_adjoint(const X& x, const detail::input_t<X>& g, const detail::input_t<X>& dy,
                  const detail::output_t<X>& dx, const detail::output_t<X>& dg,
                  GateFunction function = GateFunction::kSilu, const ExecutorRef& executor = {});

// ------------------------------------------------------------------------------------------------

namespace detail {

/// Calls run(Silu()) or run(Sigmoid()).
template <class Run>
void with_gate_function(GateFunction function, Run&& run) {
  if (function == GateFunction::kSilu) {
    run(Silu());
  } else {
    run(Sigmoid());
  }
}

}  // namespace detail

template <LayerInput X>
void gate(const X& input, const detail::input_t<X>& g, const detail::output_t<X>& y,
          GateFunction function, const ExecutorRef& executor) {
  constexpr const char* kName = "gate";
  const detail::input_t<X> x(input);
  detail::expect_rows(kName, "x", x, -1, -1);
  detail::expect_rows(kName, "g", g, x.rows, x.cols);
  detail::expect_rows(kName, "y", y, x.rows, x.cols);
  detail::with_gate_function(function, [&](auto f) {
    using F = decltype(f);
    const auto product = [](auto p, auto q) { return Eigen::internal::pmul(p, F::value(q)); };
    detail::for_each_layer_strip(x.rows, executor, [&](Index begin, Index count) {
      for (Index r = begin; r < begin + count; ++r) {
        detail::combine(y.row(r), x.cols, product, x.row(r), g.row(r));
      }
    });
  });
}

template <LayerInput X>
void gate_adjoint(const X& input, const detail::input_t<X>& g, const detail::input_t<X>& dy,
                  const detail::output_t<X>& dx, const detail::output_t<X>& dg,
                  GateFunction function, const ExecutorRef& executor) {
  constexpr const char* kName = "gate_adjoint";
  const detail::input_t<X> x(input);
  detail::expect_rows(kName, "x", x, -1, -1);
  detail::expect_rows(kName, "g", g, x.rows, x.cols);
  detail::expect_rows(kName, "dy", dy, x.rows, x.cols);
  detail::expect_rows_or_none(kName, "dx", dx, x.rows, x.cols);
  detail::expect_rows_or_none(kName, "dg", dg, x.rows, x.cols);
  detail::with_gate_function(function, [&](auto f) {
    using F = decltype(f);
    const auto through_product = [](auto sum, auto d, auto q) {
      return detail::multiply_add(d, F::value(q), sum);
    };
    const auto through_gate = [](auto sum, auto d, auto p, auto q) {
      return detail::multiply_add(Eigen::internal::pmul(d, p), F::slope(q), sum);
    };
    detail::for_each_layer_strip(x.rows, executor, [&](Index begin, Index count) {
      for (Index r = begin; r < begin + count; ++r) {
        if (!dx.absent()) detail::update(dx.row(r), x.cols, through_product, dy.row(r), g.row(r));
        if (dg.absent()) continue;
        detail::update(dg.row(r), x.cols, through_gate, dy.row(r), x.row(r), g.row(r));
      }
    });
  });
}

}  // namespace MHLA_TARGET
}  // namespace mhla

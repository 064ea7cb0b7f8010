#pragma once

/// \file
/// Activations, element by element, and their adjoints.
///
///     gelu(x) = x / (1 + e^(-2u)),   u = sqrt(2 / pi) (x + 0.044715 x^3)
///     silu(x) = x / (1 + e^(-x))
///
/// gelu is its tanh form, 0.5 x (1 + tanh(u)), rewritten; silu is also called swish. Rows of all
/// views are contiguous (column stride 1) at any row stride; what is written overlaps nothing else.
/// Cost: an exponential an element. Source: Hendrycks and Gimpel, arXiv:1606.08415.

#include <limits>

#include "mhla/core/arch.hpp"
#include "mhla/core/executor.hpp"
#include "mhla/core/matrix.hpp"
#include "mhla/kernel/packet.hpp"
#include "mhla/layer/rows.hpp"

MHLA_PACKETS_BEGIN

namespace mhla {
inline namespace MHLA_TARGET {

/// Writes gelu(x) into y, both [N,C].
/// \throws shape_error, option_error for anything that does not fit, before y is touched.
template <LayerInput X>
void gelu(const X& x, const detail::output_t<X>& y, const ExecutorRef& executor = {});
/// dx += dy * gelu'(x), all [N,C].
/// \throws shape_error, option_error for anything that does not fit, before dx is touched.
template <LayerInput X>
void gelu_adjoint(const X& x, const detail::input_t<X>& dy, const detail::output_t<X>& dx,
                  const ExecutorRef& executor = {});

/// Writes silu(x) into y, both [N,C].
/// \throws shape_error, option_error for anything that does not fit, before y is touched.
template <LayerInput X>
void silu(const X& x, const detail::output_t<X>& y, const ExecutorRef& executor = {});
/// dx += dy * silu'(x), all [N,C].
/// \throws shape_error, option_error for anything that does not fit, before dx is touched.
template <LayerInput X>
void silu_adjoint(const X& x, const detail::input_t<X>& dy, const detail::output_t<X>& dx,
                  const ExecutorRef& executor = {});

// ------------------------------------------------------------------------------------------------

namespace detail {

/// The logistic function s = 1 / (1 + e^(-x)) and 1 - s, neither of which cancels.
template <class P>
struct Logistic {
  P s, rest;

  MHLA_INLINE explicit Logistic(P x) {
    using namespace Eigen::internal;
    using A = typename unpacket_traits<P>::type;
    const P one = pset1<P>(A(1)), t = exponential(pnegate(pabs(x)));
    const P larger = pdiv(one, padd(one, t)), smaller = pmul(t, larger);
    const auto positive = pcmp_lt(pset1<P>(A(0)), x);
    s = pselect(positive, larger, smaller);
    rest = pselect(positive, smaller, larger);
  }
};

/// The logistic function and its slope, lane by lane.
struct Sigmoid {
  template <class P>
  MHLA_INLINE static P value(P x) {
    using namespace Eigen::internal;
    using A = typename unpacket_traits<P>::type;
    const P one = pset1<P>(A(1));
    return pdiv(one, padd(one, exponential(pnegate(x))));
  }
  template <class P>
  MHLA_INLINE static P slope(P x) {
    const Logistic<P> l(x);
    return Eigen::internal::pmul(l.s, l.rest);
  }
};

/// silu and its slope, lane by lane.
struct Silu {
  template <class P>
  MHLA_INLINE static P value(P x) {
    using namespace Eigen::internal;
    using A = typename unpacket_traits<P>::type;
    return pdiv(x, padd(pset1<P>(A(1)), exponential(pnegate(x))));
  }
  /// s + s (1 - s) x with s = 1 / (1 + e^(-x)).
  template <class P>
  MHLA_INLINE static P slope(P x) {
    const Logistic<P> l(x);
    return multiply_add(Eigen::internal::pmul(l.s, l.rest), x, l.s);
  }
};

/// gelu and its slope, lane by lane.
struct Gelu {
  static constexpr double kScale = 0.797884560802865355879892119868764;  // sqrt(2 / pi)
  static constexpr double kCubic = 0.044715;

  template <class P>
  static P constant(double value) {
    using A = typename Eigen::internal::unpacket_traits<P>::type;
    return Eigen::internal::pset1<P>(static_cast<A>(value));
  }
  /// -2u.
  template <class P>
  MHLA_INLINE static P exponent(P x, P square) {
    const P factor =
        multiply_add(square, constant<P>(-2 * kScale * kCubic), constant<P>(-2 * kScale));
    return Eigen::internal::pmul(x, factor);
  }
  template <class P>
  MHLA_INLINE static P value(P x) {
    using namespace Eigen::internal;
    return pdiv(x, padd(constant<P>(1), exponential(exponent(x, pmul(x, x)))));
  }
  /// s + s (1 - s) x 2u' with s = 1 / (1 + e^(-2u)).
  template <class P>
  MHLA_INLINE static P slope(P x) {
    using namespace Eigen::internal;
    using A = typename unpacket_traits<P>::type;
    const P square = pmul(x, x);
    const Logistic<P> l(pnegate(exponent(x, square)));
    P derivative =
        multiply_add(square, constant<P>(6 * kScale * kCubic), constant<P>(2 * kScale));  // 2u'
    derivative = pmin(derivative, pset1<P>(std::numeric_limits<A>::max()));  // finite where s is 0
    return multiply_add(pmul(pmul(l.s, l.rest), x), derivative, l.s);
  }
};

/// y = f(x) of an activation F.
template <class F, Accumulator A>
void activate_rows(MatrixView<const A> x, MatrixView<A> y) {
  for (Index r = 0; r < x.rows; ++r) {
    transform(x.row(r), y.row(r), x.cols, [](auto p) { return F::value(p); });
  }
}

template <class F, Accumulator A>
void activate(const char* name, MatrixView<const A> x, MatrixView<A> y,
              const ExecutorRef& executor) {
  expect_rows(name, "x", x, -1, -1);
  expect_rows(name, "y", y, x.rows, x.cols);
  for_each_layer_strip(x.rows, executor, [&](Index begin, Index count) {
    activate_rows<F, A>(x.middle_rows(begin, count), y.middle_rows(begin, count));
  });
}

template <class F, Accumulator A>
void activate_adjoint(const char* name, MatrixView<const A> x, MatrixView<const A> dy,
                      MatrixView<A> dx, const ExecutorRef& executor) {
  expect_rows(name, "x", x, -1, -1);
  expect_rows(name, "dy", dy, x.rows, x.cols);
  expect_rows(name, "dx", dx, x.rows, x.cols);
  for_each_layer_strip(x.rows, executor, [&](Index begin, Index count) {
    for (Index r = begin; r < begin + count; ++r) {
      update(
          dx.row(r), x.cols,
          [](auto sum, auto p, auto g) { return multiply_add(g, F::slope(p), sum); }, x.row(r),
          dy.row(r));
    }
  });
}

}  // namespace detail

template <LayerInput X>
void gelu(const X& x, const detail::output_t<X>& y, const ExecutorRef& executor) {
  detail::activate<detail::Gelu, detail::element_t<X>>("gelu", detail::input_t<X>(x), y, executor);
}

template <LayerInput X>
void gelu_adjoint(const X& x, const detail::input_t<X>& dy, const detail::output_t<X>& dx,
                  const ExecutorRef& executor) {
  detail::activate_adjoint<detail::Gelu, detail::element_t<X>>(
      "gelu_adjoint", detail::input_t<X>(x), dy, dx, executor);
}

template <LayerInput X>
void silu(const X& x, const detail::output_t<X>& y, const ExecutorRef& executor) {
  detail::activate<detail::Silu, detail::element_t<X>>("silu", detail::input_t<X>(x), y, executor);
}

template <LayerInput X>
void silu_adjoint(const X& x, const detail::input_t<X>& dy, const detail::output_t<X>& dx,
                  const ExecutorRef& executor) {
  detail::activate_adjoint<detail::Silu, detail::element_t<X>>(
      "silu_adjoint", detail::input_t<X>(x), dy, dx, executor);
}

}  // namespace MHLA_TARGET
}  // namespace mhla

MHLA_PACKETS_END

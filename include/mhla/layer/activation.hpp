#pragma once

/// \file
/// Activations, element by element, and their adjoints.
///
///     gelu(x)     = x / (1 + e^(-2u)),   u = sqrt(2 / pi) (x + 0.044715 x^3)
///     erf_gelu(x) = x Phi(x),            Phi(x) = (1 + erf(x / sqrt(2))) / 2
///     silu(x)     = x / (1 + e^(-x))
///
/// gelu is the tanh form of erf_gelu, 0.5 x (1 + tanh(u)), rewritten. silu is also called swish.
/// Rows of all views are contiguous (column stride 1) at any row stride. Outputs overlap nothing
/// else. Cost: one exponential per element. erf_gelu also takes a polynomial of degree 11 in float,
/// or 23 in double. Source: Hendrycks and Gimpel, arXiv:1606.08415.

#include <concepts>
#include <limits>

#include "mhla/core/arch.hpp"
#include "mhla/core/executor.hpp"
#include "mhla/core/matrix.hpp"
#include "mhla/kernel/exponential.hpp"
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

/// Writes erf_gelu(x) into y, both [N,C].
/// \throws shape_error, option_error for anything that does not fit, before y is touched.
template <LayerInput X>
void erf_gelu(const X& x, const detail::output_t<X>& y, const ExecutorRef& executor = {});
/// dx += dy * erf_gelu'(x), all [N,C].
/// \throws shape_error, option_error for anything that does not fit, before dx is touched.
template <LayerInput X>
void erf_gelu_adjoint(const X& x, const detail::input_t<X>& dy, const detail::output_t<X>& dx,
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
    const P one = pset1<P>(A(1)), t = exponential_below_zero(pnegate(pabs(x)));
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

}  // namespace detail

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
        detail::multiply_add(square, constant<P>(-2 * kScale * kCubic), constant<P>(-2 * kScale));
    return Eigen::internal::pmul(x, factor);
  }
  template <class P>
  MHLA_INLINE static P value(P x) {
    using namespace Eigen::internal;
    return pdiv(x, padd(constant<P>(1), detail::exponential(exponent(x, pmul(x, x)))));
  }
  /// s + s (1 - s) x 2u' with s = 1 / (1 + e^(-2u)).
  template <class P>
  MHLA_INLINE static P slope(P x) {
    using namespace Eigen::internal;
    using A = typename unpacket_traits<P>::type;
    const P square = pmul(x, x);
    const detail::Logistic<P> l(pnegate(exponent(x, square)));
    P derivative = detail::multiply_add(square, constant<P>(6 * kScale * kCubic),
                                        constant<P>(2 * kScale));            // 2u'
    derivative = pmin(derivative, pset1<P>(std::numeric_limits<A>::max()));  // finite where s is 0
    const P weighted = detail::as_rounded(pmul(pmul(l.s, l.rest), x));  // 0 where 2u' x overflows
    return detail::multiply_add(weighted, derivative, l.s);
  }
};

/// erf_gelu and its slope, lane by lane.
struct ErfGelu {
  template <class P>
  MHLA_INLINE static P value(P x) {  // x - x Phi(-x) or x Phi(x), whose factor decays
    using namespace Eigen::internal;
    using A = typename unpacket_traits<P>::type;
    const P size = pabs(x), tail = pmul(bell(x), ratio(size));
    return psub(pmax(x, pset1<P>(A(0))), pmul(size, tail));
  }
  /// Phi(x) + x phi(x).
  template <class P>
  MHLA_INLINE static P slope(P x) {
    using namespace Eigen::internal;
    using A = typename unpacket_traits<P>::type;
    constexpr A kDensity = A(0.398942280401432677939946059934382);  // 1 / sqrt(2 pi)
    const P size = pabs(x), difference = psub(ratio(size), pmul(size, pset1<P>(kDensity)));
    const P below = pmul(bell(x), difference);  // of -|x|
    return pselect(pcmp_lt(pset1<P>(A(0)), x), psub(pset1<P>(A(1)), below), below);
  }

 private:
  static constexpr double kOfFloat[] = {0.1538386089,    -0.1330765009,    0.09906119603,
                                        -0.06270660917,  0.03300321301,    -0.01382398782,
                                        0.004162777966,  -0.0005975526308, -0.0001671944122,
                                        0.0001067654076, -4.374354502e-06, -7.887146718e-06};
  static constexpr double kOfDouble[] = {
      0.15383860995001258,     -0.13307650057801138,    0.099061123193996126,
      -0.062706631334257176,   0.033004073234037937,    -0.013823727741391342,
      0.0041590133606638942,   -0.00059867535206952697, -0.00015957388568575725,
      0.00010897979548908732,  -1.1875117032688183e-05, -9.9524729350153607e-06,
      3.3361687039280987e-06,  7.9589143615840991e-07,  -5.5377232667458814e-07,
      -6.6741207016719542e-08, 8.6691220389515071e-08,  7.7506618448716787e-09,
      -1.3480322359544063e-08, -1.4136091307961809e-09, 1.8537318074054237e-09,
      2.6442059255633866e-10,  -1.5685592727271842e-10, -2.8383843787161177e-11};

  /// e^(-x^2 / 2).
  template <class P>
  MHLA_INLINE static P bell(P x) {
    using namespace Eigen::internal;
    using A = typename unpacket_traits<P>::type;
    return detail::exponential_below_zero(pmul(pmul(x, x), pset1<P>(A(-0.5))));
  }
  /// Phi(-x) e^(x^2 / 2) for x >= 0. With q = 5 / (5 + x) it is q times a polynomial of 1 - 2q,
  /// which interpolates at the Chebyshev nodes. Its relative error is below half a unit roundoff.
  template <class P>
  MHLA_INLINE static P ratio(P x) {
    using namespace Eigen::internal;
    using A = typename unpacket_traits<P>::type;
    constexpr bool kSingle = std::same_as<A, float>;
    constexpr const double* kCoefficients = kSingle ? kOfFloat : kOfDouble;
    const auto coefficient = [](int i) { return pset1<P>(static_cast<A>(kCoefficients[i])); };
    const P q = pdiv(pset1<P>(A(5)), padd(pset1<P>(A(5)), x));
    const P t = detail::multiply_add(q, pset1<P>(A(-2)), pset1<P>(A(1)));
    constexpr int kDegree = kSingle ? 11 : 23;
    P y = coefficient(kDegree);
    MHLA_UNROLL
    for (int i = kDegree - 1; i >= 0; --i) y = detail::multiply_add(y, t, coefficient(i));
    return pmul(q, y);
  }
};

namespace detail {

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
  detail::activate<Gelu, detail::element_t<X>>("gelu", detail::input_t<X>(x), y, executor);
}

template <LayerInput X>
void gelu_adjoint(const X& x, const detail::input_t<X>& dy, const detail::output_t<X>& dx,
                  const ExecutorRef& executor) {
  detail::activate_adjoint<Gelu, detail::element_t<X>>("gelu_adjoint", detail::input_t<X>(x), dy,
                                                       dx, executor);
}

template <LayerInput X>
void erf_gelu(const X& x, const detail::output_t<X>& y, const ExecutorRef& executor) {
  detail::activate<ErfGelu, detail::element_t<X>>("erf_gelu", detail::input_t<X>(x), y, executor);
}

template <LayerInput X>
void erf_gelu_adjoint(const X& x, const detail::input_t<X>& dy, const detail::output_t<X>& dx,
                      const ExecutorRef& executor) {
  detail::activate_adjoint<ErfGelu, detail::element_t<X>>("erf_gelu_adjoint", detail::input_t<X>(x),
                                                          dy, dx, executor);
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

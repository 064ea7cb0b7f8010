#pragma once

/// \file
/// Derivatives of the naive form that come from no derivative written by hand: in one direction by
/// dual numbers, and element by element by central differences.

#include <cmath>

#include "support/dual.hpp"
#include "support/gradient_problem.hpp"

namespace mhla::test {

/// <J x', dout> with its size.
template <class T>
TermsOf<T> directional_derivative(const Problem<T>& p, const Variables<double>& direction,
                                  const Matrix<T>& dout) {
  using S = TermsOf<T>;
  auto x = map_variables<Dual<S>>(values_of(p), [](double a) { return Dual<S>(a); });
  for_each_tensor(
      [](const char*, auto& to, const auto& tangent) {
        for (Index i = 0; i < static_cast<Index>(to.size()); ++i) {
          to.data()[i].tangent = S(tangent.data()[i]);
        }
      },
      x, direction);
  const auto out = naive_attention(naive_at(p, x));
  S sum(0);
  for (Index t = 0; t < out.rows(); ++t) {
    if (p.query_mask.size() > 0 && !p.query_mask(0, t)) continue;
    for (Index e = 0; e < out.cols(); ++e) {
      sum += out(t, e).tangent * S(static_cast<double>(dout(t, e)));
    }
  }
  return sum;
}

/// <x', g>, with rounding errors of long double.
inline long double inner_product(const Variables<double>& direction, const Variables<double>& g) {
  long double sum = 0;
  for_each_tensor(
      [&sum](const char*, const auto& a, const auto& b) {
        for (Index i = 0; i < static_cast<Index>(a.size()); ++i) {
          sum += static_cast<long double>(a.data()[i]) * static_cast<long double>(b.data()[i]);
        }
      },
      direction, g);
  return sum;
}

/// sum_t dout_t . o_t at the point x.
template <class T>
long double loss(const Problem<T>& p, const Variables<long double>& x, const Matrix<T>& dout) {
  const auto out = naive_attention(naive_at(p, x));
  long double sum = 0;
  for (Index t = 0; t < out.rows(); ++t) {
    if (p.query_mask.size() > 0 && !p.query_mask(0, t)) continue;
    for (Index e = 0; e < out.cols(); ++e) sum += out(t, e) * static_cast<long double>(dout(t, e));
  }
  return sum;
}

/// The gradient of `loss` by central differences; 0 outside the band of the mixing matrix.
/// \param h  the step: the error is about h^2 times a third derivative, and 2^-63 / h times the
///           loss
template <class T>
Variables<double> central_differences(const Problem<T>& p, const Matrix<T>& dout, long double h) {
  auto x = map_variables<long double>(values_of(p),
                                      [](double a) { return static_cast<long double>(a); });
  auto g = map_variables<double>(values_of(p), [](double) { return 0.0; });
  for_each_tensor(
      [&](const char*, auto& to, auto& at) {
        for (Index i = 0; i < static_cast<Index>(at.size()); ++i) {
          long double& element = at.data()[i];
          const long double before = element;
          element = before + h;
          const long double above = loss(p, x, dout);
          element = before - h;
          const long double below = loss(p, x, dout);
          element = before;
          to.data()[i] = static_cast<double>((above - below) / (2 * h));
        }
      },
      g, x);
  for (Index i = 0; i < g.mixing.rows(); ++i) {
    for (Index b = 0; b < g.mixing.cols(); ++b) {
      if (!in_band(p, i, b)) g.mixing(i, b) = 0;
    }
  }
  return g;
}

}  // namespace mhla::test

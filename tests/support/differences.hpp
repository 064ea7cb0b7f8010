#pragma once

/// \file
/// Gradients by central differences, of definitions in long double.

#include <vector>

#include "mhla/core/matrix.hpp"

namespace mhla::test {

using WideMatrix = Matrix<long double>;

/// Gradient of f() with respect to every element of x, which f reads. With steps of 1e-6 it is off
/// by 1e-12 times a sixth of the third derivative, and by 1e-13 times the value.
template <class F>
WideMatrix differences(WideMatrix& x, F&& f) {
  constexpr long double kStep = 1e-6L;
  WideMatrix gradient(x.rows(), x.cols());
  for (Index i = 0; i < x.size(); ++i) {
    const long double at = x.data()[i];
    x.data()[i] = at + kStep;
    const long double above = f();
    x.data()[i] = at - kStep;
    gradient.data()[i] = (above - f()) / (2 * kStep);
    x.data()[i] = at;
  }
  return gradient;
}

/// The largest |a - b|.
template <class A, class B>
long double distance(const Eigen::MatrixBase<A>& a, const Eigen::MatrixBase<B>& b) {
  if (a.rows() != b.rows() || a.cols() != b.cols()) return 1e30L;
  if (a.size() == 0) return 0;
  return (a.template cast<long double>() - b.template cast<long double>()).cwiseAbs().maxCoeff();
}

}  // namespace mhla::test

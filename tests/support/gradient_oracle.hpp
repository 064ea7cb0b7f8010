#pragma once

/// \file
/// Required gradients g = J^T dout of a problem. For a direction x' of all variables, dual numbers
/// give J x' through the definition of the form, and
///
///     <J x', dout> = <x', g>
///
/// Both sides are the same sum over the paths from an input to an output, added up in another
/// order. So they differ by at most gamma_m s, with s the size of <J x', dout> (dual.hpp), and by
/// one rounding of storage. A direction with a single nonzero element gives that element of g.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "support/any_gradient.hpp"
#include "support/reference.hpp"

namespace mhla::test {

/// Upper bound of the roundings of any term, forward and backward: sums over tokens, blocks,
/// features, values and the elements of a summary, the feature map, and a few products.
template <class T>
Index longest_chain(const GradientProblem<T>& p) {
  const Index d =
      std::max({p.tensors[kQ].cols(), p.tensors[kK].cols(), p.tensors[kNormalizerQ].cols()});
  const Index f = p.op.query_map.features(d), e = p.tensors[kV].cols();
  return 4 * (p.queries() + p.keys() + p.pattern.rows() + p.pattern.cols()) + 8 * (d + f + e) +
         f * (e + 1) + 300;
}

/// One problem, prepared for any direction.
template <class T>
class Oracle {
  using A = accumulator_t<T>;
  using D = Dual<A>;

 public:
  Oracle(const AnyGradient<T>& form, const GradientProblem<T>& p)
      : form_(form), problem_(p), x_(values_of<D>(p)) {}

  /// Expects <x', g> where g was added to `start`. Elements that g lacks are no variables.
  /// \return the error divided by its bound
  double expect(const Variables<long double>& direction, const Variables<long double>& start,
                const Variables<long double>& g) {
    using Real = long double;
    constexpr Real kStorage = kStorageRoundoff<T>;
    constexpr Real kTiny = kStorage > 0 ? 0x1p-25L : 0;
    Real got = 0, expected = 0, size = 0, storage = 0;
    for (const Part part : kAllParts) {
      const Real kept = part < kMixing ? kStorage : 0;  // parameters are stored like sums
      for (Index i = 0; i < g[part].size(); ++i) {
        const Real along = direction[part].data()[i], before = along * start[part].data()[i];
        D& x = x_[part].data()[i];
        x.tangent = along;
        x.tangent_size = std::abs(along);
        got += along * g[part].data()[i];
        expected += before;
        size += std::abs(before);
        storage += kept * std::abs(along * g[part].data()[i]) + (kept > 0 ? kTiny : 0);
      }
    }
    const Matrix<D> out = form_.definition(problem_, x_);
    for (Index i = 0; i < out.size(); ++i) {
      const auto dout = static_cast<Real>(static_cast<A>(problem_.dout.data()[i]));
      expected += out.data()[i].tangent * dout;
      size += out.data()[i].tangent_size * std::abs(dout);
    }
    // Second-order terms are far below a sixteenth, since no denominator is near 0.
    const Real bound = (gamma(longest_chain(problem_), Real(kUnitRoundoff<T>)) * size + storage) *
                       (1 + Real(1) / 16);
    const Real error = std::abs(got - expected);
    EXPECT_LE(error, bound) << form_.name << ": <x', g> is " << got << ", expected " << expected
                            << "\n"
                            << problem_.text();
    return error == 0 ? 0 : static_cast<double>(error / bound);
  }

 private:
  const AnyGradient<T>& form_;
  const GradientProblem<T>& problem_;
  Variables<D> x_;
};

/// sum_t dout_t . o_t at the point x.
inline long double loss(const AnyGradient<double>& form, const GradientProblem<double>& p,
                        const Variables<Dual<double>>& x) {
  const Matrix<Dual<double>> out = form.definition(p, x);
  long double sum = 0;
  for (Index i = 0; i < out.size(); ++i) {
    sum += out.data()[i].value * static_cast<long double>(p.dout.data()[i]);
  }
  return sum;
}

/// Expects every element of the gradients in double to be the slope of the loss, within 1e-9 of the
/// largest element of its part. A central difference with step h is off by h^2 times a third
/// derivative, and by 2^-63 / h times the loss. Combining steps h = 2^-20 and 2 h (Richardson)
/// leaves h^4 times a fifth derivative.
inline void expect_central_differences(const AnyGradient<double>& form,
                                       const GradientProblem<double>& p) {
  constexpr long double kStep = 0x1p-20L;
  auto x = values_of<Dual<double>>(p);
  const auto g = gradients_of(form, p).values<long double>();
  for (const Part part : kAllParts) {
    const long double largest = g[part].size() == 0 ? 0 : g[part].cwiseAbs().maxCoeff();
    for (Index i = 0; i < g[part].size(); ++i) {
      const auto difference = [&, at = x[part].data()[i].value](long double h) {
        long double& element = x[part].data()[i].value;
        element = at + h;
        const long double above = loss(form, p, x);
        element = at - h;
        const long double below = loss(form, p, x);
        element = at;
        return (above - below) / (2 * h);
      };
      const long double slope = (4 * difference(kStep) - difference(2 * kStep)) / 3;
      EXPECT_LE(std::abs(g[part].data()[i] - slope), 1e-9L * std::max(largest, 1e-3L))
          << form.name << ": d" << kPartNames[part] << "[" << i << "] is " << g[part].data()[i]
          << ", expected " << slope << "\n"
          << p.text();
    }
  }
}

}  // namespace mhla::test

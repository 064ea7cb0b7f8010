// Prints the largest relative error of e^x, in units roundoff, against std::exp of long double, and
// the slopes of gelu where its products overflow (reassociation.cmake).

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <limits>
#include <vector>

#include "mhla/layer/activation.hpp"
#include "mhla/policy/feature_map.hpp"

namespace {

using namespace mhla;

template <class A>
double roundoffs(A y, A x) {
  const long double exact = std::exp(static_cast<long double>(x));
  return static_cast<double>(std::abs(y - exact) / exact * 2 / std::numeric_limits<A>::epsilon());
}

/// The largest error of Exp, of EluPlusOne below 0, and of detail::exponential.
template <class A>
double largest_error() {
  using Limits = std::numeric_limits<A>;
  constexpr Index kCount = 50000;
  const A low = std::log(Limits::min()), high = std::log(Limits::max());
  std::vector<A> x, y(kCount), elu(kCount);
  for (Index i = 0; i < kCount; ++i) {
    const A share = static_cast<A>(i) / A(kCount - 1);
    x.push_back(std::clamp(low + share * (high - low), low * A(0.999999), high * A(0.999999)));
  }
  Exp()(x.data(), y.data(), kCount);
  EluPlusOne()(x.data(), elu.data(), kCount);
  double largest = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    largest = std::max({largest, roundoffs(y[i], x[i]), x[i] > 0 ? 0 : roundoffs(elu[i], x[i]),
                        roundoffs(detail::exponential(x[i]), x[i])});
  }
  return largest;
}

/// True if gelu has slope 0 far below 0 and slope 1 far above 0.
bool slopes_are_right() {
  const Matrix<float> x{{-1e30f, -1e20f, 1e20f, 1e30f}}, dy = Matrix<float>::Ones(1, 4);
  Matrix<float> slope = Matrix<float>::Zero(1, 4);
  gelu_adjoint(x, dy, slope);
  std::printf("slopes of gelu: %g %g %g %g\n", double{slope(0)}, double{slope(1)}, double{slope(2)},
              double{slope(3)});
  return slope == Matrix<float>{{0, 0, 1, 1}};
}

}  // namespace

int main() {
  const double of_float = largest_error<float>(), of_double = largest_error<double>();
  std::printf("roundoffs of float: %g, of double: %g\n", of_float, of_double);
  const bool close = std::max(of_float, of_double) <= detail::kExponentialRoundoffs;
  return slopes_are_right() && close ? 0 : 1;
}

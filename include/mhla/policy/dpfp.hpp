#pragma once

/// \file
/// Stage 1 of 5: a feature map without weights that widens the features.
///
///     Dpfp    u * roll(u, j) for j = 1..nu,  u = [r, -r],  r = max(x, 0)         D -> 2 nu D
///
/// This follows the released code. The paper defines u = [max(x, 0), max(-x, 0)] instead.
/// Cost: 2*nu*D products per token, the adjoint and the tangent twice as many.
/// Source: flash-linear-attention's feature maps as the authors' language layer uses them.

#include <string>
#include <type_traits>

#include "mhla/core/arch.hpp"
#include "mhla/core/error.hpp"
#include "mhla/core/scalar.hpp"
#include "mhla/policy/feature_map.hpp"

namespace mhla {
inline namespace MHLA_TARGET {

/// u * roll(u, j) for j = 1..nu, one after another; u = [max(x, 0), -max(x, 0)].
struct Dpfp {
  int nu = 4;

  /// \throws option_error if nu < 1.
  constexpr Index features(Index d) const {
    if (nu < 1) detail::fail_option("Dpfp", "nu", "is " + std::to_string(nu), "at least 1");
    return 2 * d * nu;
  }
  constexpr Index weights() const { return 0; }
  template <Accumulator A>
  void operator()(const A* x, A* y, Index d) const;
  template <Accumulator A>
  void adjoint(const A* x, const A* y, const A* dy, A* dx, Index d,
               std::type_identity_t<A>* dweights = nullptr) const;
  template <Accumulator A>
  void tangent(const A* x, const A* y, const A* dx, A* dy, Index d,
               std::type_identity_t<const A>* dweights = nullptr) const;
};

static_assert(TangentFeatureMap<Dpfp, float> && !StripFeatureMap<Dpfp, float>);

// ------------------------------------------------------------------------------------------------

namespace detail {

/// u = [max(x, 0), -max(x, 0)] for x [D], as a circle of 2D elements.
template <Accumulator A>
struct DpfpElements {
  const A* x;
  Index d;

  Index around(Index i) const { return (i % (2 * d) + 2 * d) % (2 * d); }
  A operator[](Index i) const {
    const A value = x[i < d ? i : i - d];
    const A positive = value < 0 ? A(0) : value;
    return i < d ? positive : -positive;
  }
};

}  // namespace detail

template <Accumulator A>
void Dpfp::operator()(const A* x, A* y, Index d) const {
  const detail::DpfpElements<A> u{x, d};
  for (Index j = 1; j <= nu; ++j) {
    A* const part = y + (j - 1) * 2 * d;
    for (Index i = 0; i < 2 * d; ++i) part[i] = u[i] * u[u.around(i - j)];
  }
}

template <Accumulator A>
void Dpfp::adjoint(const A* x, const A* /*y*/, const A* dy, A* dx, Index d,
                   std::type_identity_t<A>* /*dweights*/) const {
  const detail::DpfpElements<A> u{x, d};
  // u[i] is the first factor of feature i of each part, and the second one of feature i + j.
  const auto du = [&](Index i) {
    A total = 0;
    for (Index j = 1; j <= nu; ++j) {
      const A* const part = dy + (j - 1) * 2 * d;
      const Index before = u.around(i - j), after = u.around(i + j);
      total += part[i] * u[before] + part[after] * u[after];
    }
    return total;
  };
  for (Index i = 0; i < d; ++i) {
    if (x[i] > 0) dx[i] += du(i) - du(d + i);
  }
}

template <Accumulator A>
void Dpfp::tangent(const A* x, const A* /*y*/, const A* dx, A* dy, Index d,
                   std::type_identity_t<const A>* /*dweights*/) const {
  const detail::DpfpElements<A> u{x, d};
  const auto du = [&](Index i) {
    const Index place = i < d ? i : i - d;
    const A slope = x[place] > 0 ? dx[place] : A(0);
    return i < d ? slope : -slope;
  };
  for (Index j = 1; j <= nu; ++j) {
    A* const part = dy + (j - 1) * 2 * d;
    for (Index i = 0; i < 2 * d; ++i) {
      const Index before = u.around(i - j);
      part[i] = du(i) * u[before] + u[i] * du(before);
    }
  }
}

}  // namespace MHLA_TARGET
}  // namespace mhla

#pragma once

/// \file
/// Stage 4 of 5: constraints of mixing matrices, applied after each step of training. They hold for
/// every matrix of a view.
/// Cost: one pass over the coefficients. Source: arXiv:2601.07832, section 4.2; released vision and
/// language layers.

#include <algorithm>
#include <cmath>
#include <string>
#include <type_traits>

#include "mhla/core/arch.hpp"
#include "mhla/core/error.hpp"
#include "mhla/core/matrix.hpp"
#include "mhla/policy/mixing_matrix.hpp"

namespace mhla {
inline namespace MHLA_TARGET {

/// Clamps every stored coefficient to [low, high] (vision layers: [0, 1] after each step). Zeros
/// outside a pattern stay.
/// \throws option_error unless low <= high.
template <Accumulator A>
void clamp(MixingView<A> m, std::type_identity_t<A> low, std::type_identity_t<A> high);

/// Clamps to [low, high] and zeroes coefficients above the diagonal (language layers: [1e-5, 1]).
template <Accumulator A>
void clamp_to_lower_triangle(MixingView<A> m, std::type_identity_t<A> low,
                             std::type_identity_t<A> high);

/// Divides every row by its sum.
/// \throws option_error, before any change, if the sum of a row is 0 or not finite.
template <Accumulator A>
void normalize_rows(MixingView<A> m);

template <Accumulator A>
void clamp(MixingMatrix<A>& m, std::type_identity_t<A> low, std::type_identity_t<A> high) {
  clamp(m.view(), low, high);
}
template <Accumulator A>
void clamp_to_lower_triangle(MixingMatrix<A>& m, std::type_identity_t<A> low,
                             std::type_identity_t<A> high) {
  clamp_to_lower_triangle(m.view(), low, high);
}
template <Accumulator A>
void normalize_rows(MixingMatrix<A>& m) {
  normalize_rows(m.view());
}

// ------------------------------------------------------------------------------------------------

template <Accumulator A>
void clamp(MixingView<A> m, std::type_identity_t<A> low, std::type_identity_t<A> high) {
  if (!(low <= high)) {
    detail::fail_option("clamp", "low", "is " + std::to_string(low),
                        "at most high, which is " + std::to_string(high));
  }
  m.for_each([low, high](A& c) { c = std::clamp(c, low, high); });
}

template <Accumulator A>
void clamp_to_lower_triangle(MixingView<A> m, std::type_identity_t<A> low,
                             std::type_identity_t<A> high) {
  clamp(m, low, high);
  m.for_each_place([](Index, Index i, Index b, A& c) { c = b > i ? 0 : c; });
}

namespace detail {

/// Throws unless a row can be divided by its sum.
inline void expect_row_sum(const char* function, const char* argument, Index row, Index matrix,
                           Index matrices, double sum) {
  if (sum != 0 && std::isfinite(sum)) return;
  const std::string of = matrices > 1 ? " of matrix " + std::to_string(matrix) : "";
  fail_option(function, argument,
              "has row " + std::to_string(row) + of + " with sum " + std::to_string(sum),
              "rows with a finite sum other than 0");
}

/// Divides every row of a matrix, which errors call `argument`, by its sum.
template <Accumulator A>
void normalize_rows(const char* function, const char* argument, const MixingView<A>& m) {
  const auto row_sum = [](const MixingView<A>& of, Index i, A total = 0) {
    of.for_each_in_row(i, [&](Index, A c) { total += c; });
    return total;
  };
  const auto for_each_row = [&m](auto&& f) {
    for (Index n = 0; n < m.matrices(); ++n) {
      for (Index i = 0; i < m.rows(); ++i) f(m.matrix(n), i, n);
    }
  };
  for_each_row([&](const MixingView<A>& of, Index i, Index n) {
    expect_row_sum(function, argument, i, n, m.matrices(), row_sum(of, i));
  });
  for_each_row([&](const MixingView<A>& of, Index i, Index) {
    of.for_each_in_row(i, [total = row_sum(of, i)](Index, A& c) { c /= total; });
  });
}

}  // namespace detail

template <Accumulator A>
void normalize_rows(MixingView<A> m) {
  detail::normalize_rows("normalize_rows", "m", m);
}

}  // namespace MHLA_TARGET
}  // namespace mhla

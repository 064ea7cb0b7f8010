#pragma once

/// \file
/// Derivatives of mixing by distance (distance_mixing.hpp): the tangent of a matrix, and the
/// gradient of its table.
///
///     dm_ib = (dw_ib - m_ib sum_b' dw_ib') / sum_b' w_ib'      dm_ib = dw_ib without a division
///
/// Cost: a few operations per coefficient, one table in double.

#include <algorithm>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "mhla/core/arch.hpp"
#include "mhla/core/error.hpp"
#include "mhla/policy/distance_mixing.hpp"
#include "mhla/policy/grid_partition.hpp"
#include "mhla/policy/mixing_constraints.hpp"
#include "mhla/policy/mixing_matrix.hpp"

namespace mhla {
inline namespace MHLA_TARGET {

/// Returns the tangent of distance_matrix(f, blocks, pattern) for the tangent df of f. Tangents of
/// forms take it as that of their mixing matrix.
/// \throws shape_error, option_error as distance_matrix, and unless df has the offsets and the
///     heads of f.
template <class A>
MixingMatrix<std::remove_const_t<A>> distance_matrix_tangent(
    const DistanceView<A>& f, const std::type_identity_t<DistanceView<const A>>& df,
    GridShape blocks, const Pattern& pattern);
template <Accumulator A>
MixingMatrix<A> distance_matrix_tangent(const DistanceMixing<A>& f,
                                        const std::type_identity_t<DistanceView<const A>>& df,
                                        GridShape blocks, const Pattern& pattern) {
  return distance_matrix_tangent(f.view(), df, blocks, pattern);
}

/// Adds the gradient of f for the gradient dm of distance_matrix(f, blocks, pattern of dm). Sums
/// are in double, and each is added once.
/// \throws shape_error unless dm is [M,M] with a matrix for each table, and df has the offsets and
///     the heads of f; option_error as above. Then df is not touched.
template <class A>
void distance_matrix_adjoint(
    const DistanceView<A>& f, GridShape blocks,
    const std::type_identity_t<MixingView<const std::remove_const_t<A>>>& dm,
    const std::type_identity_t<DistanceView<std::remove_const_t<A>>>& df);
template <Accumulator A>
void distance_matrix_adjoint(const DistanceMixing<A>& f, GridShape blocks,
                             const std::type_identity_t<MixingView<const A>>& dm,
                             const std::type_identity_t<DistanceView<A>>& df) {
  distance_matrix_adjoint(f.view(), blocks, dm, df);
}

// ------------------------------------------------------------------------------------------------

namespace detail {

/// Throws unless a tangent or gradient has the sizes of f.
template <class A, class N>
void expect_table_like(const char* function, const char* name, const DistanceView<A>& f,
                       const DistanceView<N>& like) {
  if (like.absent()) {
    fail_option(function, name, "is absent", "a table of the offsets and heads of f");
  }
  if (!(like.offsets() == f.offsets()) || like.heads() != f.heads()) {
    fail_shape(function, name, "has " + std::to_string(like.storage().size()) + " numbers",
               "a table of the offsets and heads of f");
  }
}

}  // namespace detail

template <class A>
MixingMatrix<std::remove_const_t<A>> distance_matrix_tangent(
    const DistanceView<A>& f, const std::type_identity_t<DistanceView<const A>>& df,
    GridShape blocks, const Pattern& pattern) {
  using T = std::remove_const_t<A>;
  constexpr const char* kName = "distance_matrix_tangent";
  MixingMatrix<T> tangent(pattern, f.heads());
  detail::expect_blocks_of(kName, f, blocks, tangent.view());
  detail::expect_table_like(kName, "df", f, df);
  const detail::OffsetPlaces<A> places(f, blocks);
  for (Index h = 0; h < f.heads(); ++h) {
    const MixingView<T> of = tangent.view().of_head(h);
    const A* const table = f.storage().data() + h * f.size();
    const A* const along = df.storage().data() + h * f.size();
    for (Index i = 0; i < of.rows(); ++i) {
      const auto place = places.row(i);
      double sum = 1, change = 0;  // of the row's coefficients; without a division m' = w'
      if (f.rows_sum_to_one()) {
        double weight = 0;
        of.for_each_in_row(i, [&](Index b, T) {
          weight += double{table[place(b)]};
          change += double{along[place(b)]};
        });
        detail::expect_row_sum(kName, "f", i, h, f.heads(), weight);
        sum = weight, change /= weight;
      }
      of.for_each_in_row(i, [&](Index b, T& c) {
        const Index at = place(b);
        c = static_cast<T>((double{along[at]} - double{table[at]} * change) / sum);
      });
    }
  }
  return tangent;
}

namespace detail {

/// Adds the gradient of a table. Allocates nothing.
/// \param function, argument  names of the call and of f in errors
/// \param sums                as many numbers as f has
template <class A>
void add_distance_gradient(const char* function, const char* argument, const DistanceView<A>& f,
                           GridShape blocks, const MixingView<const std::remove_const_t<A>>& dm,
                           const DistanceView<std::remove_const_t<A>>& df, std::span<double> sums) {
  using T = std::remove_const_t<A>;
  std::ranges::fill(sums, 0.0);
  const OffsetPlaces<A> places(f, blocks);
  for (Index h = 0; h < f.heads(); ++h) {
    const MixingView<const T> of = dm.of_head(h);
    double* const to = sums.data() + h * f.size();
    const A* const table = f.storage().data() + h * f.size();
    for (Index i = 0; i < of.rows(); ++i) {
      const auto place = places.row(i);
      double sum = 1, mean = 0;  // without a division dw = dm
      if (f.rows_sum_to_one()) {
        double weight = 0;
        of.for_each_in_row(i, [&](Index b, T d) {
          weight += double{table[place(b)]};
          mean += double{d} * double{table[place(b)]};
        });
        expect_row_sum(function, argument, i, h, f.heads(), weight);
        sum = weight, mean /= weight;
      }
      of.for_each_in_row(i, [&](Index b, T d) { to[place(b)] += (double{d} - mean) / sum; });
    }
  }
  for (std::size_t n = 0; n < sums.size(); ++n) df.storage()[n] += static_cast<T>(sums[n]);
}

}  // namespace detail

template <class A>
void distance_matrix_adjoint(
    const DistanceView<A>& f, GridShape blocks,
    const std::type_identity_t<MixingView<const std::remove_const_t<A>>>& dm,
    const std::type_identity_t<DistanceView<std::remove_const_t<A>>>& df) {
  constexpr const char* kName = "distance_matrix_adjoint";
  detail::expect_blocks_of(kName, f, blocks, dm);
  if (dm.sequences() != 1 || dm.heads() != f.heads()) {
    detail::fail_shape(kName, "dm", "has " + detail::matrices_text(dm) + " matrices",
                       std::to_string(f.heads()) + ", one per table of f");
  }
  detail::expect_table_like(kName, "df", f, df);
  std::vector<double> sums(df.storage().size());
  detail::add_distance_gradient(kName, "f", f, blocks, dm, df, sums);
}

}  // namespace MHLA_TARGET
}  // namespace mhla

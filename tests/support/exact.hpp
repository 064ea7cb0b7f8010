#pragma once

/// \file
/// Whole numbers so small that sums of their products are exact in float, in any order. Results can
/// be compared without a bound. Also strips of scratch that hold such numbers.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "mhla/core/matrix.hpp"
#include "mhla/tokens/strip.hpp"
#include "support/outputs.hpp"
#include "support/random.hpp"

namespace mhla::test {

/// [rows,cols] whole numbers in [-limit, limit].
template <class T>
Matrix<T> integers(Random& rng, Index rows, Index cols, Index limit = 3) {
  Matrix<T> m(rows, cols);
  for (Index r = 0; r < rows; ++r) {
    for (Index c = 0; c < cols; ++c) {
      m(r, c) = static_cast<T>(static_cast<float>(rng.integer(-limit, limit)));
    }
  }
  return m;
}

/// A strip that begins with the rows of x, with memory for `room` rows, at least those of x.
template <class A>
detail::Rows<A> rows_of(Memory& memory, const Matrix<A>& x, Index capacity = 0) {
  const detail::Rows<A> rows("f", memory.arena, std::max(capacity, x.rows()), x.cols());
  for (Index r = 0; r < x.rows(); ++r) std::copy_n(x.data() + r * x.cols(), x.cols(), rows.row(r));
  return rows;
}

/// The map y = weight x, whose gradients are exact too.
struct Times {
  double weight = 1;

  Index features(Index d) const { return d; }
  Index weights() const { return 1; }
  template <class A>
  void operator()(const A* x, A* y, Index d) const {
    for (Index j = 0; j < d; ++j) y[j] = static_cast<A>(weight) * x[j];
  }
  template <class A>
  void adjoint(const A* x, const A* y, const A* dy, A* dx, Index d, A* dweights) const {
    for (Index j = 0; j < d; ++j) {
      EXPECT_EQ(y[j], static_cast<A>(weight) * x[j]) << "features of another token";
      dx[j] += static_cast<A>(weight) * dy[j];
      if (dweights != nullptr) *dweights += dy[j] * x[j];
    }
  }
};

/// Rows [0, count) of a strip.
template <class A>
Matrix<A> matrix_of(const detail::Rows<A>& rows, Index count, Index cols) {
  Matrix<A> m(count, cols);
  for (Index r = 0; r < count; ++r) std::copy_n(rows.row(r), cols, m.data() + r * cols);
  return m;
}

/// Expects that a strip of `room` rows is NaN after its first `count` rows of `cols` numbers.
template <class A>
void expect_nothing_beside(const detail::Rows<A>& rows, Index capacity, Index count, Index cols) {
  for (Index r = 0; r < capacity; ++r) {
    for (Index j = r < count ? cols : 0; j < rows.stride; ++j) {
      ASSERT_TRUE(std::isnan(rows.row(r)[j])) << "written outside: " << r << ", " << j;
    }
  }
}

}  // namespace mhla::test

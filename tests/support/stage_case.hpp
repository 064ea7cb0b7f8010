#pragma once

/// \file
/// Shared parts of the tests of stages: random cases, definitions in long double that carry error
/// bounds, and buffers that reveal writes outside them.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "mhla/core/workspace.hpp"
#include "mhla/kernel/rows.hpp"
#include "support/outputs.hpp"
#include "support/random.hpp"
#include "support/seeds.hpp"

namespace mhla::test {

using Accumulators = testing::Types<float, double>;

/// Calls f(rng) for `count` seeds, up to the first failure.
template <class F>
void for_cases(std::uint64_t count, F&& f) {
  for (const std::uint64_t seed : seeds(count)) {
    if (testing::Test::HasFailure()) return;
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random rng(seed);
    f(rng);
  }
}

/// Some of the numbers [0, count), ascending: all, most or few.
inline std::vector<Index> some_of(Random& rng, Index count) {
  const double probability = rng.chance(0.5) ? 1 : rng.chance(0.7) ? 0.7 : 0.1;
  std::vector<Index> some;
  for (Index s = 0; s < count; ++s) {
    if (rng.chance(probability)) some.push_back(s);
  }
  return some;
}

/// A matrix of sums in long double. With each sum comes the sum of the magnitudes of its terms, to
/// which rounding errors are relative.
struct Exact {
  using Wide = Matrix<long double>;
  Wide value, size;

  Exact(const Wide& v, const Wide& s) : value(v), size(s) {}
  template <class T>
  Exact(const Matrix<T>& x)  // NOLINT(google-explicit-constructor)
      : value(x.template cast<long double>()), size(value.cwiseAbs()) {}
  static Exact zero(Index rows, Index cols) { return Exact(Wide(Wide::Zero(rows, cols))); }

  Index rows() const { return value.rows(); }
  Index cols() const { return value.cols(); }
  Exact transpose() const { return {value.transpose(), size.transpose()}; }
  /// Row r as a matrix [1,cols].
  Exact row(Index r) const { return {value.row(r), size.row(r)}; }
  /// Product element by element.
  Exact times(const Exact& x) const {
    return {value.cwiseProduct(x.value), size.cwiseProduct(x.size)};
  }
  Exact operator-() const { return {-value, size}; }
  friend Exact operator+(const Exact& x, const Exact& y) {
    return {x.value + y.value, x.size + y.size};
  }
  friend Exact operator*(const Exact& x, const Exact& y) {
    return {x.value.lazyProduct(y.value), x.size.lazyProduct(y.size)};
  }
  friend Exact operator*(long double f, const Exact& x) {
    return {f * x.value, std::abs(f) * x.size};
  }
};

/// Largest distance of results from a definition, relative to the size of its sums.
struct Bound {
  Index roundings;          ///< of the accumulator, in any term
  long double splits = 0;   ///< relative error of split numbers
  long double storage = 0;  ///< of the result, relative to itself
};

/// Success if x is the element (r, c) of a definition, computed in A.
template <class A>
testing::AssertionResult is_within(long double x, const Exact& expected, Index r, Index c,
                                   const Bound& bound) {
  const long double m = static_cast<long double>(bound.roundings) *
                        std::numeric_limits<A>::epsilon() / 2,
                    size = expected.size(r, c), right = expected.value(r, c),
                    error = (m / (1 - m) + bound.splits) * size;
  if (std::abs(x - right) <= error + bound.storage * (std::abs(right) + error)) {
    return testing::AssertionSuccess();
  }
  return testing::AssertionFailure() << "(" << r << ", " << c << ") is " << x << ", expected "
                                     << right << " of terms of " << size;
}

template <class A>
void expect_within(const Matrix<A>& got, const Exact& expected, const Bound& bound,
                   const char* what = "") {
  ASSERT_EQ(got.rows(), expected.rows()) << what;
  ASSERT_EQ(got.cols(), expected.cols()) << what;
  for (Index r = 0; r < got.rows(); ++r) {
    for (Index c = 0; c < got.cols(); ++c) {
      ASSERT_TRUE(is_within<A>(got(r, c), expected, r, c, bound)) << what;
    }
  }
}

/// An arena over memory in which every number is NaN, with a guard before each buffer.
class GuardedArena {
 public:
  /// \param bytes  of all buffers, of which there are at most eight
  explicit GuardedArena(std::size_t bytes) : memory_(bytes + 9 * kGuard) {}
  detail::Arena& next() {
    guards_.push_back(memory_.arena.template take<std::byte>("guard", kGuard));
    return memory_.arena;
  }
  /// Call after all buffers are taken.
  void expect_intact() {
    next();
    ASSERT_LE(memory_.arena.bytes(), memory_.bytes.size()) << "buffers lie outside";
    for (const std::byte* const guard : guards_) {
      for (Index i = 0; i < kGuard; ++i) ASSERT_EQ(guard[i], std::byte{0xFF}) << "written outside";
    }
  }

 private:
  static constexpr Index kGuard = 256;
  Memory memory_;
  std::vector<std::byte*> guards_;
};

/// Rows of scratch, NaN until written, and surrounded by NaN.
template <class A>
class Guarded {
 public:
  /// \param room  rows that may be overwritten, at least `rows`
  Guarded(Index rows, Index cols, Index capacity = 0)
      : count_(rows),
        cols_(cols),
        capacity_(std::max(rows, capacity)),
        memory_(static_cast<std::size_t>((capacity_ + 3) * (cols + 64)) * sizeof(A)),
        before_(memory_.arena.template take<A>("guard", kGuard)),
        rows_("rows", memory_.arena, capacity_, cols),
        behind_(memory_.arena.template take<A>("guard", kGuard)) {}
  Guarded(const Guarded&) = delete;
  Guarded& operator=(const Guarded&) = delete;
  explicit Guarded(const Matrix<A>& x, Index capacity = 0) : Guarded(x.rows(), x.cols(), capacity) {
    for (Index r = 0; r < x.rows(); ++r) {
      std::copy_n(x.data() + r * x.cols(), x.cols(), rows_.row(r));
    }
  }

  operator detail::Rows<A>() const { return rows_; }  // NOLINT(google-explicit-constructor)
  const detail::Rows<A>& rows() const { return rows_; }
  A* data() const { return rows_.data; }
  Matrix<A> numbers() const {
    Matrix<A> x(count_, cols_);
    for (Index r = 0; r < count_; ++r) std::copy_n(rows_.row(r), cols_, x.data() + r * cols_);
    return x;
  }
  void expect(const Exact& expected, const Bound& bound, const char* what = "") const {
    expect_within(numbers(), expected, bound, what);
    expect_nothing_beside(what);
  }
  void expect_nothing_beside(const char* what = "") const {
    for (Index r = 0; r < count_; ++r) {
      for (Index c = cols_; c < rows_.stride; ++c) ASSERT_TRUE(is_nan(rows_.row(r)[c])) << what;
    }
    for (Index i = 0; i < kGuard; ++i) {
      ASSERT_TRUE(is_nan(before_[i]) && is_nan(behind_[i])) << what << " written outside";
    }
  }

 private:
  static bool is_nan(A x) { return std::isnan(x); }

  static constexpr Index kGuard = 32;
  Index count_, cols_, capacity_;
  Memory memory_;
  A* before_;
  detail::Rows<A> rows_;
  A* behind_;
};

/// Start and destination of a product: NaN that is not read, or numbers that it is added to.
template <class A>
struct Target {
  detail::Start start;
  Matrix<A> before;
  Guarded<A> rows;

  Target(Random& rng, Index count, Index cols)
      : start(rng.chance(0.5) ? detail::Start::kZero : detail::Start::kTarget),
        before(rng.matrix<A>(count, cols)),
        rows(start == detail::Start::kZero ? Guarded<A>(count, cols) : Guarded<A>(before)) {}
  void expect(const Exact& sum, const Bound& bound, const char* what = "") const {
    rows.expect(start == detail::Start::kZero ? sum : sum + before, bound, what);
  }
};

}  // namespace mhla::test

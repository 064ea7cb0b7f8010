#include "mhla/core/tile.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "support/random.hpp"

namespace mhla {
namespace {

using detail::Start;

/// One step of the chain that the header promises for every element.
template <class A>
A step(A a, A b, A c) {
  if constexpr (kFusedMultiplyAdd) return std::fma(a, b, c);
  const A product = a * b;
  return product + c;
}

/// Numbers around a product's operands, at an offset from any alignment.
template <class A>
struct Numbers {
  std::vector<A> all;
  Index offset;

  Numbers(test::Random& rng, Index size, Index offset_)
      : all(static_cast<std::size_t>(size + offset_ + 16)), offset(offset_) {
    for (A& x : all) x = static_cast<A>(rng.uniform(-1, 1));
  }
  A* data() { return all.data() + offset; }
  bool same_bits(const Numbers& other) const {
    return std::memcmp(all.data(), other.all.data(), all.size() * sizeof(A)) == 0;
  }
};

/// A product with random sizes, strides and offsets.
template <class A>
struct Case {
  Index rows, cols, depth;
  Index a_row, a_depth, b_depth, c_row;
  Numbers<A> a, b, c;
  Start start;

  Case(test::Random& rng, Index rows_, Index cols_, Index depth_)
      : rows(rows_),
        cols(cols_),
        depth(depth_),
        a_row(1),
        a_depth(1),
        b_depth(cols + rng.integer(0, 5)),
        c_row(cols + rng.integer(0, 5)),
        a(rng, (rows + 3) * (depth + 3), rng.integer(0, 15)),
        b(rng, (depth + 1) * (cols + 5), rng.integer(0, 15)),
        c(rng, (rows + 1) * (cols + 5), rng.integer(0, 15)),
        start(rng.chance(0.5) ? Start::kZero : Start::kTarget) {
    const Index gap = rng.integer(0, 3);
    if (rng.chance(0.5)) {
      a_depth = a_row * rows + gap;  // transposed
    } else {
      a_row = a_depth * depth + gap;
    }
  }

  A left(Index r, Index k) { return a.data()[r * a_row + k * a_depth]; }
  A right(Index k, Index j) { return b.data()[k * b_depth + j]; }
  A before(Index r, Index j) { return start == Start::kZero ? A(0) : c.data()[r * c_row + j]; }

  A chain(Index r, Index j) {
    A sum = before(r, j);
    for (Index k = 0; k < depth; ++k) sum = step(left(r, k), right(k, j), sum);
    return sum;
  }

  /// All of c's memory after the product, by the chains alone.
  Numbers<A> expected() {
    Numbers<A> result = c;
    for (Index r = 0; r < rows; ++r) {
      for (Index j = 0; j < cols; ++j) result.data()[r * c_row + j] = chain(r, j);
    }
    return result;
  }

  /// All of c's memory after the product over the depth [0, cut) and then [cut, depth).
  Numbers<A> product(Index cut) {
    Numbers<A> result = c;
    if (start == Start::kZero) {  // whatever it holds is not read
      for (Index r = 0; r < rows; ++r) {
        std::fill_n(result.data() + r * c_row, cols, std::numeric_limits<A>::quiet_NaN());
      }
    }
    detail::multiply<A>(start, {result.data(), c_row}, {a.data(), a_row, a_depth},
                        {b.data(), b_depth}, rows, cols, cut);
    if (cut < depth) {
      detail::multiply<A>(Start::kTarget, {result.data(), c_row},
                          {a.data() + cut * a_depth, a_row, a_depth},
                          {b.data() + cut * b_depth, b_depth}, rows, cols, depth - cut);
    }
    return result;
  }
};

template <class A>
class Tile : public testing::Test {};
using Accumulators = testing::Types<float, double>;
TYPED_TEST_SUITE(Tile, Accumulators);

TYPED_TEST(Tile, EveryElementIsOneChainOfMultiplyAddsAndNothingElseIsWritten) {
  for (std::uint64_t seed = 0; seed < 3000; ++seed) {
    test::Random rng(seed);
    Case<TypeParam> x{rng, rng.integer(0, 70), rng.integer(0, 70), rng.integer(0, 70)};
    ASSERT_TRUE(x.product(x.depth).same_bits(x.expected()))
        << "seed " << seed << ": " << x.rows << " x " << x.cols << " x " << x.depth;
  }
}

TYPED_TEST(Tile, EverySmallShapeIsRight) {
  test::Random rng(7);
  for (Index rows = 0; rows <= 10; ++rows) {
    for (Index cols = 0; cols <= 35; ++cols) {
      for (Index depth = 0; depth <= 3; ++depth) {
        Case<TypeParam> x(rng, rows, cols, depth);
        ASSERT_TRUE(x.product(depth).same_bits(x.expected()))
            << rows << " x " << cols << " x " << depth;
      }
    }
  }
}

TYPED_TEST(Tile, CuttingTheDepthIntoCallsChangesNoBit) {
  for (std::uint64_t seed = 0; seed < 1000; ++seed) {
    test::Random rng(seed);
    Case<TypeParam> x{rng, rng.integer(1, 40), rng.integer(1, 70), rng.integer(1, 70)};
    const Index cut = rng.integer(0, x.depth);
    ASSERT_TRUE(x.product(cut).same_bits(x.product(x.depth))) << "seed " << seed << " cut " << cut;
  }
}

TYPED_TEST(Tile, ErrorsStayBelowTheBoundOfTheChain) {
  constexpr long double u = std::numeric_limits<TypeParam>::epsilon() / 2;
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    test::Random rng(seed);
    Case<TypeParam> x{rng, rng.integer(1, 40), rng.integer(1, 70), rng.integer(1, 70)};
    Numbers<TypeParam> result = x.product(x.depth);
    // A chain of `depth` fused steps rounds depth times; apart, the first product once more.
    const long double m = static_cast<long double>(x.depth) + 1;
    for (Index r = 0; r < x.rows; ++r) {
      for (Index j = 0; j < x.cols; ++j) {
        long double sum = x.before(r, j), size = std::abs(sum);
        for (Index k = 0; k < x.depth; ++k) {
          const long double term = static_cast<long double>(x.left(r, k)) * x.right(k, j);
          sum += term;
          size += std::abs(term);
        }
        ASSERT_LE(std::abs(result.data()[r * x.c_row + j] - sum), m * u / (1 - m * u) * size);
      }
    }
  }
}

TYPED_TEST(Tile, StridesOfZeroAndLessAreFollowed) {
  test::Random rng(3);
  for (Index size = 1; size <= 20; ++size) {
    Numbers<TypeParam> a(rng, size, 1), b(rng, 1, 3), c(rng, size * size, 5);
    // A is one row for all rows, then one column read backwards; B one row for the whole depth.
    detail::multiply<TypeParam>(Start::kZero, {c.data(), 1}, {a.data(), 0, 1}, {b.data(), 0}, size,
                                1, size);
    TypeParam forwards = 0, backwards = 0;
    for (Index k = 0; k < size; ++k) {
      forwards = step(a.data()[k], *b.data(), forwards);
      backwards = step(a.data()[size - 1 - k], *b.data(), backwards);
    }
    for (Index r = 0; r < size; ++r) EXPECT_EQ(c.data()[r], forwards);
    detail::multiply<TypeParam>(Start::kZero, {c.data(), 1}, {a.data() + size - 1, 1, -1},
                                {b.data(), 0}, 1, 1, size);
    EXPECT_EQ(c.data()[0], backwards);
  }
}

TYPED_TEST(Tile, ANaNStaysInItsRowOfAAndItsColumnOfB) {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    test::Random rng(seed);
    Case<TypeParam> x{rng, rng.integer(1, 20), rng.integer(1, 40), rng.integer(1, 20)};
    Numbers<TypeParam> clean = x.product(x.depth);
    const Index row = rng.integer(0, x.rows - 1), col = rng.integer(0, x.cols - 1);
    const Index k = rng.integer(0, x.depth - 1);
    const auto nan = std::numeric_limits<TypeParam>::quiet_NaN();
    x.a.data()[row * x.a_row + k * x.a_depth] = nan;
    x.b.data()[k * x.b_depth + col] = nan;
    Numbers<TypeParam> touched = x.product(x.depth);
    for (Index r = 0; r < x.rows; ++r) {
      for (Index j = 0; j < x.cols; ++j) {
        const TypeParam got = touched.data()[r * x.c_row + j];
        if (r == row || j == col) {
          ASSERT_TRUE(std::isnan(got));
        } else {
          ASSERT_EQ(got, clean.data()[r * x.c_row + j]);
        }
      }
    }
  }
}

TYPED_TEST(Tile, NoDepthWritesZeroOrLeavesTheTarget) {
  std::vector<TypeParam> c(12, TypeParam(3));
  detail::multiply<TypeParam>(Start::kTarget, {c.data(), 4}, {nullptr, 0, 1}, {nullptr, 4}, 3, 4,
                              0);
  EXPECT_EQ(c, std::vector<TypeParam>(12, TypeParam(3)));
  detail::multiply<TypeParam>(Start::kZero, {c.data(), 4}, {nullptr, 0, 1}, {nullptr, 4}, 3, 4, 0);
  EXPECT_EQ(c, std::vector<TypeParam>(12, TypeParam(0)));
}

}  // namespace
}  // namespace mhla

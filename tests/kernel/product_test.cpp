#include "mhla/kernel/product.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>
#include <vector>

#include "support/chain.hpp"
#include "support/random.hpp"

namespace mhla {
namespace {

using test::step;

using detail::ColumnSpan;
using detail::LeftBand;
using detail::LeftColumns;
using detail::LeftRows;
using detail::RightOperand;
using detail::Start;
using detail::Target;

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

/// The number type of a left operand.
template <class Left>
using number_t = std::remove_const_t<std::remove_pointer_t<decltype(Left::data)>>;

/// A product with random sizes, strides and offsets.
template <class Left>
struct Case {
  using A = number_t<Left>;
  static constexpr bool kByRows = std::is_same_v<Left, LeftRows<A>>;

  Index rows, cols, depth;
  Index a_stride, b_depth, c_row;
  Numbers<A> a, b, c;
  Start start;

  Case(test::Random& rng, Index rows_, Index cols_, Index depth_)
      : rows(rows_),
        cols(cols_),
        depth(depth_),
        a_stride((kByRows ? depth : rows) + rng.integer(0, 3)),
        b_depth(cols + rng.integer(0, 5)),
        c_row(cols + rng.integer(0, 5)),
        a(rng, (rows + 3) * (depth + 3), rng.integer(0, 15)),
        b(rng, (depth + 1) * (cols + 5), rng.integer(0, 15)),
        c(rng, (rows + 1) * (cols + 5), rng.integer(0, 15)),
        start(rng.chance(0.5) ? Start::kZero : Start::kTarget) {}

  A& left(Index r, Index k) { return a.data()[kByRows ? r * a_stride + k : r + k * a_stride]; }
  A& right(Index k, Index j) { return b.data()[k * b_depth + j]; }
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

  /// A copy of c; where the product starts from zero, NaN in all that it may not read.
  Numbers<A> unread() const {
    Numbers<A> result = c;
    if (start == Start::kTarget) return result;
    for (Index r = 0; r < rows; ++r) {
      std::fill_n(result.data() + r * c_row, cols, std::numeric_limits<A>::quiet_NaN());
    }
    return result;
  }

  /// All of c's memory after the product over the depth [0, cut) and then [cut, depth).
  Numbers<A> product(Index cut) {
    Numbers<A> result = unread();
    const Target<A> target{result.data(), c_row};
    multiply(start, target, Left{a.data(), a_stride}, RightOperand<A>{b.data(), b_depth}, rows,
             cols, cut);
    if (cut < depth) {
      multiply(Start::kTarget, target, Left{&left(0, cut), a_stride},
               RightOperand<A>{&right(cut, 0), b_depth}, rows, cols, depth - cut);
    }
    return result;
  }
};

template <class Left>
class Tile : public testing::Test {};
using Lefts =
    testing::Types<LeftRows<float>, LeftColumns<float>, LeftRows<double>, LeftColumns<double>>;
TYPED_TEST_SUITE(Tile, Lefts);

TYPED_TEST(Tile, EveryElementIsOneChainOfMultiplyAddsAndNothingElseIsWritten) {
  for (std::uint64_t seed = 0; seed < 1500; ++seed) {
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
  for (std::uint64_t seed = 0; seed < 500; ++seed) {
    test::Random rng(seed);
    Case<TypeParam> x{rng, rng.integer(1, 40), rng.integer(1, 70), rng.integer(1, 70)};
    const Index cut = rng.integer(0, x.depth);
    ASSERT_TRUE(x.product(cut).same_bits(x.product(x.depth))) << "seed " << seed << " cut " << cut;
  }
}

TYPED_TEST(Tile, ErrorsStayBelowTheBoundOfTheChain) {
  constexpr long double u = std::numeric_limits<number_t<TypeParam>>::epsilon() / 2;
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    test::Random rng(seed);
    Case<TypeParam> x{rng, rng.integer(1, 40), rng.integer(1, 70), rng.integer(1, 70)};
    auto result = x.product(x.depth);
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

TYPED_TEST(Tile, ANaNStaysInItsRowOfAAndItsColumnOfB) {
  for (std::uint64_t seed = 0; seed < 150; ++seed) {
    test::Random rng(seed);
    Case<TypeParam> x{rng, rng.integer(1, 20), rng.integer(1, 40), rng.integer(1, 20)};
    auto clean = x.product(x.depth);
    const Index row = rng.integer(0, x.rows - 1), col = rng.integer(0, x.cols - 1);
    const Index k = rng.integer(0, x.depth - 1);
    x.left(row, k) = x.right(k, col) = std::numeric_limits<number_t<TypeParam>>::quiet_NaN();
    auto touched = x.product(x.depth);
    for (Index r = 0; r < x.rows; ++r) {
      for (Index j = 0; j < x.cols; ++j) {
        const auto got = touched.data()[r * x.c_row + j];
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
  using A = number_t<TypeParam>;
  std::vector<A> c(12, A(3));
  const auto multiply_nothing = [&](Start start) {
    multiply(start, Target<A>{c.data(), 4}, TypeParam{nullptr, 0}, RightOperand<A>{nullptr, 4}, 3,
             4, 0);
  };
  multiply_nothing(Start::kTarget);
  EXPECT_EQ(c, std::vector<A>(12, A(3)));
  multiply_nothing(Start::kZero);
  EXPECT_EQ(c, std::vector<A>(12, A(0)));
}

/// A target of rows in any order, to whose sums a number of the row's own is added.
template <class A>
struct Shifted {
  A* data;
  Index row_stride;
  const Index* order;
  const A* shifts;

  A* row(Index r) const { return data + order[r] * row_stride; }
  Shifted below(Index rows) const { return {data, row_stride, order + rows, shifts + rows}; }
  Shifted right_of(Index cols) const { return {data + cols, row_stride, order, shifts}; }
  template <class P>
  P finished(Index r, P sums) const {
    return Eigen::internal::padd(sums, Eigen::internal::pset1<P>(shifts[r]));
  }
};

TYPED_TEST(Tile, ATargetPlacesItsRowsAndFinishesItsSums) {
  using A = number_t<TypeParam>;
  for (std::uint64_t seed = 0; seed < 500; ++seed) {
    test::Random rng(seed);
    Case<TypeParam> x{rng, rng.integer(0, 40), rng.integer(0, 70), rng.integer(0, 20)};
    Numbers<A> shifts(rng, x.rows, 0), expected = x.c, result = x.unread();
    std::vector<Index> order;  // backwards
    for (Index r = x.rows; r-- > 0;) order.push_back(r);
    for (Index r = 0; r < x.rows; ++r) {
      const Index to = order[static_cast<std::size_t>(r)];
      for (Index j = 0; j < x.cols; ++j) {
        A sum = x.before(to, j);
        for (Index k = 0; k < x.depth; ++k) sum = step(x.left(r, k), x.right(k, j), sum);
        expected.data()[to * x.c_row + j] = sum + shifts.data()[r];
      }
    }
    multiply(x.start, Shifted<A>{result.data(), x.c_row, order.data(), shifts.data()},
             TypeParam{x.a.data(), x.a_stride}, RightOperand<A>{x.b.data(), x.b_depth}, x.rows,
             x.cols, x.depth);
    ASSERT_TRUE(result.same_bits(expected)) << "seed " << seed;
  }
}

/// A right operand whose rows lie backwards, and which keeps what it is told of.
template <class A>
struct Told {
  const A* last_row;
  Index depth_stride;
  A* seen;

  const A* row(Index k) const { return last_row - k * depth_stride; }
  Told right_of(Index cols) const { return {last_row + cols, depth_stride, seen + cols}; }
  template <class P>
  void loaded(Index k, Index col, P vector) const {
    detail::store(seen + k * depth_stride + col, vector);
  }
};

TYPED_TEST(Tile, ARightOperandPlacesItsRowsAndIsToldOfAllThatIsLoadedAndNoMore) {
  using A = number_t<TypeParam>;
  for (std::uint64_t seed = 0; seed < 500; ++seed) {
    test::Random rng(seed);
    Case<TypeParam> x{rng, rng.integer(1, 40), rng.integer(0, 70), rng.integer(1, 20)};
    Numbers<A> backwards = x.b, seen(rng, x.depth * x.b_depth, 3), expected = seen;
    for (Index k = 0; k < x.depth; ++k) {
      for (Index j = 0; j < x.cols; ++j) {
        backwards.data()[(x.depth - 1 - k) * x.b_depth + j] = x.right(k, j);
        expected.data()[k * x.b_depth + j] = x.right(k, j);
      }
    }
    Numbers<A> result = x.unread();
    const A* const last_row = backwards.data() + (x.depth - 1) * x.b_depth;
    multiply(x.start, Target<A>{result.data(), x.c_row}, TypeParam{x.a.data(), x.a_stride},
             Told<A>{last_row, x.b_depth, seen.data()}, x.rows, x.cols, x.depth);
    ASSERT_TRUE(result.same_bits(x.expected())) << "seed " << seed;
    ASSERT_TRUE(seen.same_bits(expected)) << "seed " << seed;
  }
}

template <class A>
class TileOf : public testing::Test {};
using Accumulators = testing::Types<float, double>;
TYPED_TEST_SUITE(TileOf, Accumulators);

TYPED_TEST(TileOf, StridesOfZeroAndLessAreFollowed) {
  test::Random rng(3);
  for (Index size = 1; size <= 20; ++size) {
    Numbers<TypeParam> a(rng, size, 1), b(rng, 1, 3), c(rng, size * size, 5);
    const RightOperand<TypeParam> one_row{b.data(), 0};
    TypeParam forwards = 0, backwards = 0;
    for (Index k = 0; k < size; ++k) {
      forwards = step(a.data()[k], *b.data(), forwards);
      backwards = step(a.data()[size - 1 - k], *b.data(), backwards);
    }
    // A is one row for all rows, and C's rows lie backwards; then A is one column read backwards.
    multiply(Start::kZero, Target<TypeParam>{c.data() + size - 1, -1},
             LeftRows<TypeParam>{a.data(), 0}, one_row, size, 1, size);
    for (Index r = 0; r < size; ++r) EXPECT_EQ(c.data()[r], forwards);
    multiply(Start::kZero, Target<TypeParam>{c.data(), 1},
             LeftColumns<TypeParam>{a.data() + size - 1, -1}, one_row, 1, 1, size);
    EXPECT_EQ(c.data()[0], backwards);
  }
}

TYPED_TEST(TileOf, PanelsAreAsManyAsTheColumnsNeed) {
  const Index panel = detail::kTileVectors * Eigen::internal::packet_traits<TypeParam>::size;
  Index expected = 0;
  for (Index cols = 0; cols <= 300; ++cols) {
    if (cols > expected * panel) ++expected;
    EXPECT_EQ(detail::panels<TypeParam>(cols), expected);
  }
}

/// Spans of one kind: anywhere, a window that moves on, all that came before, or mostly empty.
ColumnSpan span_of(test::Random& rng, Index kind, Index r, Index depth) {
  const Index a = rng.integer(0, depth), b = rng.integer(0, depth);
  if (kind == 0) return {std::min(a, b), std::max(a, b)};
  if (kind == 1) return {std::min(r, depth), std::min(r + 5, depth)};
  if (kind == 2) return {0, std::min(r, depth)};
  return {a, rng.chance(0.8) ? a : std::max(a, b)};
}

TYPED_TEST(TileOf, ABandIsTheChainOverTheSpanOfEachRow) {
  const auto nan = std::numeric_limits<TypeParam>::quiet_NaN();
  for (std::uint64_t seed = 0; seed < 2000; ++seed) {
    test::Random rng(seed);
    Case<LeftRows<TypeParam>> x{rng, rng.integer(0, 40), rng.integer(0, 70), rng.integer(0, 70)};
    const Index kind = rng.integer(0, 3), poisoned = rng.integer(0, x.depth);
    for (Index j = 0; j < x.cols && poisoned < x.depth; ++j) x.right(poisoned, j) = nan;
    std::vector<ColumnSpan> spans;
    Numbers<TypeParam> result = x.unread(), expected = x.c;
    for (Index r = 0; r < x.rows; ++r) {
      const ColumnSpan span = spans.emplace_back(span_of(rng, kind, r, x.depth));
      for (Index k = 0; k < x.depth; ++k) {
        if (k < span.begin || k >= span.end) x.left(r, k) = nan;
      }
      for (Index j = 0; j < x.cols; ++j) {
        TypeParam& sum = expected.data()[r * x.c_row + j] = x.before(r, j);
        for (Index k = span.begin; k < span.end; ++k) sum = step(x.left(r, k), x.right(k, j), sum);
      }
    }
    multiply(x.start, Target<TypeParam>{result.data(), x.c_row},
             LeftBand<TypeParam>{x.a.data(), x.a_stride, spans.data()},
             RightOperand<TypeParam>{x.b.data(), x.b_depth}, x.rows, x.cols, x.depth);
    for (std::size_t i = 0; i < expected.all.size(); ++i) {
      const TypeParam got = result.all[i], right = expected.all[i];
      ASSERT_TRUE(got == right || (std::isnan(got) && std::isnan(right))) << "seed " << seed;
    }
  }
}

}  // namespace
}  // namespace mhla

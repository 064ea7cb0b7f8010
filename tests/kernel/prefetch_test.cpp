#include "mhla/kernel/prefetch.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "support/outputs.hpp"
#include "support/random.hpp"

namespace mhla {
namespace {

using test::Memory;
using test::same_bits;
using test::unwritten;

using detail::kStripTokens;
using detail::LeftRows;
using detail::Lookahead;
using detail::RightOperand;
using detail::Rows;
using detail::Start;
using detail::Strip;
using detail::Target;

/// Different tokens in any order.
std::vector<Index> some_tokens(test::Random& rng, Index count, Index tokens) {
  std::vector<Index> all;
  for (Index t = 0; t < tokens; ++t) {
    all.insert(all.begin() + rng.integer(0, t), t);
  }
  all.resize(static_cast<std::size_t>(count));
  return all;
}

Strip strip_of(const std::vector<Index>& tokens) {
  Strip strip;
  strip.count = std::ssize(tokens);
  std::copy(tokens.begin(), tokens.end(), strip.tokens);
  return strip;
}

template <class A>
class TokenRows : public testing::Test {};
using Accumulators = testing::Types<float, double>;
TYPED_TEST_SUITE(TokenRows, Accumulators);

TYPED_TEST(TokenRows, CopiedTokensAreMultipliedInPlaceAndCopiedAlone) {
  for (std::uint64_t seed = 0; seed < 500; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    test::Random rng(seed);
    const Index rows = rng.integer(1, 30), cols = rng.integer(0, 70), depth = rng.integer(0, 20);
    const Index stride = cols + rng.integer(0, 5);
    const Matrix<TypeParam> a = rng.matrix<TypeParam>(rows, depth);
    const Matrix<TypeParam> x = rng.matrix<TypeParam>(20, stride);
    const std::vector<Index> tokens = some_tokens(rng, depth, 20);
    Matrix<TypeParam> in = unwritten<TypeParam>(20, stride), gathered(depth, cols);
    for (Index k = 0; k < depth; ++k) {
      const Index t = tokens[static_cast<std::size_t>(k)];
      gathered.row(k) = in.row(t).head(cols) = x.row(t).head(cols);  // all others stay NaN
    }
    Memory memory(30000);
    const Rows<TypeParam> copy("f", memory.arena, depth + 1, cols);
    Matrix<TypeParam> got = unwritten<TypeParam>(rows, cols), expected = got;
    multiply(Start::kZero, Target<TypeParam>{expected.data(), cols},
             LeftRows<TypeParam>{a.data(), depth}, RightOperand<TypeParam>{gathered.data(), cols},
             rows, cols, depth);
    multiply(
        Start::kZero, Target<TypeParam>{got.data(), cols}, LeftRows<TypeParam>{a.data(), depth},
        detail::CopiedTokens<TypeParam>{in.data(), stride, tokens.data(), copy}, rows, cols, depth);
    ASSERT_TRUE(same_bits(got, expected));
    for (Index k = 0; k <= depth; ++k) {
      for (Index j = 0; j < copy.stride; ++j) {
        if (k < depth && j < cols) {
          ASSERT_EQ(copy.row(k)[j], gathered(k, j));
        } else {
          ASSERT_TRUE(std::isnan(copy.row(k)[j])) << "written outside";
        }
      }
    }
  }
}

/// Products into rows of a tensor, scaled by factors or not, are those into a matrix of their own.
template <class T, class MakeTarget>
void expect_products_in_token_rows(bool scaled, MakeTarget&& make_target) {
  for (std::uint64_t seed = 0; seed < 500; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    test::Random rng(seed);
    const Index rows = rng.integer(0, 30), cols = rng.integer(0, 70), depth = rng.integer(0, 20);
    const Index stride = cols + rng.integer(0, 5);
    const Matrix<T> a = rng.matrix<T>(rows, depth);
    const Matrix<T> b = rng.matrix<T>(depth, cols);
    const Matrix<T> factors = rng.matrix<T>(1, rows, -4, 4);
    const std::vector<Index> tokens = some_tokens(rng, rows, 30);
    const Start start = rng.chance(0.5) ? Start::kZero : Start::kTarget;
    const bool reversed = rng.chance(0.5);

    Matrix<T> sums = rng.matrix<T>(rows, cols);
    Matrix<T> got = unwritten<T>(30, stride), expected = got;
    const auto row = [&](Index r) {
      const Index t = tokens[static_cast<std::size_t>(r)];
      return reversed ? 29 - t : t;
    };
    for (Index r = 0; r < rows && start == Start::kTarget; ++r) {
      got.row(row(r)).head(cols) = sums.row(r);
    }
    const LeftRows<T> left{a.data(), depth};
    const RightOperand<T> right{b.data(), cols};
    multiply(start, Target<T>{sums.data(), cols}, left, right, rows, cols, depth);
    for (Index r = 0; r < rows; ++r) {
      const T factor = scaled ? factors(0, r) : T(1);
      for (Index j = 0; j < cols; ++j) expected(row(r), j) = sums(r, j) * factor;
    }
    T* const first = got.data() + (reversed ? 29 * stride : 0);
    multiply(start, make_target(first, reversed ? -stride : stride, tokens.data(), factors.data()),
             left, right, rows, cols, depth);
    ASSERT_TRUE(same_bits(got, expected));
  }
}

TYPED_TEST(TokenRows, ScaledTokensHoldTheFinishedSumsTimesTheirFactors) {
  expect_products_in_token_rows<TypeParam>(
      true, [](TypeParam* data, Index stride, const Index* tokens, const TypeParam* factors) {
        return detail::ScaledTokens<TypeParam>{data, stride, tokens, factors};
      });
}

TYPED_TEST(TokenRows, AreTheTargetAlone) {
  expect_products_in_token_rows<TypeParam>(
      false, [](TypeParam* data, Index stride, const Index* tokens, const TypeParam*) {
        return detail::TokenRows<TypeParam>{data, stride, tokens};
      });
}

TYPED_TEST(TokenRows, RightAheadIsTheOperandItWraps) {
  for (std::uint64_t seed = 0; seed < 500; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    test::Random rng(seed);
    const Index rows = rng.integer(0, 30), cols = rng.integer(0, 70), depth = rng.integer(0, 90);
    const Matrix<TypeParam> a = rng.matrix<TypeParam>(rows, depth);
    const Matrix<TypeParam> b = rng.matrix<TypeParam>(depth, cols);  // ends where it is read last
    const Matrix<TypeParam> x = rng.matrix<TypeParam>(90, 40), y = rng.matrix<TypeParam>(90, 3);
    const Strip strip = strip_of(some_tokens(rng, rng.integer(0, kStripTokens), 90));
    const Lookahead ahead(strip, MatrixView<const TypeParam>(x), MatrixView<const TypeParam>(y));
    const Start start = rng.chance(0.5) ? Start::kZero : Start::kTarget;
    const LeftRows<TypeParam> left{a.data(), depth};
    const RightOperand<TypeParam> right{b.data(), cols};

    const Matrix<TypeParam> before = rng.matrix<TypeParam>(rows, cols);
    Matrix<TypeParam> expected = before;
    multiply(start, Target<TypeParam>{expected.data(), cols}, left, right, rows, cols, depth);
    for (const Lookahead& lookahead : {ahead, Lookahead()}) {
      Matrix<TypeParam> got = before;
      multiply(start, Target<TypeParam>{got.data(), cols}, left,
               detail::RightAhead<TypeParam>(right, lookahead, rng.integer(0, 9)), rows, cols,
               depth);
      ASSERT_TRUE(same_bits(got, expected));
    }
  }
}

/// Column c of a lookahead against line `line` of the rows of x.
template <class T>
void expect_line(const Lookahead& lookahead, Index c, const MatrixView<T>& x, Index line,
                 const Strip& strip) {
  const Lookahead::Column column = lookahead.column(c);
  ASSERT_EQ(column.count, strip.count);
  for (Index s = 0; s < strip.count; ++s) {
    const char* const row = reinterpret_cast<const char*>(x.row(strip.tokens[s]));
    EXPECT_EQ(column.data + column.tokens[s] * column.row_bytes, row + 64 * line);
  }
  for (Index k = 0; k < strip.count + 3; ++k) column.fetch(k);
}

void expect_nothing(const Lookahead& lookahead, Index c) {
  const Lookahead::Column column = lookahead.column(c);
  EXPECT_EQ(column.count, 0);
  for (Index k = 0; k < 3; ++k) column.fetch(k);
}

/// Cache lines of a row of x that starts at one.
template <class T>
Index lines_of(const MatrixView<T>& x) {
  Index lines = 0;
  while (64 * lines < x.cols * static_cast<Index>(sizeof(T))) ++lines;
  return lines;
}

template <class T>
class LookaheadOf : public testing::Test {};
using Scalars = testing::Types<float, double, Eigen::half, Eigen::bfloat16>;
TYPED_TEST_SUITE(LookaheadOf, Scalars);

TYPED_TEST(LookaheadOf, ColumnsAreTheLinesOfOneTensorAfterTheOther) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    test::Random rng(seed);
    const Strip strip = strip_of(some_tokens(rng, rng.integer(1, kStripTokens), 70));
    const Strip other = strip_of(some_tokens(rng, rng.integer(0, kStripTokens), 70));
    const Matrix<TypeParam> x(70, rng.integer(0, 150)), z(70, rng.integer(0, 150));
    Matrix<float> y(70, rng.integer(0, 150));
    MatrixView<const TypeParam> first = x;
    MatrixView<float> second = y;
    const MatrixView<const TypeParam> third = z;
    if (rng.chance(0.3)) first = {first.row(69), 70, first.cols, -first.row_stride};
    if (rng.chance(0.3)) second.row_stride = 0;
    Lookahead lookahead(strip, first, second);
    lookahead.add(other, third);
    lookahead.add(strip, second);
    lookahead.add(other, first);
    lookahead.add(strip, third);  // as many tensors as the causal gradients ask for, and one more
    Index c = 0;
    for (Index i = 0; i < lines_of(first); ++i) expect_line(lookahead, c++, first, i, strip);
    for (Index i = 0; i < lines_of(second); ++i) expect_line(lookahead, c++, second, i, strip);
    for (Index i = 0; i < lines_of(third); ++i) expect_line(lookahead, c++, third, i, other);
    for (Index i = 0; i < lines_of(second); ++i) expect_line(lookahead, c++, second, i, strip);
    for (Index i = 0; i < lines_of(first); ++i) expect_line(lookahead, c++, first, i, other);
    for (Index i = 0; i < lines_of(third); ++i) expect_line(lookahead, c++, third, i, strip);
    for (Index i = 0; i < 10; ++i) expect_nothing(lookahead, c + i);
  }
}

TYPED_TEST(LookaheadOf, TensorsThatAreAbsentOrHaveOtherColumnStridesHaveNoLines) {
  const Strip strip = strip_of({2, 0, 1});
  const Matrix<TypeParam> x(3, 100);
  const MatrixView<const TypeParam> rows = x, absent;
  for (const Index stride : {0, 2, -1}) {
    const MatrixView<const TypeParam> spread(x.data() + 50, 3, 20, 100, stride);
    for (Index c = 0; c < 20; ++c) {
      expect_nothing(Lookahead(strip, spread, spread), c);
      expect_nothing(Lookahead(strip, absent, spread), c);
      const Lookahead first(strip, rows, spread), second(strip, spread, rows);
      if (c < lines_of(rows)) {
        expect_line(first, c, rows, c, strip);
        expect_line(second, c, rows, c, strip);
      } else {
        expect_nothing(first, c);
        expect_nothing(second, c);
      }
    }
  }
}

TYPED_TEST(LookaheadOf, NothingAheadIsNothingToAskFor) {
  const Matrix<TypeParam> x(3, 100);
  const MatrixView<const TypeParam> rows = x;
  const Strip none = strip_of({});
  for (Index c = 0; c < 20; ++c) {
    expect_nothing(Lookahead(none, rows, rows), c);
    expect_nothing(Lookahead(), c);
  }
  Lookahead::Column().fetch(0);
}

TYPED_TEST(LookaheadOf, RowsThatCannotBeReadMayBeAskedFor) {
  const Strip strip = strip_of({0, 1000, 5});
  const MatrixView<const TypeParam> null(nullptr, 0, 64, 64);
  const Lookahead lookahead(strip, null, null);
  for (Index c = 0; c < 20; ++c) {
    for (Index k = 0; k < 5; ++k) lookahead.column(c).fetch(k);
  }
}

}  // namespace
}  // namespace mhla

#include "mhla/tokens/gather.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

#include "mhla/policy/grid_partition.hpp"
#include "mhla/policy/learned_feature_map.hpp"
#include "support/exact.hpp"
#include "support/placed.hpp"

namespace mhla {
namespace {

using detail::Rows;
using test::Memory;

constexpr Index kTokens = 9;

/// Tokens of one tensor [9, width] with arbitrary strides, in memory that is otherwise NaN.
template <class T>
struct Tokens {
  std::vector<T> all;
  Index first, width, row_stride, col_stride;

  Tokens(test::Random& rng, Index width_, Index row, Index col)
      : all(static_cast<std::size_t>(20 + kTokens * std::abs(row) + width_ * std::abs(col)),
            static_cast<T>(test::kNaN<float>)),
        first(3 + std::max<Index>(0, (1 - kTokens) * row) + std::max<Index>(0, (1 - width_) * col)),
        width(width_),
        row_stride(row),
        col_stride(col) {
    const Matrix<T> values = rng.matrix<T>(kTokens, width, -3, 3);
    for (Index t = 0; t < kTokens; ++t) set(t, values.row(t));
  }
  MatrixView<T> view() { return {all.data() + first, kTokens, width, row_stride, col_stride}; }
  MatrixView<const T> view() const {
    return {all.data() + first, kTokens, width, row_stride, col_stride};
  }
  template <class Row>
  void set(Index t, const Row& row) {
    for (Index j = 0; j < width; ++j) view()(t, j) = static_cast<T>(row(j));
  }
  /// Token t in the accumulator type.   // [1, width]
  Matrix<accumulator_t<T>> token(Index t) const {
    Matrix<accumulator_t<T>> row(1, width);
    for (Index j = 0; j < width; ++j) row(j) = static_cast<accumulator_t<T>>(view()(t, j));
    return row;
  }
  friend bool operator==(const Tokens& a, const Tokens& b) {
    return std::memcmp(a.all.data(), b.all.data(), a.all.size() * sizeof(T)) == 0;
  }
};

/// Calls f(x) with tokens that are dense, padded, column-major, spread and backwards.
template <class T, class F>
void for_tokens(test::Random& rng, F&& f) {
  for (const Index width : {0, 1, 5, 40, 130}) {
    const Index strides[][2] = {{width, 1},         {width + 3, 1}, {1, kTokens},
                                {3 * width + 5, 3}, {-width, 1},    {-400, -2}};
    for (const auto& [row, col] : strides) {
      SCOPED_TRACE("strides " + detail::shape_text({row, col}));
      f(Tokens<T>(rng, width, row, col));
    }
  }
}

template <class T>
class Gather : public testing::Test {};
using Scalars = testing::Types<float, double, Eigen::half, Eigen::bfloat16>;
TYPED_TEST_SUITE(Gather, Scalars);

/// Expects that `gather(rows)` writes these rows of scratch, one per token, and nothing else.
template <class A, class F>
void expect_rows(const Matrix<A>& expected, F&& gather) {
  Memory memory(20000);
  const Rows<A> rows("f", memory.arena, expected.rows() + 2, expected.cols());
  gather(rows);
  EXPECT_TRUE(test::same_bits(test::matrix_of(rows, expected.rows(), expected.cols()), expected));
  test::expect_nothing_beside(rows, expected.rows() + 2, expected.rows(), expected.cols());
}

TYPED_TEST(Gather, RowsAreWidenedScaledOrMappedTokensAndNoOthersAreRead) {
  using T = TypeParam;
  using A = accumulator_t<T>;
  const Index tokens[] = {7, 0, 4, 4};
  const A factors[] = {A(0.75), A(-3), A(0.1), 0};
  test::Random rng(1);
  for_tokens<T>(rng, [&](const Tokens<T>& filled) {
    Tokens<T> poisoned = filled;
    for (const Index t : {1, 2, 3, 5, 6, 8}) {
      poisoned.set(t, Matrix<float>::Constant(1, filled.width, test::kNaN<float>).row(0));
    }
    const Tokens<T>& x = poisoned;
    const T2R<A> learned(rng.matrix<A>(x.width, x.width));
    Matrix<A> wide(4, x.width), scaled(4, x.width), mapped(4, x.width), strip(4, x.width);
    Matrix<A> raw(1, detail::raw_size<A, T2R<A>>(x.width));
    for (Index s = 0; s < 4; ++s) {
      wide.row(s) = x.token(tokens[s]);
      scaled.row(s) = wide.row(s) * factors[s];
      if (factors[s] == 0) scaled.row(s).setZero();  // positive zero
      EluPlusOne{}(wide.row(s).data(), mapped.row(s).data(), x.width);
      learned(wide.row(s).data(), strip.row(s).data(), x.width);
    }
    expect_rows(wide, [&](Rows<A> rows) { detail::gather(x.view(), tokens, 4, rows); });
    expect_rows(scaled,
                [&](Rows<A> rows) { detail::gather_scaled(x.view(), tokens, 4, factors, rows); });
    expect_rows(mapped, [&](Rows<A> rows) {
      detail::gather_features(x.view(), tokens, 4, EluPlusOne{}, raw.data(), rows);
    });
    expect_rows(strip, [&](Rows<A> rows) {
      detail::gather_features(x.view(), tokens, 4, learned, raw.data(), rows);
    });
  });
}

TYPED_TEST(Gather, ScatteredAndAddedRowsAreRoundedOnceAndNothingElseIsWritten) {
  using T = TypeParam;
  using A = accumulator_t<T>;
  const Index tokens[] = {8, 0, 5};
  test::Random rng(3);
  for_tokens<T>(rng, [&](const Tokens<T>& x) {
    const Matrix<A> values = rng.matrix<A>(3, x.width, -3, 3);
    Memory memory(20000);
    const Rows<A> rows = test::rows_of(memory, values);
    Tokens<T> written = x, added = x, expected = x, sums = x;
    for (Index s = 0; s < 3; ++s) {
      expected.set(tokens[s], values.row(s));
      sums.set(tokens[s], (x.token(tokens[s]) + values.row(s)).eval());
    }
    detail::scatter(rows, tokens, 3, written.view());
    EXPECT_TRUE(written == expected);
    detail::add_to_tokens(rows, tokens, 3, added.view());
    EXPECT_TRUE(added == sums);
  });
}

TYPED_TEST(Gather, ClearMaskedZeroesTheMaskedTokensOfItsBlockAlone) {
  using T = TypeParam;
  const Grid blocks({3, 3}, {2, 2});
  test::Random rng(4);
  for_tokens<T>(rng, [&](const Tokens<T>& x) {
    for (Index b = 0; b < blocks.blocks(); ++b) {
      const test::RandomMask random(rng, kTokens, 0.5);
      Tokens<T> out = x, expected = x;
      detail::clear_masked(blocks, b, {}, out.view());
      EXPECT_TRUE(out == x) << "without a mask";
      for (Index r = 0; r < blocks.runs(b); ++r) {
        const Run run = blocks.run(b, r);
        for (Index t = run.begin; t < run.begin + run.length; ++t) {
          if (!random.mask[t]) expected.set(t, Matrix<float>::Zero(1, x.width).row(0));
        }
      }
      detail::clear_masked(blocks, b, random.mask, out.view());
      EXPECT_TRUE(out == expected);
    }
  });
}

/// Adds the adjoint of a map for some tokens, and compares it with the map's adjoint of dense rows.
template <class T, class Map>
void expect_features_adjoint(test::Random& rng, const Map& map, const Tokens<T>& x) {
  using A = accumulator_t<T>;
  const Index tokens[] = {6, 1, 7}, width = x.width, features = map.features(width);
  const Matrix<A> dy = rng.matrix<A>(3, features, -3, 3);
  for_tokens<T>(rng, [&](const Tokens<T>& before) {
    if (before.width != width) return;
    for (const auto& [wants_x, wants_weights] :
         {std::pair(false, true), {true, false}, {true, true}, {false, false}}) {
      Tokens<T> dx = before, expected = before;
      std::vector<A> weights(static_cast<std::size_t>(map.weights() + 1), A(5));
      std::vector<A> expected_weights = weights;
      Memory memory(100000);
      const Rows<A> y("f", memory.arena, 3, features);
      const Rows<A> raw("f", memory.arena, 2, detail::raw_size<A, Map>(width));
      for (Index s = 0; s < 3; ++s) {
        const Matrix<A> row = x.token(tokens[s]);
        Matrix<A> sum = Matrix<A>::Zero(1, width);
        map(row.data(), y.row(s), width);
        map.adjoint(row.data(), static_cast<const A*>(y.row(s)), dy.row(s).data(), sum.data(),
                    width, wants_weights ? expected_weights.data() : nullptr);
        if (wants_x) expected.set(tokens[s], (before.token(tokens[s]) + sum).eval());
      }
      detail::add_features_adjoint(x.view(), tokens, 3, map, y, test::rows_of(memory, dy), raw.data,
                                   wants_x ? dx.view() : MatrixView<T>(),
                                   wants_weights ? weights.data() : nullptr);
      EXPECT_TRUE(dx == expected);
      EXPECT_EQ(weights, expected_weights);
    }
  });
}

TYPED_TEST(Gather, AddFeaturesAdjointIsThatOfTheMapWhateverTheStridesAndWhatIsWanted) {
  using A = accumulator_t<TypeParam>;
  test::Random rng(6);
  for_tokens<TypeParam>(rng, [&rng](const Tokens<TypeParam>& x) {
    if (x.width != 5 && x.width != 40) return;
    expect_features_adjoint(rng, EluPlusOne{}, x);
    expect_features_adjoint(rng, Dpfp{3}, x);  // many terms in one element
    expect_features_adjoint(rng, T2R<A>(rng.matrix<A>(x.width, x.width)), x);
    expect_features_adjoint(rng, test::Times{3}, x);
  });
}

TEST(Gathered, TokensInARowAreReadInPlaceUnlessTheirRowsAlias) {
  const std::vector<float> numbers(3 * 1024);
  const std::vector<Index> in_a_row{1, 2}, apart{0, 2};
  for (const Index stride : {0, 8, 64, 128, 192, 256, 384, 392, 1024}) {
    // 64 rows that are 1024 bytes apart begin in 4 sets of L1, rows 512 bytes apart in 8 sets.
    // The latter alias only with 8 ways.
    const bool aliases = stride == 256 || stride == 1024 ||
                         (detail::kL1Ways == 8 && (stride == 128 || stride == 384));
    const MatrixView<const float> x(numbers.data(), 3, 8, stride);
    float copy[2 * 8];
    const auto in_place = [&](const std::vector<Index>& tokens) {
      const auto rows = detail::gathered(x, tokens.data(), 2, detail::Rows<float>(copy, 8));
      return rows.data == x.row(tokens[0]) && rows.stride == stride;
    };
    EXPECT_EQ(in_place(in_a_row), !aliases) << stride;
    EXPECT_FALSE(in_place(apart)) << stride;
  }
}

}  // namespace
}  // namespace mhla

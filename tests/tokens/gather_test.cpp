#include "mhla/tokens/gather.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "mhla/policy/grid_partition.hpp"
#include "mhla/policy/learned_feature_map.hpp"
#include "support/exact.hpp"
#include "support/outputs.hpp"
#include "support/random.hpp"

namespace mhla {
namespace {

using test::Memory;
using test::RandomMask;

using detail::Rows;

template <class T>
bool is_nan(T x) {
  return std::isnan(static_cast<accumulator_t<T>>(x));
}

/// A matrix with strides of its own inside memory that is otherwise NaN.
template <class T>
struct Strided {
  std::vector<T> all;
  MatrixView<T> view;

  Strided(Index rows, Index cols, Index row_stride, Index col_stride)
      : all(static_cast<std::size_t>(20 + rows * std::abs(row_stride) +
                                     cols * std::abs(col_stride)),
            static_cast<T>(std::numeric_limits<accumulator_t<T>>::quiet_NaN())) {
    T* const first = all.data() + 3 + (row_stride < 0 ? (1 - rows) * row_stride : 0) +
                     (col_stride < 0 ? (1 - cols) * col_stride : 0);
    view = {first, rows, cols, row_stride, col_stride};
  }
};

struct Strides {
  Index row, col;
};

constexpr Index kTokens = 9, kWidth = 5;
// Row-major, padded, column-major, spread, backwards.
constexpr Strides kStrides[] = {{5, 1}, {8, 1}, {1, 9}, {20, 3}, {-5, 1}, {-40, -2}};

template <class T>
class Gather : public testing::Test {};
using Scalars = testing::Types<float, double, Eigen::half, Eigen::bfloat16>;
TYPED_TEST_SUITE(Gather, Scalars);

TYPED_TEST(Gather, WidensTheRowsItIsAskedFor) {
  using A = accumulator_t<TypeParam>;
  test::Random rng(1);
  const Matrix<TypeParam> x = rng.matrix<TypeParam>(kTokens, kWidth, -3, 3);
  const Index tokens[] = {7, 0, 4, 4};
  for (const Strides strides : kStrides) {
    Strided<TypeParam> in(kTokens, kWidth, strides.row, strides.col);
    for (const Index t : tokens) {
      for (Index j = 0; j < kWidth; ++j) in.view(t, j) = x(t, j);  // all others stay NaN
    }
    Memory memory(10000);
    const Rows<A> rows("f", memory.arena, 6, kWidth);
    detail::gather<TypeParam>(in.view, tokens, 4, rows);
    for (Index s = 0; s < 6; ++s) {
      for (Index j = 0; j < rows.stride; ++j) {
        if (s < 4 && j < kWidth) {
          EXPECT_EQ(rows.row(s)[j], static_cast<A>(x(tokens[s], j)));
        } else {
          EXPECT_TRUE(std::isnan(rows.row(s)[j])) << "written outside";
        }
      }
    }
  }
}

TYPED_TEST(Gather, ReadsBroadcastRowsAndColumns) {
  using A = accumulator_t<TypeParam>;
  const TypeParam x[] = {static_cast<TypeParam>(1.f), static_cast<TypeParam>(2.f)};
  const Index tokens[] = {5, 0};
  Memory memory(10000);
  const Rows<A> rows("f", memory.arena, 2, 2);
  detail::gather<TypeParam>({x, 9, 2, 0, 1}, tokens, 2, rows);
  for (Index s = 0; s < 2; ++s) EXPECT_EQ(rows.row(s)[0] + 10 * rows.row(s)[1], 21);
  detail::gather<TypeParam>({x + 1, 9, 2, 0, 0}, tokens, 2, rows);
  for (Index s = 0; s < 2; ++s) EXPECT_EQ(rows.row(s)[0] + 10 * rows.row(s)[1], 22);
}

TYPED_TEST(Gather, FeaturesAreTheMapOfTheWidenedRowWhateverTheStrides) {
  using A = accumulator_t<TypeParam>;
  test::Random rng(2);
  const Matrix<TypeParam> x = rng.matrix<TypeParam>(kTokens, kWidth, -3, 3);
  const Index tokens[] = {8, 2, 3};
  for (const Strides strides : kStrides) {
    Strided<TypeParam> in(kTokens, kWidth, strides.row, strides.col);
    for (const Index t : tokens) {
      for (Index j = 0; j < kWidth; ++j) in.view(t, j) = x(t, j);
    }
    Memory memory(10000);
    A* const raw = memory.arena.template take<A>("f", kWidth);
    const Rows<A> rows("f", memory.arena, 3, kWidth);
    detail::gather_features<TypeParam>(in.view, tokens, 3, EluPlusOne{}, raw, rows);
    for (Index s = 0; s < 3; ++s) {
      A row[kWidth], expected[kWidth];
      for (Index j = 0; j < kWidth; ++j) row[j] = static_cast<A>(x(tokens[s], j));
      EluPlusOne{}(row, expected, kWidth);
      EXPECT_EQ(std::memcmp(rows.row(s), expected, sizeof(expected)), 0);
    }
  }
}

TYPED_TEST(Gather, ScatterRoundsToTheRowsItIsAskedForAndWritesNothingElse) {
  using A = accumulator_t<TypeParam>;
  test::Random rng(3);
  const Index tokens[] = {6, 1, 3};
  Memory memory(10000);
  const Rows<A> rows("f", memory.arena, 3, kWidth);
  for (Index s = 0; s < 3; ++s) {
    for (Index j = 0; j < kWidth; ++j) rows.row(s)[j] = static_cast<A>(rng.uniform(-3, 3));
  }
  for (const Strides strides : kStrides) {
    Strided<TypeParam> out(kTokens, kWidth, strides.row, strides.col);
    detail::scatter<TypeParam>(rows, tokens, 3, out.view);
    Index written = 0;
    for (const TypeParam value : out.all) written += is_nan(value) ? 0 : 1;
    EXPECT_EQ(written, 3 * kWidth);
    for (Index s = 0; s < 3; ++s) {
      for (Index j = 0; j < kWidth; ++j) {
        EXPECT_EQ(out.view(tokens[s], j), static_cast<TypeParam>(rows.row(s)[j]));
      }
    }
  }
}

TYPED_TEST(Gather, ClearMaskedZeroesTheMaskedRowsOfItsBlockAlone) {
  test::Random rng(4);
  const Grid blocks({3, 3}, {2, 2});
  for (const Strides strides : kStrides) {
    for (Index b = 0; b < blocks.blocks(); ++b) {
      const RandomMask random(rng, kTokens, 0.5);
      Strided<TypeParam> out(kTokens, kWidth, strides.row, strides.col);
      detail::clear_masked<TypeParam>(blocks, b, {}, out.view);
      for (const TypeParam value : out.all) EXPECT_TRUE(is_nan(value));
      detail::clear_masked<TypeParam>(blocks, b, random.mask, out.view);
      Index expected = 0, written = 0;
      for (Index r = 0; r < blocks.runs(b); ++r) {
        const Run run = blocks.run(b, r);
        for (Index t = run.begin; t < run.begin + run.length; ++t) {
          if (random.mask[t]) continue;
          expected += kWidth;
          for (Index j = 0; j < kWidth; ++j) EXPECT_EQ(out.view(t, j), TypeParam(0));
        }
      }
      for (const TypeParam value : out.all) written += is_nan(value) ? 0 : 1;
      EXPECT_EQ(written, expected);
    }
  }
}

/// Random numbers in a strided view, NaN around them.
template <class T>
Strided<T> filled(test::Random& rng, const Strides& strides, Index cols = kWidth) {
  Strided<T> x(kTokens, cols, strides.row, strides.col);
  const Matrix<T> values = rng.matrix<T>(kTokens, cols, -3, 3);
  for (Index t = 0; t < kTokens; ++t) {
    for (Index j = 0; j < cols; ++j) x.view(t, j) = values(t, j);
  }
  return x;
}

template <class T>
Matrix<T> matrix_of(const MatrixView<T>& x) {
  Matrix<T> m(x.rows, x.cols);
  for (Index t = 0; t < x.rows; ++t) {
    for (Index j = 0; j < x.cols; ++j) m(t, j) = x(t, j);
  }
  return m;
}

template <class T>
Index numbers_in(const Strided<T>& x) {
  return std::count_if(x.all.begin(), x.all.end(), [](T a) { return !is_nan(a); });
}

TYPED_TEST(Gather, AddToTokensRoundsTheSumOnce) {
  using A = accumulator_t<TypeParam>;
  test::Random rng(5);
  const Index tokens[] = {8, 0, 5};
  for (int round = 0; round < 20; ++round) {
    for (const Strides strides : kStrides) {
      Memory memory(10000);
      const Rows<A> rows = test::rows_of(memory, rng.matrix<A>(3, kWidth, -3, 3));
      Strided<TypeParam> out = filled<TypeParam>(rng, strides);
      Matrix<TypeParam> expected = matrix_of(out.view);
      for (Index s = 0; s < 3; ++s) {
        for (Index j = 0; j < kWidth; ++j) {
          TypeParam& sum = expected(tokens[s], j);
          sum = static_cast<TypeParam>(static_cast<A>(sum) + rows.row(s)[j]);
        }
      }
      const Index numbers = numbers_in(out);
      detail::add_to_tokens<TypeParam>(rows, tokens, 3, out.view);
      EXPECT_TRUE(test::same_bits(matrix_of(out.view), expected));
      EXPECT_EQ(numbers_in(out), numbers);
    }
  }
}

/// A map with one weight, y = weight x, that counts what it is asked for.
struct Probe {
  double weight = 3;
  Index own_weights = 1;
  mutable Index calls = 0, with_weights = 0;

  Index features(Index d) const { return d; }
  Index weights() const { return own_weights; }
  template <class A>
  void operator()(const A* x, A* y, Index d) const {
    for (Index j = 0; j < d; ++j) y[j] = static_cast<A>(weight) * x[j];
  }
  template <class A>
  void adjoint(const A* x, const A* y, const A* dy, A* dx, Index d, A* dweights) const {
    ++calls;
    with_weights += dweights == nullptr ? 0 : 1;
    for (Index j = 0; j < d; ++j) {
      EXPECT_EQ(y[j], static_cast<A>(weight) * x[j]) << "features of another token";
      dx[j] += static_cast<A>(weight) * dy[j];
      if (dweights != nullptr) *dweights += dy[j] * x[j];
    }
  }
};
static_assert(DifferentiableFeatureMap<Probe, float> && DifferentiableFeatureMap<Probe, double>);

/// Adds the adjoint of a map for some tokens, and checks it against the map's own of dense rows.
template <class T, class Map>
void expect_features_adjoint(test::Random& rng, const Map& map, const Strides& in,
                             const Strides& out) {
  using A = accumulator_t<T>;
  const Index tokens[] = {6, 1, 7};
  const Strided<T> x = filled<T>(rng, in);
  const Matrix<A> wide = matrix_of(x.view).template cast<A>();
  const Index width = wide.cols(), features = map.features(width);
  const Matrix<A> dy = rng.matrix<A>(3, features, -3, 3);
  for (const bool wants_x : {false, true}) {
    for (const bool wants_weights : {false, true}) {
      Strided<T> dx = filled<T>(rng, out);
      Matrix<T> expected = matrix_of(dx.view);
      std::vector<A> weights(static_cast<std::size_t>(map.weights() + 1), A(5));
      std::vector<A> expected_weights = weights;
      Memory memory(10000);
      A* const raw = memory.arena.template take<A>("f", 2 * width);
      const Rows<A> y("f", memory.arena, 3, features);
      for (Index s = 0; s < 3; ++s) {
        const A* const row = wide.data() + tokens[s] * width;
        Matrix<A> sum = expected.row(tokens[s]).template cast<A>();
        map(row, y.row(s), width);
        map.adjoint(row, y.row(s), dy.data() + s * features, sum.data(), width,
                    wants_weights ? expected_weights.data() : nullptr);
        if (wants_x) expected.row(tokens[s]) = sum.template cast<T>();
      }
      const Index numbers = numbers_in(dx);
      detail::add_features_adjoint<T>(x.view, tokens, 3, map, y, test::rows_of(memory, dy), raw,
                                      wants_x ? dx.view : MatrixView<T>(),
                                      wants_weights ? weights.data() : nullptr);
      EXPECT_TRUE(test::same_bits(matrix_of(dx.view), expected));
      EXPECT_EQ(numbers_in(dx), numbers);
      EXPECT_EQ(weights, expected_weights);
    }
  }
}

TYPED_TEST(Gather, AddFeaturesAdjointIsThatOfTheMapWhateverTheStrides) {
  using A = accumulator_t<TypeParam>;
  test::Random rng(6);
  for (const Strides in : kStrides) {
    for (const Strides out : kStrides) {
      expect_features_adjoint<TypeParam>(rng, EluPlusOne{}, in, out);
      expect_features_adjoint<TypeParam>(rng, Dpfp{3}, in, out);  // many terms in one element
      expect_features_adjoint<TypeParam>(rng, T2R<A>(rng.matrix<A>(kWidth, kWidth)), in, out);
      expect_features_adjoint<TypeParam>(rng, Probe{}, in, out);
    }
  }
}

TYPED_TEST(Gather, ScaledRowsAreWidenedRowsTimesTheirFactors) {
  using A = accumulator_t<TypeParam>;
  test::Random rng(8);
  const std::vector<Index> tokens{7, 0, 4};
  const std::vector<A> factors{A(0.75), A(-3), A(0.1)};
  for (const Index width : {0, 1, 5, 40}) {
    for (const bool apart : {false, true}) {
      const auto values = rng.matrix<TypeParam>(kTokens, width * 2 + 1);
      const MatrixView<const TypeParam> x{values.data(), kTokens, width, values.cols(),
                                          apart ? 2 : 1};
      Memory memory(4096);
      const Rows<A> rows("f", memory.arena, 3, width);
      detail::gather_scaled(x, tokens.data(), 3, factors.data(), rows);
      for (Index s = 0; s < 3; ++s) {
        const auto i = static_cast<std::size_t>(s);
        for (Index j = 0; j < width; ++j) {
          EXPECT_EQ(static_cast<A>(x(tokens[i], j)) * factors[i], rows.row(s)[j]);
        }
      }
    }
  }
}

TYPED_TEST(Gather, AddNarrowedRoundsLongRowsOnceAndStopsAtTheirEnd) {
  using A = accumulator_t<TypeParam>;
  test::Random rng(9);
  for (const Index count : {0, 1, 63, 64, 65, 130}) {
    const auto x = rng.matrix<A>(1, count);
    auto y = rng.matrix<TypeParam>(1, count + 1);
    const auto before = y;
    detail::add_narrowed(x.data(), y.data(), count);
    for (Index j = 0; j < count; ++j) {
      EXPECT_EQ(static_cast<TypeParam>(static_cast<A>(before(0, j)) + x(0, j)), y(0, j));
    }
    EXPECT_EQ(before(0, count), y(0, count));
  }
}

TYPED_TEST(Gather, AddFeaturesAdjointDoesNothingWhereNothingIsWanted) {
  using A = accumulator_t<TypeParam>;
  test::Random rng(7);
  const Strided<TypeParam> x = filled<TypeParam>(rng, kStrides[0]);
  Strided<TypeParam> dx = filled<TypeParam>(rng, kStrides[0]);
  const Index tokens[] = {2, 3};
  A raw[2 * kWidth], weight = 5;
  Memory memory(10000);
  const Rows<A> y("f", memory.arena, 2, kWidth),
      dy = test::rows_of(memory, rng.matrix<A>(2, kWidth));
  const auto calls = [&](Index own_weights, bool wants_x, bool wants_weights) {
    const Probe map{.own_weights = own_weights};
    detail::gather_features<TypeParam>(x.view, tokens, 2, map, raw, y);
    detail::add_features_adjoint<TypeParam>(x.view, tokens, 2, map, y, dy, raw,
                                            wants_x ? dx.view : MatrixView<TypeParam>(),
                                            wants_weights ? &weight : nullptr);
    EXPECT_EQ(map.with_weights, wants_weights ? map.calls : 0);
    return map.calls;
  };
  EXPECT_EQ(calls(1, false, false), 0);
  EXPECT_EQ(calls(0, false, false), 0);
  EXPECT_EQ(calls(0, false, true), 0);  // there are no weights
  EXPECT_EQ(calls(1, false, true), 2);
  EXPECT_EQ(calls(0, true, false), 2);
  EXPECT_EQ(calls(1, true, true), 2);
}

}  // namespace
}  // namespace mhla

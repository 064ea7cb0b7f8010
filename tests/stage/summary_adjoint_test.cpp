// The adjoint functions of mhla/stage/summary.hpp: exact on whole numbers.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "mhla/stage/summary.hpp"
#include "support/exact.hpp"

namespace mhla {
namespace {

using test::Memory;

using detail::kRowAlignment;
using detail::kStripTokens;
using detail::Lookahead;
using detail::RightAhead;
using detail::RightOperand;
using detail::round_up;
using detail::Rows;
using detail::Start;
using detail::Target;

/// Rows of a strip to start from: NaN where nothing is to be read.
template <class A>
Rows<A> target_of(Memory& memory, Start start, const Matrix<A>& before, Index room) {
  if (start == Start::kTarget) return test::rows_of(memory, before, room);
  return Rows<A>("f", memory.arena, room, before.cols());
}

template <class A>
class SummaryAdjoint : public testing::Test {};
using Accumulators = testing::Types<float, double>;
TYPED_TEST_SUITE(SummaryAdjoint, Accumulators);

TYPED_TEST(SummaryAdjoint, TransposeToIsTheTransposeAndWritesNothingBehindIt) {
  test::Random rng(1);
  for (Index rows = 0; rows <= 40; ++rows) {
    for (Index cols = 0; cols <= 40; cols += 1 + cols / 9) {
      const Index room = round_up(rows, kRowAlignment);
      const Matrix<TypeParam> x = rng.matrix<TypeParam>(room, cols);  // in exactly its memory
      std::vector<TypeParam> y(static_cast<std::size_t>(cols * room + 1), TypeParam(9));
      const RightOperand<TypeParam> transposed =
          detail::transpose_to(x.data(), rows, cols, y.data());
      ASSERT_EQ(transposed.data, y.data());
      ASSERT_EQ(transposed.depth_stride, room);
      for (Index c = 0; c < cols; ++c) {
        for (Index r = 0; r < rows; ++r) {
          ASSERT_EQ(transposed.row(c)[r], x(r, c)) << rows << " x " << cols;
        }
      }
      ASSERT_EQ(y.back(), 9);
    }
  }
}

/// A strip of keys and values and the gradients of its summary.
template <class A>
struct Strip {
  test::Random rng;
  Index count, d, e;
  Start start;
  Matrix<A> keys, values;       // [count,D], [count,E]
  Matrix<A> dkeys, dvalues;     // what is there before
  Matrix<A> gradient, dz;       // [D,E], [1,D]
  std::vector<A> padded;        // the gradient, readable up to padded rows
  std::vector<A> transposed;    // room for [E,D]
  Matrix<A> ahead;              // what the lookahead asks for
  detail::Strip next;           // of whose rows
  bool asks = rng.chance(0.5);  // whether it asks for anything

  explicit Strip(std::uint64_t seed)
      : rng(seed),
        count(rng.integer(0, kStripTokens)),
        d(rng.integer(0, 40)),
        e(rng.integer(0, 40)),
        start(rng.chance(0.5) ? Start::kZero : Start::kTarget),
        keys(test::integers<A>(rng, count, d)),
        values(test::integers<A>(rng, count, e)),
        dkeys(test::integers<A>(rng, count, d, 99)),
        dvalues(test::integers<A>(rng, count, e, 99)),
        gradient(test::integers<A>(rng, d, e)),
        dz(test::integers<A>(rng, 1, d)),
        padded(static_cast<std::size_t>(round_up(d, kRowAlignment) * e)),
        transposed(static_cast<std::size_t>(round_up(d, kRowAlignment) * e)),
        ahead(5, 100) {
    std::copy_n(gradient.data(), d * e, padded.data());
    next.count = 5;
    for (Index s = 0; s < 5; ++s) next.tokens[s] = 4 - s;
  }
  Lookahead lookahead() const {
    return asks ? Lookahead(next, MatrixView<const A>(ahead)) : Lookahead();
  }
};

TYPED_TEST(SummaryAdjoint, KeysGetTheGradientTimesTheirValuesAndThatOfTheKeySum) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Strip<TypeParam> x(seed);
    const bool key_sum = x.rng.chance(0.5);
    Matrix<TypeParam> expected = x.values * x.gradient.transpose();
    if (key_sum) expected.rowwise() += x.dz.row(0);
    if (x.start == Start::kTarget) expected += x.dkeys;

    const RightOperand<TypeParam> transposed =
        detail::transpose_to(x.padded.data(), x.d, x.e, x.transposed.data());
    const Lookahead lookahead = x.lookahead();
    for (const bool ahead : {false, true}) {
      Memory memory(200000);
      const Rows<TypeParam> values = test::rows_of(memory, x.values);
      const Rows<TypeParam> dkeys = target_of(memory, x.start, x.dkeys, x.count + 1);
      const TypeParam* const dz = key_sum ? x.dz.data() : nullptr;
      if (ahead) {
        detail::summary_adjoint_keys(x.start, values, x.count, x.d, x.e,
                                     RightAhead<TypeParam>(transposed, lookahead, 1), dz, dkeys);
      } else {
        detail::summary_adjoint_keys(x.start, values, x.count, x.d, x.e, transposed, dz, dkeys);
      }
      EXPECT_EQ(test::matrix_of(dkeys, x.count, x.d), expected);
      test::expect_nothing_beside(dkeys, x.count + 1, x.count, x.d);
    }
  }
}

TYPED_TEST(SummaryAdjoint, ValuesGetTheGradientTimesTheirKeys) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Strip<TypeParam> x(seed);
    Matrix<TypeParam> expected = x.keys * x.gradient;
    if (x.start == Start::kTarget) expected += x.dvalues;

    Memory memory(200000);
    const Rows<TypeParam> keys = test::rows_of(memory, x.keys);
    const Rows<TypeParam> dvalues = target_of(memory, x.start, x.dvalues, x.count + 1);
    detail::summary_adjoint_values(x.start, keys, x.count, x.d, x.e,
                                   RightOperand<TypeParam>{x.gradient.data(), x.e},
                                   Target<TypeParam>{dvalues.data, dvalues.stride});
    EXPECT_EQ(test::matrix_of(dvalues, x.count, x.e), expected);
    test::expect_nothing_beside(dvalues, x.count + 1, x.count, x.e);

    // Rows of a tensor, in any order.
    Matrix<TypeParam> tensor = test::unwritten<TypeParam>(x.count + 1, x.e);
    Matrix<TypeParam> expected_tensor = tensor;
    std::vector<Index> tokens;
    for (Index s = 0; s < x.count; ++s) {
      tokens.push_back(x.count - s);
      tensor.row(tokens.back()) = x.dvalues.row(s);
      expected_tensor.row(tokens.back()) = expected.row(s);
    }
    const Lookahead lookahead = x.lookahead();
    detail::summary_adjoint_values(x.start, keys, x.count, x.d, x.e,
                                   RightAhead<TypeParam>({x.gradient.data(), x.e}, lookahead, 0),
                                   detail::TokenRows<TypeParam>{tensor.data(), x.e, tokens.data()});
    EXPECT_TRUE(test::same_bits<TypeParam>(tensor.bottomRows(x.count),
                                           expected_tensor.bottomRows(x.count)));
    EXPECT_TRUE(tensor.row(0).array().isNaN().all());
  }
}

}  // namespace
}  // namespace mhla

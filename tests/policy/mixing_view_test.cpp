// Views and owners of several mixing matrices. Tests of one matrix are in mixing_matrix_test.cpp.

#include "mhla/policy/mixing_view.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "mhla/policy/mixing_matrix.hpp"
#include "support/bands.hpp"
#include "support/message_of.hpp"
#include "support/random.hpp"

namespace mhla {
namespace {

template <class A>
class MixingViewOf : public testing::Test {};
using Accumulators = testing::Types<float, double>;
TYPED_TEST_SUITE(MixingViewOf, Accumulators);

/// Random matrices of three heads in a band.
template <class A>
MixingMatrix<A> three(test::Random& rng, const Pattern& pattern, Index sequences = 1) {
  MixingMatrix<A> m(pattern, 3, sequences);
  m.view().for_each([&rng](A& c) { c = static_cast<A>(rng.uniform(0.25, 2)); });
  return m;
}

TYPED_TEST(MixingViewOf, AViewOfSeveralMatricesGivesTheMatrixOfEachHead) {
  using A = TypeParam;
  test::for_bands([](test::Random& rng, Index rows, Index cols, Index lower, Index upper) {
    const Pattern band(rows, cols, lower, upper);
    const MixingMatrix<A> m = three<A>(rng, band);
    const Index gap = 2, stride = band.size() + gap;
    std::vector<A> parameters(static_cast<std::size_t>(3 * stride), A(7));
    const MixingView<A> view(parameters.data(), band, 3, stride);
    for (Index h = 0; h < 3; ++h) std::fill_n(view.of_head(h).storage().data(), band.size(), A(0));
    view.for_each_place([&m](Index h, Index i, Index b, A& c) { c = m.of_head(h)(i, b); });
    const MixingView<const A> constant = view;
    for (Index h = 0; h < 3; ++h) {
      EXPECT_EQ(view.of_head(h).dense(), m.of_head(h).dense());
      EXPECT_EQ(constant.of_head(h).dense(), m.of_head(h).dense());
      EXPECT_EQ(constant.of_head(h).storage().data(), parameters.data() + h * stride);
      EXPECT_EQ(constant.of_head(h).heads(), 1);
      for (Index n = 0; n < gap; ++n) {
        EXPECT_EQ(parameters[static_cast<std::size_t>((h + 1) * stride - gap + n)], 7);
      }
    }
    EXPECT_EQ(constant.heads(), 3);
    EXPECT_EQ(constant.head_stride(), stride);
    EXPECT_EQ(std::ssize(constant.storage()), 2 * stride + band.size());
    const MixingMatrix<A> copy(constant), zeros = zeros_like(constant);
    EXPECT_TRUE(std::equal(copy.storage().begin(), copy.storage().end(), m.storage().begin(),
                           m.storage().end()));
    EXPECT_EQ(zeros.heads(), 3);
    EXPECT_EQ(zeros.pattern(), band);
    EXPECT_EQ(std::ssize(zeros.storage()), 3 * band.size());
  });
}

TYPED_TEST(MixingViewOf, AMatrixThatHeadsShareIsThatOfEveryHead) {
  test::Random rng(3);
  Matrix<TypeParam> c = rng.matrix<TypeParam>(4, 5);
  const MixingView<TypeParam> shared(c);
  EXPECT_EQ(shared.heads(), 1);
  EXPECT_EQ(shared.head_stride(), 0);
  EXPECT_EQ(shared.of_head(7).storage().data(), c.data());
  const MixingView<TypeParam> one(c.data(), Pattern(4, 5), 1, 20);
  EXPECT_EQ(one.of_head(7).storage().data(), c.data());
  EXPECT_EQ(one.head_stride(), 0);
  EXPECT_EQ(std::ssize(one.storage()), 20);
}

TYPED_TEST(MixingViewOf, MatricesThatAreOnlyReadMayOverlap) {
  const std::vector<TypeParam> numbers{1, 2, 3, 4, 5, 6};
  const MixingView<const TypeParam> m(numbers.data(), Pattern(2, 2), 3, 1);
  for (Index h = 0; h < 3; ++h) {
    EXPECT_EQ(m.of_head(h)(0, 0), h + 1);
    EXPECT_EQ(m.of_head(h)(1, 1), h + 4);
  }
}

TYPED_TEST(MixingViewOf, AViewHasTheMatricesOfEachSequenceAndHead) {
  using A = TypeParam;
  test::for_bands([](test::Random& rng, Index rows, Index cols, Index lower, Index upper) {
    const Pattern band(rows, cols, lower, upper);
    const MixingMatrix<A> m = three<A>(rng, band, 2);
    EXPECT_EQ(m.sequences(), 2);
    EXPECT_EQ(m.heads(), 3);
    const Index head = band.size() + 1, sequence = 3 * head + 2;
    std::vector<A> numbers(static_cast<std::size_t>(2 * sequence), A(7));
    const MixingView<A> view(numbers.data(), band, 3, head, 2, sequence);
    for (Index n = 0; n < 6; ++n) std::fill_n(view.matrix(n).storage().data(), band.size(), A(0));
    view.for_each_place([&m](Index n, Index i, Index b, A& c) { c = m.matrix(n)(i, b); });
    const MixingView<const A> constant = view;
    EXPECT_EQ(constant.sequences(), 2);
    EXPECT_EQ(constant.sequence_stride(), sequence);
    EXPECT_EQ(constant.matrices(), 6);
    EXPECT_EQ(std::ssize(constant.storage()), sequence + 2 * head + band.size());
    for (Index s = 0; s < 2; ++s) {
      EXPECT_EQ(constant.of_sequence(s).sequences(), 1);
      EXPECT_EQ(constant.of_sequence(s).heads(), 3);
      for (Index h = 0; h < 3; ++h) {
        const auto one = constant.of_sequence(s).of_head(h);
        const auto same = constant.of_head(h).of_sequence(s);
        EXPECT_EQ(one.matrices(), 1);
        EXPECT_EQ(one.storage().data(), numbers.data() + s * sequence + h * head);
        EXPECT_EQ(same.storage().data(), one.storage().data());
        EXPECT_EQ(view.matrix(3 * s + h).storage().data(), one.storage().data());
        EXPECT_EQ(one.dense(), m.of_sequence(s).of_head(h).dense());
        EXPECT_EQ(m.of_head(h).of_sequence(s).dense(), m.matrix(3 * s + h).dense());
        EXPECT_EQ(numbers[static_cast<std::size_t>(s * sequence + h * head + band.size())], 7);
      }
    }
    const auto odd = constant.of_heads(0, 2, 2);
    EXPECT_EQ(odd.sequences(), 2);
    EXPECT_EQ(odd.matrix(3).storage().data(), constant.matrix(5).storage().data());
    const MixingMatrix<A> copy(constant), zeros = zeros_like(constant);
    EXPECT_TRUE(std::equal(copy.storage().begin(), copy.storage().end(), m.storage().begin(),
                           m.storage().end()));
    EXPECT_EQ(copy.sequences(), 2);
    EXPECT_EQ(zeros.sequences(), 2);
    EXPECT_EQ(zeros.heads(), 3);
    const MixingView<A> one(numbers.data(), band, 3, head, 1, 5);
    EXPECT_EQ(one.sequence_stride(), 0);
    EXPECT_EQ(one.of_sequence(4).storage().data(), numbers.data());
  });
}

TYPED_TEST(MixingViewOf, PatternsOfSeveralMatricesAreCopiedMatrixByMatrix) {
  using A = TypeParam;
  test::for_bands([](test::Random& rng, Index rows, Index cols, Index lower, Index upper) {
    const Pattern band(rows, cols, lower, upper);
    const MixingMatrix<A> m = three<A>(rng, band, 2);
    const auto of = [&m](Index n) { return MixingMatrix<A>(m.matrix(n)); };
    const MixingMatrix<A> triangle = lower_triangle(m);
    auto holes = m;
    holes.view().for_each([&rng](A& c) { c = rng.chance(0.5) ? c : 0; });
    const auto sparse = MixingMatrix<A>::sparse(holes);
    Index in_any = 0;
    for (Index i = 0; i < rows; ++i) {
      for (Index b = 0; b < cols; ++b) {
        bool any = false;
        for (Index n = 0; n < 6; ++n) any = any || holes.matrix(n)(i, b) != 0;
        in_any += any ? 1 : 0;
      }
    }
    EXPECT_EQ(sparse.pattern().size(), in_any);
    for (Index n = 0; n < 6; ++n) {
      EXPECT_EQ(triangle.matrix(n).dense(), lower_triangle(of(n)).dense());
      EXPECT_EQ(sparse.matrix(n).dense(), holes.matrix(n).dense());
    }
    const MixingMatrix<A> copies = per_head(of(1), 4);
    ASSERT_EQ(copies.heads(), 4);
    for (Index h = 0; h < 4; ++h) EXPECT_EQ(copies.of_head(h).dense(), m.matrix(1).dense());
  });
}

TEST(MixingView, RefusesSeveralMatricesWhereOneIsRead) {
  const MixingMatrix<float> m(Pattern(2, 2), 3);
  const auto text = [](auto&& f) { return test::message_of<error>(f); };
  const std::string rest = "m has 3 matrices, expected one, such as matrix(0)";
  EXPECT_EQ(text([&] { m(0, 0); }), "mhla::MixingView: " + rest);
  EXPECT_EQ(text([&] { m.dense(); }), "mhla::MixingView::dense: " + rest);
  EXPECT_EQ(text([&] { MixingMatrix<float>(m).at(0, 0); }), "mhla::MixingView::at: " + rest);
  EXPECT_EQ(text([&] { per_head(m, 2); }), "mhla::per_head: " + rest);
  const MixingMatrix<float> each(Pattern(2, 2), 3, 2), sequences(Pattern(2, 2), 1, 2);
  const auto refusal = [&](const MixingMatrix<float>& of, Index batch, Index heads) {
    return text([&] { detail::expect_mixing_of_heads("f", of.view(), batch, heads); });
  };
  EXPECT_EQ(refusal(m, 1, 3), "no exception");
  EXPECT_EQ(refusal(m, 2, 3), "no exception");
  EXPECT_EQ(refusal(each, 2, 3), "no exception");
  EXPECT_EQ(refusal(sequences, 2, 1), "no exception");
  EXPECT_EQ(refusal(m, 1, 4),
            "mhla::f: mixing has 3 matrices, expected 1, or 4, one per head of q");
  EXPECT_EQ(refusal(m, 1, 1), "mhla::f: mixing has 3 matrices, expected 1, for one head");
  EXPECT_EQ(
      refusal(each, 3, 3),
      "mhla::f: mixing has 2 x 3 matrices, expected 1, or 3, one per head of q, or 3 x 3, one "
      "per sequence and head of q");
  EXPECT_EQ(
      refusal(sequences, 2, 3),
      "mhla::f: mixing has 2 x 1 matrices, expected 1, or 3, one per head of q, or 2 x 3, one "
      "per sequence and head of q");
  EXPECT_EQ(refusal(each, 1, 3),
            "mhla::f: mixing has 2 x 3 matrices, expected 1, or 3, one per head of q");
  EXPECT_EQ(text([&] { detail::expect_stream_mixing("f", each.view()); }),
            "mhla::f: mixing has 2 x 3 matrices, expected one, or one per head: a stream for each "
            "sequence");
  for (const auto& [count, stride] : {std::pair<Index, Index>{0, 4}, {2, -1}}) {
    const std::string are = " are " + std::to_string(count) + ", with a stride of " +
                            std::to_string(stride) + ", expected at least one, and a stride >= 0";
    const auto view = [count = count, stride = stride](bool of_heads) {
      const Index heads = of_heads ? count : 1, all = of_heads ? 1 : count;
      MixingView<const float>(nullptr, Pattern(2, 2), heads, stride, all, stride);
    };
    EXPECT_EQ(text([&] { view(true); }), "mhla::MixingView: heads" + are);
    EXPECT_EQ(text([&] { view(false); }), "mhla::MixingView: sequences" + are);
  }
  EXPECT_EQ(text([] { MixingMatrix<float>(Pattern(2, 2), 0); }),
            "mhla::MixingMatrix: heads are 0, expected at least 1");
  EXPECT_EQ(text([] { MixingMatrix<float>(Pattern(2, 2), 2, -1); }),
            "mhla::MixingMatrix: sequences are -1, expected at least 1");
  constexpr Index kMany = Index{1} << 62;
  EXPECT_THROW(MixingView<const float>(nullptr, Pattern(2, 2), kMany, 4), shape_error);
  EXPECT_THROW(MixingView<const float>(nullptr, Pattern(2, 2), 4, kMany), shape_error);
  EXPECT_THROW(MixingView<const float>(nullptr, Pattern(2, 2), 1, 0, kMany, 4), shape_error);
  EXPECT_THROW(MixingMatrix<float>(Pattern(2, 2), kMany), shape_error);
  EXPECT_THROW(MixingMatrix<float>(Pattern(2, 2), 2, kMany), shape_error);
}

}  // namespace
}  // namespace mhla

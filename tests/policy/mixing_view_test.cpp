// Views and owners of a mixing matrix per head. Tests of one matrix are in mixing_matrix_test.cpp.

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

/// Three random matrices in a band.
template <class A>
MixingMatrix<A> three(test::Random& rng, const Pattern& pattern) {
  MixingMatrix<A> m(pattern, 3);
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

TYPED_TEST(MixingViewOf, AMatrixPerHeadIsTrainedHeadByHead) {
  using A = TypeParam;
  test::for_bands([](test::Random& rng, Index rows, Index cols, Index lower, Index upper) {
    const Pattern band(rows, cols, lower, upper);
    MixingMatrix<A> m = three<A>(rng, band);
    const auto of = [&m](Index h) { return MixingMatrix<A>(std::as_const(m).of_head(h)); };
    const MixingMatrix<A> triangle = lower_triangle(m);
    auto holes = m;
    holes.view().for_each([&rng](A& c) { c = rng.chance(0.5) ? c : 0; });
    const auto sparse = MixingMatrix<A>::sparse(holes);
    Index in_any = 0;
    for (Index i = 0; i < rows; ++i) {
      for (Index b = 0; b < cols; ++b) {
        bool any = false;
        for (Index h = 0; h < 3; ++h) any = any || holes.of_head(h)(i, b) != 0;
        in_any += any ? 1 : 0;
      }
    }
    EXPECT_EQ(sparse.pattern().size(), in_any);
    auto clamped = m, clamped_lower = m;
    clamp(clamped, A(0.5), A(1));
    clamp_to_lower_triangle(clamped_lower, A(0.5), A(1));
    for (Index h = 0; h < 3; ++h) {
      EXPECT_EQ(triangle.of_head(h).dense(), lower_triangle(of(h)).dense());
      EXPECT_EQ(sparse.of_head(h).dense(), holes.of_head(h).dense());
      auto alone = of(h), alone_lower = of(h);
      clamp(alone, A(0.5), A(1));
      clamp_to_lower_triangle(alone_lower, A(0.5), A(1));
      EXPECT_EQ(clamped.of_head(h).dense(), alone.dense());
      EXPECT_EQ(clamped_lower.of_head(h).dense(), alone_lower.dense());
    }
    if (band.first(rows - 1) == band.last(rows - 1)) return;  // an empty row has no sum
    auto normal = m;
    normalize_rows(normal);
    for (Index h = 0; h < 3; ++h) {
      auto alone = of(h);
      normalize_rows(alone);
      EXPECT_EQ(normal.of_head(h).dense(), alone.dense());
    }
    m.of_head(2).for_each_in_row(rows - 1, [](Index, A& c) { c = 0; });
    const auto before = m;
    EXPECT_THROW(normalize_rows(m), option_error);
    EXPECT_TRUE(std::equal(m.storage().begin(), m.storage().end(), before.storage().begin()));
    const MixingMatrix<A> copies = per_head(of(1), 4);
    ASSERT_EQ(copies.heads(), 4);
    for (Index h = 0; h < 4; ++h) EXPECT_EQ(copies.of_head(h).dense(), m.of_head(1).dense());
  });
}

TEST(MixingView, RefusesSeveralMatricesWhereOneIsRead) {
  const MixingMatrix<float> m(Pattern(2, 2), 3);
  const auto text = [](auto&& f) { return test::message_of<error>(f); };
  const std::string rest = "m has 3 matrices, expected one, such as of_head(0)";
  EXPECT_EQ(text([&] { m(0, 0); }), "mhla::MixingView: " + rest);
  EXPECT_EQ(text([&] { m.dense(); }), "mhla::MixingView::dense: " + rest);
  EXPECT_EQ(text([&] { MixingMatrix<float>(m).at(0, 0); }), "mhla::MixingView::at: " + rest);
  EXPECT_EQ(text([&] { per_head(m, 2); }), "mhla::per_head: " + rest);
  EXPECT_EQ(text([&] { detail::expect_mixing_heads("f", m.view(), 3); }), "no exception");
  EXPECT_EQ(text([&] { detail::expect_mixing_heads("f", m.view(), 4); }),
            "mhla::f: mixing has 3 matrices, expected 1, or 4, one per head of q");
  EXPECT_EQ(text([&] { detail::expect_mixing_heads("f", m.view(), 1); }),
            "mhla::f: mixing has 3 matrices, expected 1, for one head");
  for (const auto& [heads, stride] : {std::pair<Index, Index>{0, 4}, {2, -1}}) {
    EXPECT_EQ(text([&, heads = heads, stride = stride] {
                MixingView<const float>(nullptr, Pattern(2, 2), heads, stride);
              }),
              "mhla::MixingView: heads are " + std::to_string(heads) + ", with a head stride of " +
                  std::to_string(stride) + ", expected at least one head and a stride >= 0");
  }
  EXPECT_EQ(text([] { MixingMatrix<float>(Pattern(2, 2), 0); }),
            "mhla::MixingMatrix: heads are 0, expected at least 1");
  constexpr Index kMany = Index{1} << 62;
  EXPECT_THROW(MixingView<const float>(nullptr, Pattern(2, 2), kMany, 4), shape_error);
  EXPECT_THROW(MixingView<const float>(nullptr, Pattern(2, 2), 4, kMany), shape_error);
  EXPECT_THROW(MixingMatrix<float>(Pattern(2, 2), kMany), shape_error);
}

}  // namespace
}  // namespace mhla

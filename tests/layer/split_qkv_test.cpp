#include "mhla/layer/split_qkv.hpp"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "mhla/attention/batch.hpp"
#include "support/message_of.hpp"

namespace mhla::test {
namespace {

/// A matrix of 2 items with 3 tokens. All elements differ, with gaps around rows and columns.
struct PackedQkv {
  static constexpr Index kBatch = 2, kTokens = 3;
  std::vector<float> memory;
  MatrixView<float> rows;

  explicit PackedQkv(Index cols)
      : memory(static_cast<std::size_t>(kBatch * kTokens * (2 * cols + 5))),
        rows(memory.data(), kBatch * kTokens, cols, 2 * cols + 5, 2) {
    std::iota(memory.begin(), memory.end(), 1.f);
  }
  /// Expects that the view has the columns from `first` on, head after head.
  template <class T>
  void expect_part(const TensorView<T>& part, Index first, Index heads, Index width) const {
    ASSERT_EQ(part.shape, (Shape{kBatch, kTokens, heads, width}));
    for (Index b = 0; b < kBatch; ++b) {
      for (Index n = 0; n < kTokens; ++n) {
        for (Index h = 0; h < heads; ++h) {
          for (Index d = 0; d < width; ++d) {
            EXPECT_EQ(&part(b, n, h, d), &rows(b * kTokens + n, first + h * width + d));
          }
        }
      }
    }
  }
};

TEST(SplitQkv, ThePartsLieSideBySideInEveryRowWhateverTheStrides) {
  const PackedQkv equal(3 * 4 * 5), valued(4 * 5 + 4 * 5 + 4 * 2), grouped(6 * 5 + 2 * 5 + 2 * 7);
  const auto a = split_qkv(equal.rows, {.batch = 2, .heads = 4, .width = 5});
  equal.expect_part(a.q, 0, 4, 5);
  equal.expect_part(a.k, 20, 4, 5);
  equal.expect_part(a.v, 40, 4, 5);
  const auto b = split_qkv(valued.rows, {.batch = 2, .heads = 4, .width = 5, .values = 2});
  valued.expect_part(b.q, 0, 4, 5);
  valued.expect_part(b.k, 20, 4, 5);
  valued.expect_part(b.v, 40, 4, 2);
  const auto c = split_qkv(MatrixView<const float>(grouped.rows),
                           {.batch = 2, .heads = 6, .width = 5, .values = 7, .key_heads = 2});
  grouped.expect_part(c.q, 0, 6, 5);
  grouped.expect_part(c.k, 30, 2, 5);
  grouped.expect_part(c.v, 40, 2, 7);
}

TEST(SplitQkv, AMemberHasOneQueryHeadOfEveryGroup) {
  const PackedQkv packed(6 * 5 + 2 * 5 + 2 * 7);
  const auto all =
      split_qkv(packed.rows, {.batch = 2, .heads = 6, .width = 5, .values = 7, .key_heads = 2});
  std::vector<int> seen(6);
  for (Index i = 0; i < 3; ++i) {
    const auto [q, k, v] = all.member(i);
    ASSERT_EQ(q.shape, (Shape{2, 3, 2, 5}));
    ASSERT_EQ(k.shape, (Shape{2, 3, 2, 5}));
    ASSERT_EQ(v.shape, (Shape{2, 3, 2, 7}));
    for (Index key_head = 0; key_head < 2; ++key_head) {
      for (Index head = 0; head < 6; ++head) {
        if (&q(1, 2, key_head, 3) != &all.q(1, 2, head, 3)) continue;
        ++seen[static_cast<std::size_t>(head)];
        EXPECT_EQ(key_head, head / 3);
      }
      EXPECT_EQ(&k(1, 2, key_head, 3), &all.k(1, 2, key_head, 3));
      EXPECT_EQ(&v(1, 2, key_head, 6), &all.v(1, 2, key_head, 6));
    }
  }
  EXPECT_EQ(seen, std::vector<int>(6, 1));
}

TEST(SplitQkv, FormsTakeTheViewsOfAnEigenObject) {
  Matrix<float> qkv = Matrix<float>::Zero(6, 3 * 4 * 5);
  const Matrix<float>& same = qkv;
  const auto [dq, dk, dv] = split_qkv(qkv, {.batch = 2, .heads = 4, .width = 5});
  dk(1, 2, 3, 4) = 7;
  EXPECT_EQ(qkv(5, 39), 7);
  const auto [q, k, v] = split_qkv(same, {.batch = 2, .heads = 4, .width = 5});
  const BatchInputs<float> in = inputs(q, k, v);
  EXPECT_EQ(&in.k(1, 2, 3, 4), &qkv(5, 39));
}

TEST(SplitQkv, NoTokensAreNoData) {
  const auto views = split_qkv(MatrixView<float>(nullptr, 0, 60, 60),
                               {.batch = 2, .heads = 4, .width = 5, .key_heads = 4});
  EXPECT_EQ(views.v.shape, (Shape{2, 0, 4, 5}));
  EXPECT_EQ(views.v.data, nullptr);
  EXPECT_EQ(views.member(0).q.data, nullptr);
}

TEST(SplitQkvErrors, NameTheFunctionTheArgumentAndWhatWasExpected) {
  const Matrix<float> qkv = Matrix<float>::Zero(6, 60);
  const auto text = [&](const QkvSizes& sizes) {
    return message_of<error>([&] { split_qkv(qkv, sizes); });
  };
  EXPECT_EQ(text({.batch = 0, .heads = 4, .width = 5}),
            "mhla::split_qkv: batch is 0, expected at least 1");
  EXPECT_EQ(text({.batch = 2, .heads = 0, .width = 5}),
            "mhla::split_qkv: heads is 0, expected at least 1");
  EXPECT_EQ(text({.batch = 2, .heads = 4, .width = 0}),
            "mhla::split_qkv: width is 0, expected at least 1");
  EXPECT_EQ(text({.batch = 2, .heads = 4, .width = 5, .values = -1}),
            "mhla::split_qkv: values is -1, expected at least 0");
  EXPECT_EQ(text({.batch = 2, .heads = 4, .width = 5, .key_heads = -1}),
            "mhla::split_qkv: key_heads is -1, expected at least 0");
  EXPECT_EQ(text({.batch = 2, .heads = 4, .width = 5, .key_heads = 3}),
            "mhla::split_qkv: key_heads is 3, expected a divisor of 4 heads");
  EXPECT_EQ(text({.batch = 2, .heads = 4, .width = 5, .values = 6}),
            "mhla::split_qkv: qkv has shape [6, 60], expected [any, 64]");
  EXPECT_EQ(text({.batch = 4, .heads = 4, .width = 5}),
            "mhla::split_qkv: qkv has 6 rows, expected a multiple of 4 (the batch)");
  EXPECT_EQ(text({.batch = 2, .heads = Index{1} << 40, .width = Index{1} << 40}).substr(0, 22),
            "mhla::split_qkv: sizes");
  const auto views = split_qkv(qkv, {.batch = 2, .heads = 6, .width = 6, .key_heads = 2});
  for (const Index i : {3, -1}) {
    EXPECT_EQ(message_of<option_error>([&] { views.member(i); }),
              "mhla::QkvViews::member: i is " + std::to_string(i) +
                  ", expected at least 0 and less than 3");
  }
}

}  // namespace
}  // namespace mhla::test

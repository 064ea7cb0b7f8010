#include "mhla/core/tensor.hpp"

#include <gtest/gtest.h>

#include <numeric>
#include <type_traits>
#include <vector>

namespace mhla {
namespace {

static_assert(std::is_convertible_v<TensorView<float>, TensorView<const float>>);
static_assert(!std::is_convertible_v<TensorView<const float>, TensorView<float>>);

constexpr Index kBatch = 2, kTokens = 3, kHeads = 4, kWidth = 5;

/// 0, 1, 2, ...: an element is its own position in memory.
std::vector<int> positions() {
  std::vector<int> values(kBatch * kTokens * kHeads * kWidth);
  std::iota(values.begin(), values.end(), 0);
  return values;
}

template <class F>
void for_each_element(F&& f) {
  for (Index b = 0; b < kBatch; ++b) {
    for (Index n = 0; n < kTokens; ++n) {
      for (Index h = 0; h < kHeads; ++h) {
        for (Index d = 0; d < kWidth; ++d) f(b, n, h, d);
      }
    }
  }
}

TEST(Tensor, BnhdHoldsTheHeadsOfATokenSideBySide) {
  std::vector<int> values = positions();
  const TensorView<int> x = bnhd(values.data(), kBatch, kTokens, kHeads, kWidth);
  for_each_element([&](Index b, Index n, Index h, Index d) {
    EXPECT_EQ(x.head(b, h)(n, d), ((b * kTokens + n) * kHeads + h) * kWidth + d);
  });
}

TEST(Tensor, BhndHoldsTheTokensOfAHeadOneAfterAnother) {
  std::vector<int> values = positions();
  const TensorView<int> x = bhnd(values.data(), kBatch, kHeads, kTokens, kWidth);
  EXPECT_EQ(x.shape, (std::array<Index, 4>{kBatch, kTokens, kHeads, kWidth}));
  for_each_element([&](Index b, Index n, Index h, Index d) {
    EXPECT_EQ(x.head(b, h)(n, d), ((b * kHeads + h) * kTokens + n) * kWidth + d);
  });
}

TEST(Tensor, NamesItsSizes) {
  std::vector<int> values = positions();
  const TensorView<int> x = bnhd(values.data(), kBatch, kTokens, kHeads, kWidth);
  EXPECT_EQ(x.batch(), kBatch);
  EXPECT_EQ(x.tokens(), kTokens);
  EXPECT_EQ(x.heads(), kHeads);
  EXPECT_EQ(x.width(), kWidth);
}

TEST(Tensor, AHeadOfSomeTokensStartsAtTheFirstOfThem) {
  std::vector<int> values = positions();
  const TensorView<const int> x = bnhd(values.data(), kBatch, kTokens, kHeads, kWidth);
  for (Index begin = 0; begin <= kTokens; ++begin) {
    const MatrixView<const int> part = x.head(1, 2, begin, kTokens - begin);
    EXPECT_EQ(part.rows, kTokens - begin);
    EXPECT_EQ(part.cols, kWidth);
    for (Index n = 0; n < part.rows; ++n) {
      for (Index d = 0; d < kWidth; ++d) EXPECT_EQ(part(n, d), x.head(1, 2)(begin + n, d));
    }
  }
}

TEST(Tensor, StridesMayBeZeroOrNegative) {
  std::vector<int> values = positions();
  // One head for all, tokens backwards, widths backwards.
  const TensorView<int> x(values.data() + kTokens * kWidth - 1, {kBatch, kTokens, kHeads, kWidth},
                          {0, -kWidth, 0, -1});
  for_each_element([&](Index b, Index n, Index h, Index d) {
    EXPECT_EQ(x.head(b, h)(n, d), kTokens * kWidth - 1 - n * kWidth - d);
  });
}

TEST(Tensor, ASliceOfAPackedTensorIsATensor) {
  std::vector<int> values = positions();  // [B, N, H, D] with q, k in the first and last two of H
  const TensorView<int> packed = bnhd(values.data(), kBatch, kTokens, kHeads, kWidth);
  const TensorView<int> k(values.data() + 2 * kWidth, {kBatch, kTokens, 2, kWidth}, packed.strides);
  EXPECT_EQ(k.head(1, 0)(2, 3), packed.head(1, 2)(2, 3));
  EXPECT_EQ(k.head(0, 1)(1, 4), packed.head(0, 3)(1, 4));
}

TEST(Tensor, AbsentIsAViewThatWasNeverSet) {
  EXPECT_TRUE(TensorView<float>().absent());
  float x = 0;
  EXPECT_FALSE(bnhd(&x, 1, 1, 1, 1).absent());
  EXPECT_FALSE(bnhd(&x, 0, 0, 0, 0).absent());
  EXPECT_FALSE(bnhd(static_cast<float*>(nullptr), 0, 4, 1, 2).absent());
}

TEST(Tensor, AHeadOfNoDataIsNullWithItsShape) {
  const auto x = bnhd(static_cast<const float*>(nullptr), 0, 4, 3, 2);
  const MatrixView<const float> head = x.head(1, 2, 3, 1);
  EXPECT_EQ(head.data, nullptr);
  EXPECT_EQ(head.rows, 1);
  EXPECT_EQ(head.cols, 2);
}

}  // namespace
}  // namespace mhla

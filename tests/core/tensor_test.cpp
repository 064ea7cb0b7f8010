#include "mhla/core/tensor.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

#include "support/message_of.hpp"

namespace mhla {
namespace {

constexpr Index kBatch = 2, kTokens = 3, kHeads = 4, kWidth = 5;

/// 0, 1, 2, ...: each element is its position in memory.
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

TEST(TensorView, BnhdHoldsTheHeadsOfATokenSideBySide) {
  std::vector<int> values = positions();
  const TensorView<int> x = bnhd(values.data(), kBatch, kTokens, kHeads, kWidth);
  for_each_element([&](Index b, Index n, Index h, Index d) {
    EXPECT_EQ(x.head(b, h)(n, d), ((b * kTokens + n) * kHeads + h) * kWidth + d);
    EXPECT_EQ(&x(b, n, h, d), &x.head(b, h)(n, d));
  });
  EXPECT_EQ(x.shape, (Shape{x.batch(), x.tokens(), x.heads(), x.width()}));
  const TensorView<const int> shaped = bnhd(values.data(), Shape{kBatch, kTokens, kHeads, kWidth});
  EXPECT_EQ(shaped.shape, x.shape);
  EXPECT_EQ(shaped.strides, x.strides);
}

TEST(TensorView, BhndHoldsTheTokensOfAHeadOneAfterAnother) {
  std::vector<int> values = positions();
  const TensorView<int> x = bhnd(values.data(), kBatch, kHeads, kTokens, kWidth);
  EXPECT_EQ(x.shape, (Shape{kBatch, kTokens, kHeads, kWidth}));
  for_each_element([&](Index b, Index n, Index h, Index d) {
    EXPECT_EQ(x.head(b, h)(n, d), ((b * kHeads + h) * kTokens + n) * kWidth + d);
  });
}

TEST(TensorView, AHeadOfSomeTokensStartsAtTheFirstOfThem) {
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

TEST(TensorView, StridesMayBeZeroOrNegative) {
  std::vector<int> values = positions();
  // One head for all, tokens backwards, widths backwards.
  const TensorView<int> x(values.data() + kTokens * kWidth - 1, {kBatch, kTokens, kHeads, kWidth},
                          {0, -kWidth, 0, -1});
  for_each_element([&](Index b, Index n, Index h, Index d) {
    EXPECT_EQ(x.head(b, h)(n, d), kTokens * kWidth - 1 - n * kWidth - d);
  });
}

TEST(TensorView, AbsentIsAViewThatWasNeverSet) {
  EXPECT_TRUE(TensorView<float>().absent());
  const auto empty = bnhd(static_cast<const float*>(nullptr), 0, 4, 3, 2);
  EXPECT_FALSE(empty.absent());
  const MatrixView<const float> head = empty.head(1, 2, 3, 1);
  EXPECT_EQ(head.data, nullptr);
  EXPECT_EQ(head.cols, 2);
}

TEST(Tensor, OwnsZerosAndIsItsView) {
  Tensor<float> x({kBatch, kTokens, kHeads, kWidth});
  EXPECT_EQ(x.data(), Tensor<float>::Elements(kBatch * kTokens * kHeads * kWidth, 0.f));
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(x.data().data()) % 64, 0u);
  const Tensor<float> zeros = x;
  const TensorView<float> view = x;
  const TensorView<const float> constant = std::as_const(x);
  EXPECT_EQ(view.shape, x.shape());
  EXPECT_EQ(view.strides, bnhd(x.data().data(), x.shape()).strides);
  x(1, 2, 3, 4) = 5;
  EXPECT_EQ(view(1, 2, 3, 4), 5);
  EXPECT_EQ(constant(1, 2, 3, 4), 5);
  EXPECT_EQ(zeros(1, 2, 3, 4), 0);
  EXPECT_TRUE(Tensor<double>().view().absent());
  EXPECT_EQ(Tensor<double>({2, 0, 3, 4}).view().shape, (Shape{2, 0, 3, 4}));
}

TEST(Tensor, RejectsSizesThatNoMemoryCouldHold) {
  const auto make = [](const Shape& shape) {
    return test::message_of<shape_error>([&] { Tensor<float>{shape}; });
  };
  EXPECT_EQ(make({2, -3, 4, 5}), "mhla::Tensor: shape has a negative size -3, expected sizes >= 0");
  EXPECT_EQ(make({Index{1} << 32, Index{1} << 31, 1, 1}),
            "mhla::Tensor: shape has shape [4294967296, 2147483648, 1, 1], expected a product that "
            "fits std::ptrdiff_t");
}

}  // namespace
}  // namespace mhla

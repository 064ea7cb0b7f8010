// Tests of how rows are grouped, which changes no bit, so tests of the layers do not see it.

#include "mhla/layer/convolution_taps.hpp"

#include <gtest/gtest.h>

#include <vector>

#include "support/random.hpp"

namespace mhla::test {
namespace {

/// Row r reads rows r .. r + taps - 1 of x. Rows 10 and 11 of every 12 share no taps with other
/// rows.
struct RowsAhead {
  MatrixView<const float> x;
  Index taps;

  struct At {
    const RowsAhead& all;
    Index position, alike;
    Index row(Index i) const { return position + i; }
    const float* from(Index source) const { return all.x.row(source); }
    void for_each(const auto& f) const {
      for (Index t = 0; t < all.taps; ++t) f(t, position + t);
    }
  };
  At at(Index position) const { return {*this, position, std::max<Index>(1, 10 - position % 12)}; }
};

TEST(ConvolutionTaps, EveryRowComesOnceWithAllOfItsTapsInOrder) {
  const Matrix<float> x = Matrix<float>::Ones(200, 1);
  for (const Index taps : {1, 63, 64, 65, 130}) {
    for (const Index end : {5, 8, 50}) {
      Index next = 5, seen = 0;
      detail::for_each_tap_rows<float>(RowsAhead{x, taps}, 5, end, [&](const auto& rows) {
        EXPECT_EQ(rows.first, seen == 0);
        EXPECT_TRUE(rows.count == 1 || (rows.count == 4 && next % 12 <= 6 && next + 4 <= end));
        for (Index t = 0; t < rows.taps; ++t, ++seen) {
          EXPECT_EQ(rows.tap[t], seen);
          for (Index i = 0; i < rows.count; ++i) {
            EXPECT_EQ(rows.row[i], next + i);
            EXPECT_EQ(rows.source[t][i], x.data() + next + i + seen);
          }
        }
        if (seen < taps) return;
        next += rows.count;
        seen = 0;
      });
      EXPECT_EQ(next, end);
      EXPECT_EQ(seen, 0);
    }
  }
}

TEST(ConvolutionTaps, ARowHasTheSameBitsAloneAndAmongOthers) {
  Random rng(1);
  constexpr Index kRows = 60, kTaps = 70;
  for (const Index channels : {1, 7, 43, 200}) {
    const Matrix<float> x = rng.matrix<float>(kRows + kTaps, channels),
                        weight = rng.matrix<float>(channels, kTaps);
    const auto layout = [&](detail::Arena& arena) {
      return detail::TapWeights<float>("test", arena, channels, kTaps);
    };
    std::vector<std::byte> memory(detail::counted_bytes(layout));
    detail::Arena arena(memory.data());
    const detail::TapWeights<float> weights = layout(arena);
    weights.fill({weight, {}});
    Matrix<float> y(kRows, channels), alone(kRows, channels);
    const RowsAhead taps{x, kTaps};
    detail::convolve(taps, weights, weights.bias(), MatrixView<float>(y), 0, kRows);
    for (Index r = 0; r < kRows; ++r) {
      detail::convolve(taps, weights, weights.bias(), MatrixView<float>(alone), r, r + 1);
    }
    EXPECT_EQ(y, alone) << channels;
  }
}

}  // namespace
}  // namespace mhla::test

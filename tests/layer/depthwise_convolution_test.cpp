#include "mhla/layer/depthwise_convolution.hpp"

#include <numeric>

#include "contract/layer.hpp"
#include "support/message_of.hpp"

namespace mhla::test {
namespace {

struct ImageOf3x3 {
  static constexpr GridShape kTokens{5, 13}, kKernel{3, 3};
  static constexpr bool kPlaced = false;
};
/// A kernel that is wider than the grid.
struct PlacedImageOf5x5 {
  static constexpr GridShape kTokens{4, 2}, kKernel{5, 5};
  static constexpr bool kPlaced = true;
};
struct PlacedVideoOf3x3x3 {
  static constexpr GridShape kTokens{3, 2, 9}, kKernel{3, 3, 3};
  static constexpr bool kPlaced = true;
};
/// Taps that are processed in two parts.
struct LineOf67 {
  static constexpr GridShape kTokens{80}, kKernel{67};
  static constexpr bool kPlaced = false;
};

/// Row of token t of `tokens` in an order that is not the raster's. The order is not its own
/// inverse for any grid here.
Index place_of(Index t, Index tokens) { return (t * 5 + 2) % tokens; }

/// x [batch * tokens,c], weight [c,taps], bias [c] -> y [batch * tokens,c].
template <class A, class Setup>
struct DepthwiseLayer {
  using Scalar = A;
  static constexpr Index kTokens = Setup::kTokens[0] * Setup::kTokens[1] * Setup::kTokens[2];
  static constexpr Index kTaps = Setup::kKernel[0] * Setup::kKernel[1] * Setup::kKernel[2];

  static std::vector<Sizes> sizes() {  // batch, c; the last has more than two chunks of rows
    return {{0, 3}, {2, 0}, {1, 1}, {2, 43}, {600 / kTokens, 9}};
  }
  static std::vector<std::string> names() {
    return {"depthwise_convolution", "x", "weight", "bias", "y"};
  }
  static Shapes inputs(const Sizes& s) {
    return {{s[0] * kTokens, s[1]}, {s[1], kTaps}, row_of(s[1])};
  }
  static Shapes outputs(const Sizes& s) { return {{s[0] * kTokens, s[1]}}; }
  template <class F>
  static void with_grid(const F& f) {
    std::vector<Index> places;
    for (Index t = 0; Setup::kPlaced && t < kTokens; ++t) places.push_back(place_of(t, kTokens));
    f(DepthwiseGrid{.tokens = Setup::kTokens, .kernel = Setup::kKernel, .places = places});
  }
  static void forward(const Views<const A>& in, const Views<A>& out, const Call& call) {
    with_grid([&](const DepthwiseGrid& grid) {
      depthwise_convolution(in[0], {in[1], span_of(in[2])}, grid, out[0], call);
    });
  }
  static void adjoint(const Views<const A>& in, const Views<const A>&, MatrixView<const A> dy,
                      const Views<A>& din, const Call& call) {
    with_grid([&](const DepthwiseGrid& grid) {
      depthwise_convolution_adjoint(in[0], {in[1], span_of(in[2])}, grid, dy, din[0],
                                    {din[1], span_of(din[2])}, call);
    });
  }
  /// The row of a token inside its item; -1 outside the grid.
  static Index row_at(Index f, Index y, Index x) {
    const GridShape& n = Setup::kTokens;
    if (f < 0 || y < 0 || x < 0 || f >= n[0] || y >= n[1] || x >= n[2]) return -1;
    const Index t = (f * n[1] + y) * n[2] + x;
    return Setup::kPlaced ? place_of(t, kTokens) : t;
  }
  static std::vector<Matrix<Dual<A>>> definition(const std::vector<Matrix<Dual<A>>>& in) {
    const GridShape &n = Setup::kTokens, &k = Setup::kKernel;
    Matrix<Dual<A>> y(in[0].rows(), in[0].cols());
    y.rowwise() = in[2].row(0);
    for (Index item = 0; item < y.rows(); item += kTokens) {
      for (Index t = 0; t < kTokens; ++t) {
        const Index frame = t / (n[1] * n[2]), row = t / n[2] % n[1], column = t % n[2];
        auto to = y.row(item + row_at(frame, row, column));
        for (Index tap = 0; tap < kTaps; ++tap) {
          const Index from = row_at(frame + tap / (k[1] * k[2]) - (k[0] - 1) / 2,
                                    row + tap / k[2] % k[1] - (k[1] - 1) / 2,
                                    column + tap % k[2] - (k[2] - 1) / 2);
          if (from < 0) continue;
          to += in[1].col(tap).transpose().cwiseProduct(in[0].row(item + from));
        }
      }
    }
    return {y};
  }
  /// Sums of the taps and the bias, or of all rows and the sums of chunks, of rounded products.
  static Index roundings(const Sizes& s) { return s[0] * kTokens + kTaps + 4; }
  static std::size_t forward_bytes(const Sizes& s) {
    return depthwise_convolution_workspace_bytes<A>(s[1], Setup::kKernel);
  }
  static std::size_t adjoint_bytes(const Sizes& s) {
    return depthwise_convolution_adjoint_workspace_bytes<A>(s[0] * kTokens, s[1], Setup::kKernel);
  }
};

using Depthwises =
    testing::Types<DepthwiseLayer<float, ImageOf3x3>, DepthwiseLayer<double, ImageOf3x3>,
                   DepthwiseLayer<float, PlacedImageOf5x5>, DepthwiseLayer<double, LineOf67>,
                   DepthwiseLayer<float, PlacedVideoOf3x3x3>,
                   DepthwiseLayer<double, PlacedVideoOf3x3x3>, DepthwiseLayer<float, LineOf67>>;
TEST_LAYERS(Depthwise, Depthwises);

/// Output of a kernel with one tap of weight 1, for tokens 1, 2, .. in a grid of 2 x 3.
std::vector<float> moved_by(Index tap) {
  Matrix<float> x(6, 1), y(6, 1), weight = Matrix<float>::Zero(1, 9);
  std::iota(x.data(), x.data() + 6, 1.f);
  weight(0, tap) = 1;
  depthwise_convolution(x, {weight, {}}, {.tokens = {2, 3}, .kernel = {3, 3}}, y);
  return {y.data(), y.data() + 6};
}

TEST(DepthwiseConvolution, TapsAreThoseOfPyTorch) {
  EXPECT_EQ(moved_by(4), (std::vector<float>{1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(moved_by(3), (std::vector<float>{0, 1, 2, 0, 4, 5}));  // from the left
  EXPECT_EQ(moved_by(1), (std::vector<float>{0, 0, 0, 1, 2, 3}));  // from above
  EXPECT_EQ(moved_by(8), (std::vector<float>{5, 6, 0, 0, 0, 0}));  // from below right
}

TEST(DepthwiseConvolution, ATokenOutsideTheGridMultipliesNothing) {
  Matrix<float> x = Matrix<float>::Ones(2, 1), y(2, 1);
  Matrix<float> weight(1, 3);
  weight << 1, 2, std::numeric_limits<float>::infinity();
  depthwise_convolution(x, {weight, {}}, {.tokens = {2}, .kernel = {3}}, y);
  EXPECT_EQ(y(1, 0), 3);
}

TEST(DepthwiseConvolutionErrors, NameTheFunctionTheArgumentAndWhatWasExpected) {
  const Matrix<float> x = Matrix<float>::Ones(12, 5), weight = Matrix<float>::Ones(5, 9);
  const std::vector<Index> places{0, 1, 2, 3, 4, 6}, below{0, 1, 2, 3, -1, 5}, few{0, 1};
  Matrix<float> y = Matrix<float>::Constant(12, 5, 7);
  const auto of_grid = [&](const DepthwiseGrid& grid) {
    const ConvolutionView<const float> parameters{weight, {}};
    return message_of<error>([&] { depthwise_convolution(x, parameters, grid, y); });
  };
  EXPECT_EQ(of_grid({.tokens = {2, 0}, .kernel = {3, 3}}),
            "mhla::depthwise_convolution: tokens is [1, 2, 0], expected sizes >= 1");
  EXPECT_EQ(of_grid({.tokens = {2, 3}, .kernel = {0, 3}}),
            "mhla::depthwise_convolution: kernel is [1, 0, 3], expected sizes >= 1");
  EXPECT_EQ(of_grid({.tokens = {2, 3}, .kernel = {3, 2}}),
            "mhla::depthwise_convolution: kernel is [1, 3, 2], expected odd sizes");
  EXPECT_EQ(of_grid({.tokens = {5}, .kernel = {3, 3}}),
            "mhla::depthwise_convolution: x has 12 rows, expected a multiple of 5 (the tokens of "
            "the grid)");
  EXPECT_EQ(of_grid({.tokens = {2, 3}, .kernel = {3, 3}, .places = few}),
            "mhla::depthwise_convolution: places has 2 elements, expected 6 or none");
  EXPECT_EQ(of_grid({.tokens = {2, 3}, .kernel = {3, 3}, .places = places}),
            "mhla::depthwise_convolution: places has a row 6, expected rows in [0, 6)");
  EXPECT_EQ(of_grid({.tokens = {2, 3}, .kernel = {3, 3}, .places = below}),
            "mhla::depthwise_convolution: places has a row -1, expected rows in [0, 6)");
  EXPECT_TRUE((y.array() == 7).all());
  EXPECT_EQ(message_of<error>([] {
              depthwise_convolution_workspace_bytes<float>(5, {3, 4});
            }),
            "mhla::depthwise_convolution: kernel is [1, 3, 4], expected odd sizes");
}

}  // namespace
}  // namespace mhla::test

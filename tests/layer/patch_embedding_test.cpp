#include "mhla/layer/patch_embedding.hpp"

#include "contract/layer.hpp"
#include "mhla/layer/dense.hpp"
#include "support/message_of.hpp"

namespace mhla::test {
namespace {

struct ImageGrid {
  static PatchGrid of(Index batch) { return {3, {6, 4}, {3, 2}, batch}; }
};
struct WideGrid {  // rows of patches longer than a packet
  static PatchGrid of(Index batch) { return {2, {34, 95}, {2, 19}, batch}; }
};
struct VideoGrid {
  static PatchGrid of(Index batch) { return {3, {4, 9, 10}, {2, 3, 5}, batch}; }
};

TensorShape image_shape(const PatchGrid& g) {
  return {g.batch * g.channels * g.image[0] * g.image[1], g.image[2]};
}
TensorShape patches_shape(const PatchGrid& g) {
  const Index features = g.channels * g.patch[0] * g.patch[1] * g.patch[2];
  return {image_shape(g).rows * g.image[2] / features, features};
}

/// A number of an image: its matrix coordinates, its patch, and its place in the patch.
struct Pixel {
  Index row, column;  // of the matrix
  Index channel, token, inside;
};
/// All numbers of the images, by their place in memory.
std::vector<Pixel> pixels(const PatchGrid& g) {
  const auto& [frames, rows, columns] = g.image.sizes;
  const auto& [pf, py, px] = g.patch.sizes;
  std::vector<Pixel> all;
  for (Index row = 0; row < image_shape(g).rows; ++row) {
    const Index y = row % rows, f = row / rows % frames;
    const Index c = row / rows / frames % g.channels, b = row / rows / frames / g.channels;
    for (Index x = 0; x < columns; ++x) {
      const Index token = ((b * (frames / pf) + f / pf) * (rows / py) + y / py) * (columns / px);
      all.push_back({row, x, c, token + x / px, (f % pf * py + y % py) * px + x % px});
    }
  }
  return all;
}

/// image -> its patches.
template <class A, class Grid>
struct PatchesLayer {
  using Scalar = A;

  static std::vector<Sizes> sizes() { return {{0}, {1}, {2}, {33}}; }  // batch
  static Shapes inputs(const Sizes& s) { return {image_shape(Grid::of(s[0]))}; }
  static Shapes outputs(const Sizes& s) { return {patches_shape(Grid::of(s[0]))}; }
  static Index batch(Index image_rows) { return image_rows / image_shape(Grid::of(1)).rows; }
  static void forward(const Views<const A>& in, const Views<A>& out, const Call& call) {
    patches(in[0], Grid::of(batch(in[0].rows)), out[0], call.executor);
  }
  static void adjoint(const Views<const A>&, const Views<const A>&, MatrixView<const A> dy,
                      const Views<A>& din, const Call& call) {
    patches_adjoint(dy, Grid::of(batch(din[0].rows)), din[0], call.executor);
  }
  static std::vector<Matrix<Dual<A>>> definition(const std::vector<Matrix<Dual<A>>>& in) {
    const PatchGrid g = Grid::of(batch(in[0].rows()));
    const Index size = g.patch[0] * g.patch[1] * g.patch[2];
    Matrix<Dual<A>> y(patches_shape(g).rows, patches_shape(g).cols);
    for (const Pixel& p : pixels(g)) {
      y(p.token, p.channel * size + p.inside) = in[0](p.row, p.column);
    }
    return {y};
  }
  static Index roundings(const Sizes&) { return 1; }  // of the sum of the gradient
};

/// tokens -> the image.
template <class A, class Grid>
struct UnpatchifyLayer {
  using Scalar = A;

  static std::vector<Sizes> sizes() { return {{0}, {1}, {2}, {33}}; }  // batch
  static Shapes inputs(const Sizes& s) { return {patches_shape(Grid::of(s[0]))}; }
  static Shapes outputs(const Sizes& s) { return {image_shape(Grid::of(s[0]))}; }
  static Index batch(Index tokens) { return tokens / patches_shape(Grid::of(1)).rows; }
  static void forward(const Views<const A>& in, const Views<A>& out, const Call& call) {
    unpatchify(in[0], Grid::of(batch(in[0].rows)), out[0], call.executor);
  }
  static void adjoint(const Views<const A>&, const Views<const A>&, MatrixView<const A> dy,
                      const Views<A>& din, const Call& call) {
    unpatchify_adjoint(dy, Grid::of(batch(din[0].rows)), din[0], call.executor);
  }
  static std::vector<Matrix<Dual<A>>> definition(const std::vector<Matrix<Dual<A>>>& in) {
    const PatchGrid g = Grid::of(batch(in[0].rows()));
    Matrix<Dual<A>> image(image_shape(g).rows, image_shape(g).cols);
    for (const Pixel& p : pixels(g)) {
      image(p.row, p.column) = in[0](p.token, p.inside * g.channels + p.channel);
    }
    return {image};
  }
  static Index roundings(const Sizes&) { return 1; }  // of the sum of the gradient
};

using PatchLayers =
    testing::Types<PatchesLayer<float, ImageGrid>, PatchesLayer<float, VideoGrid>,
                   PatchesLayer<double, WideGrid>, PatchesLayer<double, VideoGrid>,
                   UnpatchifyLayer<float, ImageGrid>, UnpatchifyLayer<float, VideoGrid>,
                   UnpatchifyLayer<double, WideGrid>, UnpatchifyLayer<double, VideoGrid>>;
TEST_LAYERS(PatchEmbedding, PatchLayers);

TEST(PatchEmbedding, PatchesThenADenseLayerIsAConvolutionWhoseStrideIsItsKernel) {
  Random rng(9);
  const PatchGrid g = VideoGrid::of(2);
  const auto& [frames, rows, columns] = g.image.sizes;
  const auto& [kf, ky, kx] = g.patch.sizes;
  constexpr Index kOutputs = 5;
  const Matrix<double> image = rng.matrix<double>(image_shape(g).rows, columns);
  const Matrix<double> weight = rng.matrix<double>(kOutputs, patches_shape(g).cols);
  const std::vector<double> bias(kOutputs, 0.25);
  Matrix<double> y(patches_shape(g).rows, patches_shape(g).cols), tokens(y.rows(), kOutputs);
  patches(image, g, y);
  dense(y, {weight, bias}, tokens);
  // input[b, c, f, row, column] and weight[o, c, i, j, k], as PyTorch has them in memory.
  Index token = 0;
  for (Index b = 0; b < g.batch; ++b)
    for (Index f = 0; f < frames; f += kf)
      for (Index r = 0; r < rows; r += ky)
        for (Index s = 0; s < columns; s += kx, ++token)
          for (Index o = 0; o < kOutputs; ++o) {
            double sum = 0.25;
            for (Index c = 0; c < g.channels; ++c)
              for (Index i = 0; i < kf; ++i)
                for (Index j = 0; j < ky; ++j)
                  for (Index k = 0; k < kx; ++k) {
                    const Index from =
                        (((b * g.channels + c) * frames + f + i) * rows + r + j) * columns + s + k;
                    const Index with = (((o * g.channels + c) * kf + i) * ky + j) * kx + k;
                    sum += image.data()[from] * weight.data()[with];
                  }
            EXPECT_NEAR(tokens(token, o), sum, 1e-13) << "token " << token << " output " << o;
          }
  EXPECT_EQ(token, tokens.rows());
}

TEST(PatchEmbeddingErrors, OfAGridNameItsPartAndWhatWasExpected) {
  const Matrix<float> image = Matrix<float>::Ones(18, 4);
  Matrix<float> y = Matrix<float>::Constant(4, 18, 7);
  const auto message = [&](const PatchGrid& grid) {
    return message_of<error>([&] { patches(image, grid, y); });
  };
  EXPECT_EQ(message({0, {6, 4}, {3, 2}}), "mhla::patches: grid.channels is 0, expected 1 or more");
  EXPECT_EQ(message({3, {6, 4}, {3, 2}, -1}),
            "mhla::patches: grid.batch is -1, expected 0 or more");
  EXPECT_EQ(message({3, {6, 0}, {3, 2}}),
            "mhla::patches: grid.image is [1, 6, 0], expected sizes >= 1");
  EXPECT_EQ(message({3, {6, 4}, {0, 2}}),
            "mhla::patches: grid.patch is [1, 0, 2], expected sizes >= 1");
  EXPECT_EQ(message({3, {6, 4}, {4, 2}}),
            "mhla::patches: grid.image is [1, 6, 4], expected multiples of the patch [1, 4, 2]");
  EXPECT_EQ(message({3, {6, 4}, {3, 8}}),
            "mhla::patches: grid.image is [1, 6, 4], expected multiples of the patch [1, 3, 8]");
  constexpr Index kHuge = Index{1} << 61;
  EXPECT_EQ(message({8, {1, kHuge}, {1, 1}}), "mhla::patches: grid has shape [8, 1, 1, " +
                                                  std::to_string(kHuge) +
                                                  "], expected a product that fits std::ptrdiff_t");
  EXPECT_TRUE((y.array() == 7).all());
}

TEST(PatchEmbeddingErrors, OfAViewNameItAndWhatWasExpected) {
  const PatchGrid grid{3, {6, 4}, {3, 2}};
  const Matrix<float> image = Matrix<float>::Ones(18, 4), tokens = Matrix<float>::Ones(4, 18);
  Matrix<float> image_sums = image, token_sums = tokens, wrong(4, 17);
  const auto message = [](auto call) { return message_of<error>(call); };
  EXPECT_EQ(message([&] { patches(tokens, grid, token_sums); }),
            "mhla::patches: image has shape [4, 18], expected [18, 4]");
  EXPECT_EQ(message([&] { patches(image, grid, wrong); }),
            "mhla::patches: y has shape [4, 17], expected [4, 18]");
  EXPECT_EQ(message([&] { patches_adjoint(image, grid, image_sums); }),
            "mhla::patches_adjoint: dy has shape [18, 4], expected [4, 18]");
  EXPECT_EQ(message([&] { patches_adjoint(tokens, grid, wrong); }),
            "mhla::patches_adjoint: dimage has shape [4, 17], expected [18, 4]");
  EXPECT_EQ(message([&] { unpatchify(image, grid, image_sums); }),
            "mhla::unpatchify: tokens has shape [18, 4], expected [4, 18]");
  EXPECT_EQ(message([&] { unpatchify(tokens, grid, wrong); }),
            "mhla::unpatchify: image has shape [4, 17], expected [18, 4]");
  EXPECT_EQ(message([&] { unpatchify_adjoint(tokens, grid, token_sums); }),
            "mhla::unpatchify_adjoint: dimage has shape [4, 18], expected [18, 4]");
  EXPECT_EQ(message([&] { unpatchify_adjoint(image, grid, wrong); }),
            "mhla::unpatchify_adjoint: dtokens has shape [4, 17], expected [4, 18]");
  EXPECT_TRUE(image_sums == image && token_sums == tokens);
}

}  // namespace
}  // namespace mhla::test

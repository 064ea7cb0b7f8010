#include "mhla/layer/vision_layer.hpp"

#include "contract/attention_layer.hpp"
#include "mhla/layer/block_order.hpp"
#include "support/message_of.hpp"

namespace mhla::test {
namespace {

/// As DiT is released.
struct DitLayer {
  using Layer = VisionLayer<double>;
  static constexpr Index kRows = 24, kBatch = 3;
  static VisionOptions options() {
    return {.heads = 2, .tokens = {4, 6}, .block = {2, 3}, .channels = 10};
  }
};
/// As DeiT is trained.
struct DeitLayer {
  using Layer = VisionLayer<double>;
  static constexpr Index kRows = 24, kBatch = 2;
  static VisionOptions options() {
    return {.heads = 3,
            .tokens = {4, 6},
            .block = {4, 2},
            .channels = 12,
            .qk_norm = true,
            .qkv_bias = false,
            .lepe = 5};
  }
};
/// In raster order, with the paper's normaliser and nothing else.
struct PlainVisionLayer {
  using Layer = VisionLayer<double>;
  static constexpr Index kRows = 36, kBatch = 2;
  static VisionOptions options() {
    return {.heads = 1,
            .tokens = {6, 6},
            .block = {2, 3},
            .order = TokenOrder::kRaster,
            .channels = 5,
            .layer_norm = false,
            .lepe = 0,
            .normalizer = KeySum{1e-6}};
  }
};

using VisionLayers = testing::Types<DitLayer, DeitLayer, PlainVisionLayer>;
INSTANTIATE_TYPED_TEST_SUITE_P(Vision, AttentionLayerContract, VisionLayers);

TEST(VisionLayer, OrderOfTokensIsAPermutationOfRows) {
  VisionOptions options = DeitLayer::options();
  const VisionLayer<double> blocks(options);
  options.order = TokenOrder::kRaster;
  VisionLayer<double> raster(options);
  const AttentionLayerRun<DeitLayer> run;
  const auto from = run.layer.parameters();
  std::copy(from.begin(), from.end(), raster.parameters().begin());
  const auto order = block_order(Grid(options.tokens, options.block));
  Matrix<double> x = run.x, y = run.x;
  from_blocks(run.x, order, x);
  to_blocks(raster(x), order, y);
  EXPECT_LE((run.forward() - y).cwiseAbs().maxCoeff(), 1e-14 * y.cwiseAbs().maxCoeff());
}

TEST(VisionLayerErrors, NameTheOptionAndWhatWasExpected) {
  const auto refused = [](VisionOptions o) {
    return message_of<error>([&] { VisionLayer<float>{o}; });
  };
  const VisionOptions right = DitLayer::options();
  VisionOptions o = right;
  o.block = {3, 3};
  EXPECT_EQ(refused(o),
            "mhla::VisionLayer: block is [1, 3, 3], expected one that divides the "
            "tokens [1, 4, 6]");
  o = right, o.channels = 9;
  EXPECT_EQ(refused(o), "mhla::VisionLayer: channels is 9, expected a multiple of the 2 heads");
  o = right, o.lepe = 4;
  EXPECT_EQ(refused(o), "mhla::VisionLayer: lepe is 4, expected odd, or 0 for none");
  const VisionLayer<float> layer(right);
  Matrix<float> x(25, 10), y(25, 10);
  EXPECT_EQ(message_of<error>([&] { layer(x, y); }),
            "mhla::VisionLayer: x has 25 rows, expected 24 tokens an item");
}

}  // namespace
}  // namespace mhla::test

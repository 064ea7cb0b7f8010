#include "mhla/layer/vision_layer.hpp"

#include <array>

#include "contract/attention_layer.hpp"
#include "mhla/layer/block_order.hpp"
#include "support/layer_definition.hpp"
#include "support/message_of.hpp"
#include "support/seeds.hpp"

namespace mhla::test {
namespace {

/// The layer of DiT as released, in small sizes.
struct DitLayer {
  using Layer = VisionLayer<double>;
  static constexpr Index kRows = 24, kBatch = 3;
  static VisionOptions options() {
    return {.heads = 2,
            .tokens = {4, 6},
            .block = {2, 3},
            .order = TokenOrder::kBlocks,
            .channels = 10};
  }
};
/// The layer of DeiT as trained, in small sizes.
struct DeitLayer {
  using Layer = VisionLayer<double>;
  static constexpr Index kRows = 24, kBatch = 2;
  static VisionOptions options() {
    return {.heads = 3,
            .tokens = {4, 6},
            .block = {4, 2},
            .order = TokenOrder::kBlocks,
            .channels = 12,
            .qk_norm = true,
            .qkv_bias = false,
            .lepe = 5,
            .mixing_per_head = true};
  }
};
/// A layer in raster order with the paper's normaliser and no other option.
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
/// The layer of DeiT with a table of offsets per head.
struct OffsetsVisionLayer {
  using Layer = VisionLayer<double>;
  static constexpr Index kRows = 24, kBatch = 2;
  static VisionOptions options() {
    VisionOptions o = DeitLayer::options();
    o.block = {2, 2};
    o.offsets = {3, 5};
    return o;
  }
};
/// The baseline with softmax attention.
struct SoftmaxVisionLayer {
  using Layer = VisionLayer<double>;
  static constexpr Index kRows = 24, kBatch = 2;
  static VisionOptions options() {
    VisionOptions o = DeitLayer::options();
    o.softmax = true;
    return o;
  }
};

using VisionLayers =
    testing::Types<DitLayer, DeitLayer, PlainVisionLayer, OffsetsVisionLayer, SoftmaxVisionLayer>;
TEST_ATTENTION_LAYERS(Vision, VisionLayers);

TEST(VisionLayer, IsItsDefinitionAndBackwardItsAdjointForAnyOptions) {
  for (const std::uint64_t seed : seeds(60)) {
    SCOPED_TRACE(seed);
    Random rng(seed);
    const GridShape block{rng.integer(1, 3), rng.integer(1, 3)};
    const AnyNormalizer normalizers[] = {NoNormalizer{}, KeySum{1e-2}, CrossQuery{1e-2}};
    VisionOptions o{.heads = rng.integer(1, 3),
                    .tokens = {block[1] * rng.integer(1, 3), block[2] * rng.integer(1, 3)},
                    .block = block,
                    .order = rng.chance(0.5) ? TokenOrder::kBlocks : TokenOrder::kRaster,
                    .layer_norm = rng.chance(0.5),
                    .qk_norm = rng.chance(0.5),
                    .qkv_bias = rng.chance(0.5),
                    .lepe = std::array{0, 1, 3, 5}[seed % 4],
                    .normalizer = normalizers[seed % 3],
                    .feature_eps = 1e-3,
                    .layer_norm_eps = 1e-4,
                    .qk_norm_eps = rng.chance(0.5) ? 0 : 1e-2,
                    .mixing_per_head = seed % 2 == 1,
                    .softmax = rng.chance(0.25)};
    o.channels = o.heads * rng.integer(2, 5);
    const bool table = rng.chance(0.4);
    if (table) o.offsets = {2 * rng.integer(0, 2) + 1, 2 * rng.integer(0, 2) + 1};
    expect_definition_and_adjoint<VisionLayer<double>>(
        rng, o, rng.integer(0, 3), o.tokens[1] * o.tokens[2],
        table ? "piece_attn.offsets" : "piece_attn.conv.weight");
  }
}

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

TEST(VisionLayer, ATableOfOffsetsServesAnyGrid) {
  VisionOptions options = OffsetsVisionLayer::options();
  const VisionLayer<double> trained = AttentionLayerRun<OffsetsVisionLayer>().layer;
  for (const TokenOrder order : {TokenOrder::kRaster, TokenOrder::kBlocks}) {
    options.tokens = {10, 4};
    options.order = order;
    options.offsets = {3, 5};
    VisionLayer<double> wide(options);
    ASSERT_EQ(wide.parameters().size(), trained.parameters().size());
    std::ranges::copy(trained.parameters(), wide.parameters().begin());
    options.offsets = {0};
    VisionLayer<double> plain(options);
    for (const Parameter& p : plain.table().all()) {
      const auto to = p.place().numbers(plain.parameters());
      if (p.name != "piece_attn.conv.weight") {
        std::ranges::copy(wide.table().numbers(trained.parameters(), p.name), to.begin());
        continue;
      }
      const auto table = wide.table().numbers(wide.parameters(), "piece_attn.offsets");
      const auto matrices =
          distance_matrix(DistanceView<const double>(table.data(), {3, 5}, 3), {5, 2});
      std::ranges::copy(matrices.storage(), to.begin());
    }
    const Matrix<double> x = Random(3).matrix<double>(40, options.channels);
    EXPECT_EQ(wide(x), plain(x));
  }
}

TEST(VisionLayer, SoftmaxHasNoMixing) {
  const VisionLayer<float> softmax(SoftmaxVisionLayer::options()), mhla(DeitLayer::options());
  EXPECT_EQ(softmax.table().find("piece_attn.conv.weight"), nullptr);
  EXPECT_EQ(softmax.table().all().size() + 1, mhla.table().all().size());
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
  o = right, o.block.sizes[1] = 0;
  EXPECT_TRUE(refused(o).starts_with("mhla::VisionLayer: block is [")) << refused(o);
  o = right, o.tokens.sizes[2] = 0;
  EXPECT_EQ(refused(o), "mhla::VisionLayer: tokens is [1, 4, 0], expected sizes >= 1");
  o = right, o.offsets = {3, 4};
  EXPECT_EQ(refused(o),
            "mhla::VisionLayer: offsets is [1, 3, 4], expected odd sizes, as many offsets before "
            "as after, or 0 for a mixing matrix");
  o = right, o.offsets = {0, 3};
  EXPECT_TRUE(refused(o).starts_with("mhla::VisionLayer: offsets is [1, 0, 3]")) << refused(o);
  o = right, o.channels = 9;
  EXPECT_EQ(refused(o), "mhla::VisionLayer: channels is 9, expected a multiple of the 2 heads");
  for (const Index lepe : {4, -1}) {
    o = right, o.lepe = lepe;
    EXPECT_EQ(refused(o), "mhla::VisionLayer: lepe is " + std::to_string(lepe) +
                              ", expected odd, or 0 for none");
  }
  o = right, o.heads = 0;
  EXPECT_EQ(refused(o), "mhla::VisionLayer: heads is 0, expected at least 1");
  o = right, o.channels = Index{1} << 40;
  EXPECT_EQ(refused(o),
            "mhla::VisionLayer: channels has shape [1099511627776, 1099511627776], expected a "
            "product that fits std::ptrdiff_t");
  o = right, o.layer_norm_eps = -1;
  EXPECT_EQ(refused(o), "mhla::VisionLayer: layer_norm_eps is -1.000000, expected 0 or more");
  o = right, o.qk_norm_eps = -1;
  EXPECT_EQ(refused(o), "mhla::VisionLayer: qk_norm_eps is -1.000000, expected 0 or more");
  Matrix<float> x(25, 10), y(25, 10);
  o = right, o.offsets = {3, 3};
  const VisionLayer<float> zeros(o);
  EXPECT_EQ(message_of<error>([&] { zeros(x.topRows(24), y.topRows(24)); }),
            "mhla::VisionLayer: table of offsets has row 0 with sum 0.000000, expected rows with a "
            "finite sum other than 0");
  const VisionLayer<float> layer(right);
  EXPECT_EQ(message_of<error>([&] { layer(x, y); }),
            "mhla::VisionLayer: x has 25 rows, expected 24 tokens an item");
  EXPECT_EQ(message_of<error>(
                [&] { layer(x.topRows(24), y.topRows(24), {.batch = (Index{1} << 59) + 1}); }),
            "mhla::VisionLayer: batch is 576460752303423489, expected 0 or 1, the items of x");
  EXPECT_EQ(message_of<error>([&] { layer(MatrixView<const float>(x.data(), -1, 10, 10)); }),
            "mhla::VisionLayer: x has shape [any, 10], expected [any, 10]");
}

}  // namespace
}  // namespace mhla::test

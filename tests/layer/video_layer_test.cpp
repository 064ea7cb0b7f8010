#include "mhla/layer/video_layer.hpp"

#include "contract/attention_layer.hpp"
#include "support/layer_definition.hpp"
#include "support/message_of.hpp"
#include "support/seeds.hpp"

namespace mhla::test {
namespace {

/// The layer of Wan2.1 as released with MHLA, in small sizes.
struct GatedVideoLayer {
  using Layer = VideoLayer<double>;
  static constexpr Index kRows = 48, kBatch = 2;
  static VideoOptions options() {
    return {.heads = 2, .grid = {2, 4, 6}, .layout = {1, 2, 2}, .channels = 20, .gate = true};
  }
};
/// A layer with all options.
struct FullVideoLayer {
  using Layer = VideoLayer<double>;
  static constexpr Index kRows = 36, kBatch = 3;
  static VideoOptions options() {
    return {.heads = 1,
            .grid = {3, 2, 6},
            .layout = {3, 1, 2},
            .channels = 12,
            .gate = true,
            .lepe = true,
            .normalizer = CrossQuery{1e-6}};
  }
};
/// A layer with the paper's normaliser, without norm of q and k, and without a gate.
struct PlainVideoLayer {
  using Layer = VideoLayer<double>;
  static constexpr Index kRows = 8, kBatch = 3;
  static VideoOptions options() {
    return {.heads = 2,
            .grid = {2, 2, 2},
            .layout = {2, 1, 1},
            .channels = 8,
            .qk_norm = false,
            .normalizer = KeySum{1e-6},
            .mixing_per_head = true};
  }
};
/// The baseline with softmax attention.
struct SoftmaxVideoLayer {
  using Layer = VideoLayer<double>;
  static constexpr Index kRows = 48, kBatch = 2;
  static VideoOptions options() {
    VideoOptions o = GatedVideoLayer::options();
    o.softmax = true;
    return o;
  }
};

using VideoLayers =
    testing::Types<GatedVideoLayer, FullVideoLayer, PlainVideoLayer, SoftmaxVideoLayer>;
TEST_ATTENTION_LAYERS(Video, VideoLayers);

TEST(VideoLayer, IsItsDefinitionAndBackwardItsAdjointForAnyOptions) {
  for (const std::uint64_t seed : seeds(30)) {
    SCOPED_TRACE(seed);
    Random rng(seed);
    const GridShape layout{rng.integer(1, 2), rng.integer(1, 2), rng.integer(1, 3)};
    const AnyNormalizer normalizers[] = {NoNormalizer{}, KeySum{1e-2}, CrossQuery{1e-2}};
    VideoOptions o{.heads = rng.integer(1, 3),
                   .grid = {layout[0] * rng.integer(1, 2), layout[1] * rng.integer(1, 2),
                            layout[2] * rng.integer(1, 2)},
                   .layout = layout,
                   .qk_norm = rng.chance(0.5),
                   .gate = rng.chance(0.5),
                   .lepe = rng.chance(0.5),
                   .normalizer = normalizers[seed % 3],
                   .feature_eps = 1e-3,
                   .norm_eps = 1e-4,
                   .rotary_base = 100,
                   .mixing_per_head = seed % 2 == 1,
                   .softmax = rng.chance(0.25)};
    o.channels = 2 * o.heads * rng.integer(1, 4);
    const bool table = rng.chance(0.4);
    const auto odd = [&rng] { return 2 * rng.integer(0, 1) + 1; };
    if (table) o.offsets = {odd(), odd(), odd()};
    expect_definition_and_adjoint<VideoLayer<double>>(
        rng, o, rng.integer(0, 3), o.grid[0] * o.grid[1] * o.grid[2],
        table ? "block_attn.offsets" : "block_attn.conv.weight");
  }
}

TEST(VideoLayer, SoftmaxHasNoMixing) {
  const VideoLayer<float> softmax(SoftmaxVideoLayer::options()), mhla(GatedVideoLayer::options());
  EXPECT_EQ(softmax.table().find("block_attn.conv.weight"), nullptr);
  EXPECT_EQ(softmax.table().all().size() + 1, mhla.table().all().size());
}

TEST(VideoLayerErrors, NameTheOptionAndWhatWasExpected) {
  const auto refused = [](VideoOptions o) {
    return message_of<error>([&] { VideoLayer<float>{o}; });
  };
  const VideoOptions right = GatedVideoLayer::options();
  VideoOptions o = right;
  o.layout = {1, 3, 2};
  EXPECT_EQ(refused(o),
            "mhla::VideoLayer: layout is [1, 3, 2], expected one that divides the grid "
            "[2, 4, 6]");
  o = right, o.layout.sizes[1] = 0;
  EXPECT_TRUE(refused(o).starts_with("mhla::VideoLayer: layout is [")) << refused(o);
  o = right, o.grid.sizes[2] = 0;
  EXPECT_EQ(refused(o), "mhla::VideoLayer: grid is [2, 4, 0], expected sizes >= 1");
  o = right, o.offsets = {3, 1, 2};
  EXPECT_TRUE(refused(o).starts_with("mhla::VideoLayer: offsets is [3, 1, 2], expected odd sizes"))
      << refused(o);
  for (const Index channels : {6, 5}) {  // an odd number each, and no multiple of the heads
    o = right, o.channels = channels;
    EXPECT_EQ(refused(o), "mhla::VideoLayer: channels is " + std::to_string(channels) +
                              ", expected an even number for each of the 2 heads");
  }
  o = right, o.norm_eps = -1;
  EXPECT_EQ(refused(o), "mhla::VideoLayer: norm_eps is -1.000000, expected 0 or more");
  o = right, o.rotary_base = 0;
  EXPECT_EQ(refused(o), "mhla::VideoLayer: rotary_base is 0.000000, expected more than 0");
  const VideoLayer<float> layer(right);
  Matrix<float> x(47, 20), y(47, 20);
  EXPECT_EQ(message_of<error>([&] { layer(x, y); }),
            "mhla::VideoLayer: x has 47 rows, expected 48 tokens an item");
}

}  // namespace
}  // namespace mhla::test

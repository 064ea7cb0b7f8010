#include "mhla/layer/vlt_stage.hpp"

#include "contract/attention_layer.hpp"
#include "mhla/layer/block_order.hpp"
#include "support/message_of.hpp"
#include "support/naive_block.hpp"

namespace mhla::test {
namespace {

template <Index kDepth, TokenOrder kOrder>
struct SmallVltStage {
  using Layer = VltStage<double>;
  static constexpr Index kRows = 24, kBatch = 2;
  static VltOptions options() {
    return {.attention = {.heads = 2,
                          .tokens = {4, 6},
                          .block = {2, 3},
                          .order = kOrder,
                          .lepe = 5,
                          .normalizer = NoNormalizer{}},
            .depth = kDepth,
            .channels = 6};
  }
};

using VltStages =
    testing::Types<SmallVltStage<1, TokenOrder::kRaster>, SmallVltStage<3, TokenOrder::kBlocks>>;
TEST_ATTENTION_LAYERS(VltStage, VltStages);

template <class L>
class VltStageOf : public testing::Test {};
TYPED_TEST_SUITE(VltStageOf, VltStages);

TYPED_TEST(VltStageOf, AnyDepthAndOrderIsItsDefinition) {
  const AttentionLayerRun<TypeParam> run;
  const auto& stage = run.layer;
  const VisionOptions& o = stage.options().attention;
  const auto order = block_order(Grid(o.tokens, o.block));
  Numbers x = run.x;
  for (Index i = 0; i < stage.options().depth; ++i) {
    const std::string block = "blocks." + std::to_string(i) + ".";
    const auto attention = inner_layer<VisionLayer<double>>(stage, block + "attn.", o);
    const auto mix = inner_layer<MixFfn<double, ResidualMix>>(
        stage, block + "ffn.", {.tokens = o.tokens, .places = detail::vision_places(o)});
    Numbers raster = x;
    if (o.order == TokenOrder::kBlocks) from_blocks(x, order, raster);
    Numbers encoding = naive_convolution(raster, tensor(stage, block + "pos.weight"),
                                         tensor(stage, block + "pos.bias"), 4, 6);
    raster = encoding;
    if (o.order == TokenOrder::kBlocks) to_blocks(raster, order, encoding);
    x += encoding;
    x += attention(naive_layer_norm(x, 1e-6, stage, block + "norm1.norm"));
    x += mix(naive_layer_norm(x, 1e-6, stage, block + "norm2.norm"));
  }
  EXPECT_LE(relative_distance(run.forward(), x), 1e-12);
}

// The bytes of six blocks overflow where the bytes of one block still fit.
TEST(VltStage, BytesOfManyBlocksAreRefused) {
  expect_bytes_to_grow_until_they_are_refused(
      AttentionLayerRun<SmallVltStage<6, TokenOrder::kRaster>>(1));
}

TEST(VltStageErrors, NameTheOptionAndWhatWasExpected) {
  VltOptions o = SmallVltStage<1, TokenOrder::kRaster>::options();
  o.depth = 0;
  EXPECT_EQ(message_of<error>([&] { VltStage<float>{o}; }),
            "mhla::VltStage: depth is 0, expected at least 1");
}

}  // namespace
}  // namespace mhla::test

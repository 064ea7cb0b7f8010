#include "mhla/layer/sana_block.hpp"

#include "contract/attention_layer.hpp"
#include "support/naive_block.hpp"

namespace mhla::test {
namespace {

/// The block of SANA in small sizes, with tokens in the order of blocks.
struct SmallSanaBlock {
  using Layer = SanaBlock<double>;
  static constexpr Index kRows = 24, kBatch = 2, kCondition = 60;
  static SanaOptions options() {
    return {.attention = {.heads = 2,
                          .tokens = {4, 6},
                          .block = {2, 3},
                          .order = TokenOrder::kBlocks,
                          .layer_norm = false,
                          .lepe = 0,
                          .normalizer = NoNormalizer{}},
            .channels = 10};
  }
};

TEST_ATTENTION_LAYERS(SanaBlock, testing::Types<SmallSanaBlock>);

TEST(SanaBlock, IsItsDefinition) {
  const AttentionLayerRun<SmallSanaBlock> run;
  const auto& block = run.layer;
  const VisionOptions& o = block.options().attention;
  const auto attention = inner_layer<VisionLayer<double>>(block, "attn.", o);
  const auto mix = inner_layer<MixFfn<double>>(
      block, "mlp.", {.tokens = o.tokens, .places = detail::vision_places(o)});
  const Numbers m = naive_modulation(run.c, block, "scale_shift_table");
  Numbers x = run.x;
  x += naive_gate(attention(naive_modulate(naive_layer_norm(x, 1e-6), m, 0, 1)), m, 2);
  x += naive_gate(mix(naive_modulate(naive_layer_norm(x, 1e-6), m, 3, 4)), m, 5);
  EXPECT_LE(relative_distance(run.forward(), x), 1e-12);
}

TEST(SanaBlock, HasTheParametersOfTheAuthors) {
  const SanaBlock<float> block(SmallSanaBlock::options());
  const auto shape = [&](const char* name) { return block.table().find(name)->shape; };
  using Shape = std::vector<Index>;
  EXPECT_EQ(shape("scale_shift_table"), (Shape{6, 10}));
  EXPECT_EQ(shape("mlp.inverted_conv.conv.weight"), (Shape{50, 10, 1, 1}));
  EXPECT_EQ(shape("mlp.point_conv.conv.weight"), (Shape{10, 25, 1, 1}));
  EXPECT_EQ(shape("attn.piece_attn.conv.weight"), (Shape{4, 4, 1, 1}));
}

}  // namespace
}  // namespace mhla::test

#include "mhla/layer/video_block.hpp"

#include "contract/attention_layer.hpp"
#include "support/naive_block.hpp"

namespace mhla::test {
namespace {

/// The block of Wan2.1 as released with MHLA, in small sizes.
struct SmallWanBlock {
  using Layer = WanBlock<double>;
  static constexpr Index kRows = 48, kBatch = 2, kCondition = 120;
  static WanOptions options() {
    return {.attention = {.heads = 2, .grid = {2, 4, 6}, .layout = {1, 2, 2}, .gate = true},
            .channels = 20,
            .hidden = 30};
  }
};

TEST_ATTENTION_LAYERS(VideoBlock, testing::Types<SmallWanBlock>);

TEST(WanBlock, IsItsDefinition) {
  const AttentionLayerRun<SmallWanBlock> run;
  const auto& block = run.layer;
  const auto attention =
      inner_layer<VideoLayer<double>>(block, "self_attn.", block.options().attention);
  const Numbers m = naive_modulation(run.c, block, "modulation");
  Numbers x = run.x;
  x += naive_gate(attention(naive_modulate(naive_layer_norm(x, 1e-6), m, 0, 1)), m, 2);
  const Numbers hidden =
      naive_dense(naive_modulate(naive_layer_norm(x, 1e-6), m, 3, 4), block, "ffn.0");
  x += naive_gate(naive_dense(hidden.unaryExpr(&naive_gelu), block, "ffn.2"), m, 5);
  EXPECT_LE(relative_distance(run.forward(), x), 1e-12);
}

TEST(WanBlock, HasTheParametersOfTheAuthors) {
  const WanBlock<float> block(SmallWanBlock::options());
  const auto shape = [&](const char* name) { return block.table().find(name)->shape; };
  using Shape = std::vector<Index>;
  EXPECT_EQ(shape("modulation"), (Shape{1, 6, 20}));
  EXPECT_EQ(shape("self_attn.block_attn.conv.weight"), (Shape{4, 4, 1, 1}));
  EXPECT_EQ(shape("ffn.0.weight"), (Shape{30, 20}));
  EXPECT_EQ(shape("ffn.0.bias"), (Shape{30}));
  EXPECT_EQ(shape("ffn.2.weight"), (Shape{20, 30}));
  EXPECT_EQ(shape("ffn.2.bias"), (Shape{20}));
  EXPECT_EQ(block.table().find("norm1.weight"), nullptr);
}

}  // namespace
}  // namespace mhla::test

#include "mhla/layer/vision_block.hpp"

#include "contract/attention_layer.hpp"
#include "mhla/layer/block_order.hpp"
#include "support/message_of.hpp"
#include "support/naive_block.hpp"

namespace mhla::test {
namespace {

/// The block of DiT as released, in small sizes.
template <DitConvolution kConvolution, TokenOrder kOrder>
struct SmallDitBlock {
  using Layer = DitBlock<double>;
  static constexpr Index kRows = 24, kBatch = 3, kCondition = 10;
  static DitOptions options() {
    return {.attention = {.heads = 2, .tokens = {4, 6}, .block = {2, 3}, .order = kOrder},
            .channels = 10,
            .convolution = kConvolution};
  }
};
/// The block of DeiT as trained, but without the normaliser, whose random denominators are close to
/// 0.
struct SmallDeitBlock {
  using Layer = DeitBlock<double>;
  static constexpr Index kRows = 24, kBatch = 2;
  static DeitOptions options() {
    return {.attention = deit_attention({.heads = 3,
                                         .tokens = {4, 6},
                                         .block = {2, 3},
                                         .order = TokenOrder::kBlocks,
                                         .normalizer = NoNormalizer{}}),
            .channels = 12,
            .hidden = 60};
  }
};

using DitBlocks = testing::Types<SmallDitBlock<DitConvolution::kNone, TokenOrder::kBlocks>,
                                 SmallDitBlock<DitConvolution::kNone, TokenOrder::kRaster>,
                                 SmallDitBlock<DitConvolution::kImage, TokenOrder::kBlocks>,
                                 SmallDitBlock<DitConvolution::kImage, TokenOrder::kRaster>,
                                 SmallDitBlock<DitConvolution::kReleased, TokenOrder::kBlocks>>;
using VisionBlocks =
    testing::Types<SmallDeitBlock, SmallDitBlock<DitConvolution::kNone, TokenOrder::kBlocks>,
                   SmallDitBlock<DitConvolution::kImage, TokenOrder::kBlocks>>;
TEST_ATTENTION_LAYERS(VisionBlock, VisionBlocks);

template <class L>
class DitBlockOf : public testing::Test {};
TYPED_TEST_SUITE(DitBlockOf, DitBlocks);

TYPED_TEST(DitBlockOf, EveryConvolutionAndOrderIsItsDefinition) {
  const AttentionLayerRun<TypeParam> run;
  const auto& block = run.layer;
  const DitOptions o = block.options();
  const auto attention = inner_layer<VisionLayer<double>>(block, "attn.", o.attention);
  const Numbers m = naive_dense(run.c.unaryExpr(&naive_silu), block, "adaLN_modulation.1");
  Numbers x = run.x;
  x += naive_gate(attention(naive_modulate(naive_layer_norm(x, 1e-6), m, 0, 1)), m, 2);
  const Numbers hidden =
      naive_dense(naive_modulate(naive_layer_norm(x, 1e-6), m, 3, 4), block, "mlp.fc1");
  x += naive_gate(naive_dense(hidden.unaryExpr(&naive_gelu), block, "mlp.fc2"), m, 5);
  if (o.convolution != DitConvolution::kNone) {
    const bool blocks = o.attention.order == TokenOrder::kBlocks,
               placed = blocks && o.convolution == DitConvolution::kImage;
    const auto order = block_order(Grid(o.attention.tokens, o.attention.block));
    Numbers raster = x;
    if (placed) from_blocks(x, order, raster);
    raster = naive_convolution(raster, tensor(block, "dw_conv.weight"),
                               tensor(block, "dw_conv.bias"), 4, 6);
    x = raster;
    if (placed) to_blocks(raster, order, x);
  }
  EXPECT_LE(relative_distance(run.forward(), x), 1e-12);
}

TEST(DeitBlock, IsItsDefinition) {
  const AttentionLayerRun<SmallDeitBlock> run;
  const auto& block = run.layer;
  const auto attention =
      inner_layer<VisionLayer<double>>(block, "attn.", block.options().attention);
  Numbers x = run.x;
  x += attention(naive_layer_norm(x, 1e-6, block, "norm1"));
  const Numbers hidden = naive_dense(naive_layer_norm(x, 1e-6, block, "norm2"), block, "mlp.fc1");
  x += naive_dense(hidden.unaryExpr(&naive_erf_gelu), block, "mlp.fc2");
  EXPECT_LE(relative_distance(run.forward(), x), 1e-12);
}

TEST(DitBlock, HasTheParametersOfTheAuthors) {
  const DitBlock<float> block(
      SmallDitBlock<DitConvolution::kImage, TokenOrder::kBlocks>::options());
  EXPECT_EQ(block.describe(),
            "adaLN_modulation.1.weight [60, 10], zeros\nadaLN_modulation.1.bias [60], zeros\n"
            "attn.norm.weight [10], ones, with layer_norm\n"
            "attn.norm.bias [10], zeros, with layer_norm\n"
            "attn.to_qkv.weight [30, 10], uniform 1/sqrt(10)\n"
            "attn.to_qkv.bias [30], uniform 1/sqrt(10), with qkv_bias\n"
            "attn.lepe.weight [10, 1, 3, 3], identity, with lepe\n"
            "attn.lepe.bias [10], zeros, with lepe\n"
            "attn.piece_attn.conv.weight [4, 4, 1, 1], locality, with softmax = false\n"
            "attn.to_out.0.weight [10, 10], uniform 1/sqrt(10)\n"
            "attn.to_out.0.bias [10], uniform 1/sqrt(10)\n"
            "mlp.fc1.weight [40, 10], uniform 1/sqrt(10)\nmlp.fc1.bias [40], uniform 1/sqrt(10)\n"
            "mlp.fc2.weight [10, 40], uniform 1/sqrt(40)\nmlp.fc2.bias [10], uniform 1/sqrt(40)\n"
            "dw_conv.weight [10, 1, 3, 3], identity, with convolution\n"
            "dw_conv.bias [10], zeros, with convolution\n"
            "attn.q_norm.weight left out, with qk_norm\n"
            "attn.k_norm.weight left out, with qk_norm\n"
            "attn.piece_attn.offsets left out, with offsets\n");
}

TEST(VisionBlockErrors, NameTheOptionAndWhatWasExpected) {
  const auto refused = [](DeitOptions o) {
    return message_of<error>([&] { DeitBlock<float>{o}; });
  };
  const DeitOptions right = SmallDeitBlock::options();
  DeitOptions o = right;
  o.attention.channels = 9;
  EXPECT_EQ(
      refused(o),
      "mhla::DeitBlock: attention.channels is 9, expected 0, or the 12 channels of the block");
  o = right, o.hidden = -1;
  EXPECT_EQ(refused(o), "mhla::DeitBlock: hidden is -1, expected 0 for 48, or more");
  o = right, o.norm_eps = -1;
  EXPECT_EQ(refused(o), "mhla::DeitBlock: norm_eps is -1.000000, expected 0 or more");
  o = right, o.channels = -8;
  EXPECT_EQ(refused(o), "mhla::DeitBlock: channels is -8, expected at least 1");
  const DeitBlock<float> block(right);
  Matrix<float> x(25, 12), y(25, 12);
  EXPECT_EQ(message_of<error>([&] { block(x, y); }),
            "mhla::DeitBlock: x has 25 rows, expected 24 tokens an item");
  const AttentionLayerRun<SmallDitBlock<DitConvolution::kNone, TokenOrder::kBlocks>> run;
  EXPECT_EQ(message_of<error>([&] { run.layer(run.x, Numbers(2, 10)); }),
            "mhla::DitBlock: c has shape [2, 10], expected [3, 10]");
}

}  // namespace
}  // namespace mhla::test

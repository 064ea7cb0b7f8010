#include "mhla/layer/mix_ffn.hpp"

#include "contract/attention_layer.hpp"
#include "mhla/layer/block_order.hpp"
#include "support/message_of.hpp"
#include "support/naive_block.hpp"

namespace mhla::test {
namespace {

struct SmallGatedMix {
  using Layer = MixFfn<double>;
  static constexpr Index kRows = 24, kBatch = 3;
  static MixFfnOptions options() { return {.tokens = {4, 6}, .channels = 5, .hidden = 9}; }
};
/// A layer whose tokens are not in raster order.
struct PlacedResidualMix {
  using Layer = MixFfn<double, ResidualMix>;
  static constexpr Index kRows = 24, kBatch = 2;
  static MixFfnOptions options() {
    MixFfnOptions o{.tokens = {4, 6}, .channels = 6};
    for (Index t = 0; t < kRows; ++t) o.places.push_back(kRows - 1 - t);
    return o;
  }
};

using Mixes = testing::Types<SmallGatedMix, PlacedResidualMix>;
TEST_ATTENTION_LAYERS(MixFfn, Mixes);

TEST(MixFfn, WithAGateIsItsDefinition) {
  const AttentionLayerRun<SmallGatedMix> run;
  const auto& ffn = run.layer;
  const Numbers e = naive_dense(run.x, ffn, "inverted_conv.conv").unaryExpr(&naive_silu);
  const Numbers mixed = naive_convolution(e, tensor(ffn, "depth_conv.conv.weight"),
                                          tensor(ffn, "depth_conv.conv.bias"), 4, 6);
  const Numbers hidden = mixed.leftCols(9).cwiseProduct(mixed.rightCols(9).unaryExpr(&naive_silu));
  const Numbers y = naive_dense(hidden, tensor(ffn, "point_conv.conv.weight"));
  EXPECT_LE(relative_distance(run.forward(), y), 1e-13);
}

TEST(MixFfn, WithAResidualIsItsDefinitionOverTheImage) {
  const AttentionLayerRun<PlacedResidualMix> run;
  const auto& ffn = run.layer;
  const Numbers e = naive_dense(run.x, ffn, "fc1").unaryExpr(&naive_erf_gelu);
  // Reversed rows are the images in raster order, the last one first.
  const Numbers mixed = naive_convolution(e.colwise().reverse(), tensor(ffn, "dwconv.weight"),
                                          tensor(ffn, "dwconv.bias"), 4, 6)
                            .colwise()
                            .reverse();
  EXPECT_LE(relative_distance(run.forward(), naive_dense(e + mixed, ffn, "fc2")), 1e-13);
}

TEST(MixFfn, HasTheParametersOfTheAuthors) {
  const MixFfn<float> ffn({.tokens = {4, 6}, .channels = 8});
  EXPECT_EQ(ffn.describe(),
            "inverted_conv.conv.weight [40, 8, 1, 1], uniform 1/sqrt(8)\n"
            "inverted_conv.conv.bias [40], uniform 1/sqrt(8)\n"
            "depth_conv.conv.weight [40, 1, 3, 3], uniform 1/sqrt(9)\n"
            "depth_conv.conv.bias [40], uniform 1/sqrt(9)\n"
            "point_conv.conv.weight [8, 20, 1, 1], uniform 1/sqrt(20)\n");
}

TEST(MixFfnErrors, NameTheOptionAndWhatWasExpected) {
  const auto refused = [](MixFfnOptions o) { return message_of<error>([&] { MixFfn<float>{o}; }); };
  EXPECT_EQ(refused({.tokens = {4, 0}, .channels = 8}),
            "mhla::MixFfn: tokens is [1, 4, 0], expected sizes >= 1");
  EXPECT_EQ(refused({.tokens = {4, 6}, .channels = 8, .hidden = -1}),
            "mhla::MixFfn: hidden is -1, expected 0 for 20, or more");
  EXPECT_EQ(refused({.tokens = {4, 6}, .channels = 0}),
            "mhla::MixFfn: channels is 0, expected at least 1");
  EXPECT_EQ(refused({.tokens = {2, 2}, .places = {0, 1, 2}, .channels = 8}),
            "mhla::MixFfn: places has 3 elements, expected 4 or none");
  EXPECT_TRUE(refused({.tokens = {2, 2}, .channels = 8, .hidden = Index{1} << 62})
                  .starts_with("mhla::MixFfn: hidden has shape [2, 4611686018427387904]"));
  const MixFfn<float> ffn({.tokens = {4, 6}, .channels = 8});
  Matrix<float> x(25, 8), y(25, 8);
  EXPECT_EQ(message_of<error>([&] { ffn(x, y); }),
            "mhla::MixFfn: x has 25 rows, expected 24 tokens an item");
}

}  // namespace
}  // namespace mhla::test

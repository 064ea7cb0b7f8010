#include "mhla/layer/language_block.hpp"

#include "contract/attention_layer.hpp"
#include "contract/decoding_layer.hpp"
#include "support/message_of.hpp"
#include "support/naive_block.hpp"

namespace mhla::test {
namespace {

/// The block of the model with 340M parameters, in small sizes.
struct SmallLanguageBlock {
  using Layer = LanguageBlock<double>;
  static constexpr Index kRows = 21, kBatch = 3;
  static LanguageBlockOptions options() {
    return {.attention = {.heads = 2, .chunk = 4, .chunks = 6}, .channels = 16, .hidden = 24};
  }
};
/// A block with short convolutions, and with one key head per two query heads.
struct GroupedLanguageBlock {
  using Layer = LanguageBlock<double>;
  static constexpr Index kRows = 11, kBatch = 2;
  static LanguageBlockOptions options() {
    return {.attention = {.heads = 4,
                          .key_heads = 2,
                          .feature_map = "elu",
                          .chunk = 4,
                          .chunks = 3,
                          .short_convolution = true},
            .channels = 16,
            .hidden = 40};
  }
};

using LanguageBlocks = testing::Types<SmallLanguageBlock, GroupedLanguageBlock>;
TEST_ATTENTION_LAYERS(LanguageBlock, LanguageBlocks);
TEST_DECODING_LAYERS(LanguageBlock, LanguageBlocks);

Numbers naive_rms_norm(Numbers x, double eps, const Numbers& gain) {
  for (Index r = 0; r < x.rows(); ++r) {
    x.row(r) /= std::sqrt(x.row(r).squaredNorm() / static_cast<double>(x.cols()) + eps);
    x.row(r) = x.row(r).cwiseProduct(gain);
  }
  return x;
}

TEST(LanguageBlock, IsItsDefinition) {
  const AttentionLayerRun<SmallLanguageBlock> run;
  const auto& block = run.layer;
  LanguageOptions options = block.options().attention;
  options.norm_eps = 1e-6;
  const auto attention = inner_layer<LanguageLayer<double>>(block, "attn.", options);
  Numbers x = run.x;
  x += attention(naive_rms_norm(x, 1e-6, tensor(block, "attn_norm.weight")), {.batch = run.batch});
  const Numbers n = naive_rms_norm(x, 1e-6, tensor(block, "mlp_norm.weight"));
  const Numbers gate = naive_dense(n, tensor(block, "mlp.gate_proj.weight")).unaryExpr(&naive_silu),
                up = naive_dense(n, tensor(block, "mlp.up_proj.weight"));
  x += naive_dense(gate.cwiseProduct(up), tensor(block, "mlp.down_proj.weight"));
  EXPECT_LE(relative_distance(run.forward(), x), 1e-12);
}

TEST(LanguageBlock, HasTheSizesOfTheAuthors) {
  const LanguageBlock<float> block({.channels = 1024});
  const auto shape = [&](const char* name) { return block.table().find(name)->shape; };
  using Shape = std::vector<Index>;
  EXPECT_EQ(shape("attn_norm.weight"), (Shape{1024}));
  EXPECT_EQ(shape("mlp_norm.weight"), (Shape{1024}));
  EXPECT_EQ(shape("attn.q_proj.weight"), (Shape{512, 1024}));
  EXPECT_EQ(shape("mlp.gate_proj.weight"), (Shape{2816, 1024}));
  EXPECT_EQ(shape("mlp.up_proj.weight"), (Shape{2816, 1024}));
  EXPECT_EQ(shape("mlp.down_proj.weight"), (Shape{1024, 2816}));
}

TEST(LanguageBlock, ProjectsTheMixingMatrixOfItsAttention) {
  LanguageBlock<float> block(SmallLanguageBlock::options());
  std::fill(block.parameters().begin(), block.parameters().end(), 2.f);
  block.project();
  const auto mixing = block.table().numbers(block.parameters(), "attn.mixing_matrix");
  EXPECT_EQ(mixing[0], 1.f);
  EXPECT_EQ(mixing[1], 0.f);
  EXPECT_EQ(std::count(block.parameters().begin(), block.parameters().end(), 2.f),
            block.table().size() - std::ssize(mixing));
}

TEST(LanguageBlockErrors, NameTheFunctionAndWhatWasExpected) {
  const LanguageBlock<double> block(SmallLanguageBlock::options());
  EXPECT_EQ(message_of<error>([&] { block.start(-1); }),
            "mhla::LanguageBlock::start: batch is -1, expected at least 0");
  auto state = block.start(1);
  Matrix<double> x(25, 16), y(25, 16);
  EXPECT_EQ(message_of<error>([&] { block.append(state, x, y); }),
            "mhla::LanguageBlock::append: x has 25 tokens of sequence 0 after 0, "
            "expected at most 24 in all (chunks times their length)");
}

}  // namespace
}  // namespace mhla::test

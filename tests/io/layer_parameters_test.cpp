// Layers written to safetensors files and read from them.

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "mhla/io/safetensors.hpp"
#include "mhla/layer/language_block.hpp"
#include "mhla/layer/language_layer.hpp"
#include "mhla/layer/sana_block.hpp"
#include "mhla/layer/video_block.hpp"
#include "mhla/layer/video_layer.hpp"
#include "mhla/layer/vision_block.hpp"
#include "mhla/layer/vision_layer.hpp"
#include "mhla/layer/vlt_stage.hpp"
#include "support/message_of.hpp"
#include "support/random.hpp"
#include "support/raw_file.hpp"

namespace mhla::test {
namespace {

template <class A>
void fill_randomly(std::span<A> row) {
  Random rng(7);
  const Matrix<A> numbers = rng.matrix<A>(1, std::ssize(row));
  std::copy(numbers.data(), numbers.data() + numbers.size(), row.begin());
}

/// Expects the parameters of a layer to be read back from a file that also holds a second layer.
template <class L>
void expect_round_trip(typename L::Options options) {
  L layer(options), other(options);
  fill_randomly(layer.parameters());
  if constexpr (requires { layer.project(); }) layer.project();
  SafetensorsWriter writer;
  save_parameters(writer, "blocks.0.attn.", layer.table(), layer.parameters());
  save_parameters(writer, "blocks.1.attn.", other.table(), other.parameters());
  const Bytes bytes = writer.to_bytes();
  const Safetensors file = Safetensors::parse(bytes);
  EXPECT_EQ(file.tensors().size(), 2 * layer.table().all().size());
  options.channels = 0;
  const L again(file, "blocks.0.attn.", options);
  EXPECT_TRUE(std::ranges::equal(again.parameters(), std::as_const(layer).parameters()));
  EXPECT_EQ(again.options().channels, layer.options().channels);
}

const VisionOptions kSmallVision{
    .heads = 2, .tokens = {4, 4}, .block = {2, 2}, .order = TokenOrder::kBlocks, .channels = 6};

TEST(LayersInFiles, ComeBackAsTheyWereSaved) {
  expect_round_trip<VisionLayer<float>>(kSmallVision);
  expect_round_trip<VisionLayer<double>>(kSmallVision);
  const VideoOptions video{.heads = 2, .grid = {2, 4, 4}, .layout = {1, 2, 2}, .channels = 24};
  expect_round_trip<VideoLayer<float>>(video);
  expect_round_trip<LanguageLayer<float>>({.heads = 2, .channels = 16, .chunks = 3});
}

TEST(LayersInFiles, MayHaveAMixingMatrixPerHead) {
  VisionOptions vision = kSmallVision;
  vision.mixing_per_head = true;
  expect_round_trip<VisionLayer<float>>(vision);
  expect_round_trip<VideoLayer<float>>({.heads = 2,
                                        .grid = {2, 4, 4},
                                        .layout = {1, 2, 2},
                                        .channels = 24,
                                        .mixing_per_head = true});
  expect_round_trip<LanguageLayer<float>>(
      {.heads = 2, .channels = 16, .chunks = 3, .mixing_per_head = true});

  const VisionLayer<float> layer(vision);
  SafetensorsWriter writer;
  save_parameters(writer, "", layer.table(), layer.parameters());
  const Bytes bytes = writer.to_bytes();
  const Safetensors file = Safetensors::parse(bytes);
  const std::string text =
      message_of<shape_error>([&] { VisionLayer<float>(file, "", kSmallVision); });
  EXPECT_NE(text.find("piece_attn.conv.weight of shape [2, 4, 4] instead of [4, 4, 1, 1]"),
            std::string::npos)
      << text;
}

/// A table of offsets is read by a layer of any grid.
TEST(LayersInFiles, MayHaveATableOfOffsets) {
  VisionOptions vision = kSmallVision;
  vision.offsets = {3, 3};
  expect_round_trip<VisionLayer<float>>(vision);
  expect_round_trip<VideoLayer<float>>({.heads = 2,
                                        .grid = {2, 4, 4},
                                        .layout = {1, 2, 2},
                                        .channels = 24,
                                        .mixing_per_head = true,
                                        .offsets = {1, 3, 3}});
  expect_round_trip<LanguageLayer<float>>({.heads = 2, .channels = 16, .chunks = 3, .offsets = 5});

  VisionLayer<float> layer(vision);
  fill_randomly(layer.parameters());
  SafetensorsWriter writer;
  save_parameters(writer, "", layer.table(), layer.parameters());
  const Bytes bytes = writer.to_bytes();
  vision.tokens = {8, 6};
  const VisionLayer<float> wide(Safetensors::parse(bytes), "", vision);
  EXPECT_TRUE(std::ranges::equal(wide.parameters(), std::as_const(layer).parameters()));
}

TEST(BlocksInFiles, ComeBackAsTheyWereSaved) {
  const VisionOptions attention{
      .heads = 2, .tokens = {4, 4}, .block = {2, 2}, .order = TokenOrder::kBlocks};
  expect_round_trip<DitBlock<float>>(
      {.attention = attention, .channels = 6, .convolution = DitConvolution::kReleased});
  expect_round_trip<WanBlock<float>>(
      {.attention = {.heads = 2, .grid = {2, 4, 4}, .layout = {1, 2, 2}}, .channels = 8});
  expect_round_trip<SanaBlock<float>>({.attention = attention, .channels = 6});
  expect_round_trip<VltStage<float>>({.attention = attention, .depth = 3, .channels = 6});
  expect_round_trip<LanguageBlock<float>>(
      {.attention = {.heads = 2, .chunks = 3}, .channels = 16, .hidden = 20});
  expect_round_trip<DeitBlock<float>>({.attention = deit_attention(attention), .channels = 6});
}

TEST(BlocksInFiles, AreReadPastACrossAttentionButNothingElse) {
  const WanOptions options{.attention = {.heads = 2, .grid = {2, 4, 4}, .layout = {1, 2, 2}},
                           .channels = 8,
                           .hidden = 6};
  WanBlock<float> block(options);
  fill_randomly(block.parameters());
  const std::vector<float> number(1);
  const auto loaded = [&](const char* other) {
    SafetensorsWriter writer;
    save_parameters(writer, "x.", block.table(), block.parameters());
    writer.add(other, {1}, std::span(number));
    const Bytes bytes = writer.to_bytes();
    const WanBlock<float> again(Safetensors::parse(bytes), "x.", options);
    return std::ranges::equal(again.parameters(), std::as_const(block).parameters());
  };
  EXPECT_TRUE(loaded("x.norm3.weight"));
  EXPECT_TRUE(loaded("x.cross_attn.k.weight"));
  EXPECT_THROW(loaded("x.norm4.weight"), shape_error);
}

TEST(LayersInFiles, AreReadPastTensorsThatTheyCompute) {
  LanguageLayer<float> layer({.heads = 2, .channels = 16, .chunks = 3});
  fill_randomly(layer.parameters());
  layer.project();
  const std::vector<float> number(1);
  const auto loaded = [&](const std::string& other,
                          const std::vector<std::string_view>& recomputed) {
    SafetensorsWriter writer;
    save_parameters(writer, "x.", layer.table(), layer.parameters());
    writer.add("x." + other, {1}, std::span(number));
    const Bytes bytes = writer.to_bytes();
    const LanguageLayer<float> again(Safetensors::parse(bytes), "x.", layer.options(), recomputed);
    return std::ranges::equal(again.parameters(), std::as_const(layer).parameters());
  };
  for (const char* name :
       {"inv_freq", "rotary.inv_freq", "rotary_emb.inv_freq", "a.cos_cached", "a.sin_cached"}) {
    EXPECT_TRUE(loaded(name, {})) << name;
    EXPECT_TRUE(loaded(name, {"scale"})) << name;
  }
  EXPECT_TRUE(loaded("rotary.scale", {"mask", "scale"}));
  EXPECT_TRUE(loaded("rotary.scale", {"rotary.scale"}));
  for (const char* name : {"rotary.scale", "my_inv_freq", "inv_freq.weight"}) {
    EXPECT_THROW(loaded(name, {"cale", "other.scale", ""}), shape_error) << name;
  }
}

TEST(BlocksInFiles, NameWhatTheFileLacks) {
  DeitOptions options{.attention = deit_attention(kSmallVision), .channels = 6};
  const DeitBlock<float> block(options);
  SafetensorsWriter writer;
  for (const Parameter& p : block.table().all()) {
    if (p.name == "attn.q_norm.weight") continue;
    const auto numbers = block.table().numbers(block.parameters(), p.name);
    writer.add("x." + (p.name == "norm1.bias" ? "norm1.shift" : p.name), p.shape, numbers);
  }
  const Bytes bytes = writer.to_bytes();
  EXPECT_EQ(
      message_of<shape_error>([&] { DeitBlock<float>(Safetensors::parse(bytes), "x.", options); }),
      "mhla::DeitBlock: file lacks x.norm1.bias [6]; lacks x.attn.q_norm.weight [6]; has "
      "'x.norm1.shift', which is no parameter of the layer, expected the 18 tensors of the "
      "layer below \"x.\"");
}

/// The tensors of a layer, rounded to T.
template <class T>
struct RoundedTensors {
  std::vector<std::vector<T>> numbers;
  SafetensorsWriter writer;

  explicit RoundedTensors(const VisionLayer<float>& layer) {
    for (const Parameter& p : layer.table().all()) {
      numbers.emplace_back();
      for (const float x : layer.table().numbers(layer.parameters(), p.name)) {
        numbers.back().push_back(static_cast<T>(x));
      }
      writer.add("x." + p.name, p.shape, numbers.back());
    }
  }
};

template <class T>
void expect_widened() {
  VisionLayer<float> layer(kSmallVision);
  fill_randomly(layer.parameters());
  const RoundedTensors<T> rounded(layer);
  const Bytes bytes = rounded.writer.to_bytes();
  const VisionLayer<float> loaded(Safetensors::parse(bytes), "x.", kSmallVision);
  for (std::size_t i = 0; i < loaded.parameters().size(); ++i) {
    const float expected = static_cast<float>(static_cast<T>(layer.parameters()[i]));
    ASSERT_EQ(loaded.parameters()[i], expected) << i;
  }
}

TEST(LayersInFiles, OfFloatAreReadFromHalvesExactly) {
  expect_widened<Eigen::half>();
  expect_widened<Eigen::bfloat16>();
}

TEST(LayersInFiles, AnUnknownTypeIsNamed) {
  const VisionLayer<float> layer(kSmallVision);
  SafetensorsWriter writer;
  const Bytes numbers(1000);
  for (const Parameter& p : layer.table().all()) {
    const bool bias = p.name == "to_out.0.bias";
    const auto values = layer.table().numbers(layer.parameters(), p.name);
    const auto all = std::as_bytes(values);
    writer.add("x." + p.name,
               bias ? StoredTensor{Dtype::kUnknown, p.shape, all.first(values.size()), "F8_E4M3"}
                    : StoredTensor{Dtype::kF32, p.shape, all});
  }
  const Bytes bytes = writer.to_bytes();
  const std::string text = message_of<shape_error>(
      [&] { VisionLayer<float>(Safetensors::parse(bytes), "x.", kSmallVision); });
  EXPECT_NE(text.find("cannot copy x.to_out.0.bias"), std::string::npos) << text;
  EXPECT_NE(text.find("'F8_E4M3'"), std::string::npos) << text;
}

}  // namespace
}  // namespace mhla::test

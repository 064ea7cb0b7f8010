#include "mhla/layer/parameters.hpp"

#include <gtest/gtest.h>

#include <map>

#include "mhla/layer/language_layer.hpp"
#include "mhla/layer/video_layer.hpp"
#include "mhla/layer/vision_layer.hpp"
#include "support/message_of.hpp"

namespace mhla::test {
namespace {

/// A file in memory: names, shapes, and the number that fills a tensor.
struct MapFile {
  struct Stored {
    std::vector<Index> shape;
    float number;
  };
  std::map<std::string, Stored> stored;

  const std::map<std::string, Stored>& tensors() const { return stored; }
  template <class A>
  void copy_to(const std::string& name, std::span<A> to) const {
    if (stored.at(name).number < 0) throw option_error("is of another type");
    if (stored.at(name).number == 0) throw std::runtime_error("no such disk");
    std::fill(to.begin(), to.end(), static_cast<A>(stored.at(name).number));
  }
};
static_assert(TensorFile<MapFile, float> && !TensorFile<int, float>);

/// A writer that keeps the tensors.
struct MapWriter {
  std::map<std::string, std::pair<std::vector<Index>, std::vector<float>>> stored;

  void add(const std::string& name, const std::vector<Index>& shape, std::span<const float> from) {
    stored[name] = {shape, {from.begin(), from.end()}};
  }
};
static_assert(TensorWriter<MapWriter, float> && !TensorWriter<MapFile, float>);
static_assert(!TensorWriter<MapWriter, double>);

ParameterTable small_table() {
  ParameterTable table;
  table.add("weight", {2, 3, 1});
  table.add("bias", {2});
  return table;
}

TEST(ParameterTable, LaysTensorsSideBySide) {
  const ParameterTable table = small_table();
  EXPECT_EQ(table.size(), 8);
  std::vector<float> row{0, 1, 2, 3, 4, 5, 6, 7};
  const std::span<float> all(row);
  const MatrixView<float> weight = table.matrix(all, "weight");
  EXPECT_EQ(weight.rows, 2);
  EXPECT_EQ(weight.cols, 3);
  EXPECT_EQ(weight(1, 2), 5);
  EXPECT_EQ(table.numbers(all, "bias")[1], 7);
  EXPECT_EQ(table.find("bias")->begin, 6);
  EXPECT_EQ(table.find("gain"), nullptr);
  EXPECT_EQ(table.place("bias").begin, 6);
  EXPECT_EQ(table.place("gain").rows, 0);
  EXPECT_TRUE(table.matrix(all, "gain").absent() && table.numbers(all, "gain").empty());
  EXPECT_TRUE(table.matrix(std::span<float>(), "weight").absent());
  ParameterTable again = table;
  EXPECT_EQ(message_of<error>([&] { again.add("bias", {3}); }),
            "mhla::ParameterTable::add: name is \"bias\", which is there already, expected another "
            "name");
}

TEST(ParameterTable, TakesThoseOfAnotherTableBelowAPrefix) {
  ParameterTable table;
  table.add("gain", {5});
  EXPECT_EQ(table.add("a.", small_table()), 5);
  EXPECT_EQ(table.add("b.", small_table()), 13);
  EXPECT_EQ(table.size(), 21);
  EXPECT_EQ(table.find("b.bias")->begin, 19);
  EXPECT_EQ(table.find("a.weight")->shape, (std::vector<Index>{2, 3, 1}));
  EXPECT_THROW(table.add("a.", small_table()), option_error);
}

TEST(ParameterTable, DescribesTensorsAndOptions) {
  ParameterTable table;
  table.add("up.weight", {3, 2}, Initial::uniform());
  table.leave_out("gate.weight", "gate");
  table.add("up.bias", {3}, {}, "bias");
  EXPECT_EQ(table.describe(),
            "up.weight [3, 2], uniform 1/sqrt(2)\nup.bias [3], zeros, with bias\n"
            "gate.weight left out, with gate\n");
}

TEST(LoadParameters, CopiesTheTensorsBelowAPrefix) {
  const MapFile file{{{"a.weight", {{2, 3, 1}, 4}}, {"a.bias", {{2}, 5}}, {"b.bias", {{9}, 6}}}};
  std::vector<float> row(8);
  load_parameters("Test", file, "a.", small_table(), std::span<float>(row));
  EXPECT_EQ(row, (std::vector<float>{4, 4, 4, 4, 4, 4, 5, 5}));
}

TEST(LoadParameters, NamesEverythingThatDoesNotFitAtOnce) {
  ParameterTable table = small_table();
  table.add("gain", {2});
  const MapFile file{{{"a.weight", {{2, 3}, 4}}, {"a.gain", {{2}, -1}}, {"a.shift", {{2}, 5}}}};
  std::vector<float> row(10, 7);
  EXPECT_EQ(
      message_of<shape_error>(
          [&] { load_parameters("Test", file, "a.", table, std::span<float>(row)); }),
      "mhla::Test: file has a.weight of shape [2, 3] instead of [2, 3, 1]; lacks a.bias [2]; "
      "has 'a.shift', which is no parameter of the layer, expected the 3 tensors of the layer "
      "below \"a.\"");
  EXPECT_EQ(row, std::vector<float>(10, 7));
}

TEST(LoadParameters, NamesOfAFileAreEscapedAndAreNotMany) {
  MapFile file{{{"a.weight", {{2, 3, 1}, 4}}, {"a.bias", {{2}, 5}}, {"a.\x1B[2J", {{1}, 1}}}};
  for (int i = 0; i < 99; ++i) file.stored["a.x" + std::to_string(i)] = {{1}, 1};
  std::vector<float> row(8);
  const std::string text = message_of<shape_error>(
      [&] { load_parameters("Test", file, "a.", small_table(), std::span<float>(row)); });
  EXPECT_TRUE(text.starts_with("mhla::Test: file has 'a.\\x1b[2J', which is no parameter")) << text;
  EXPECT_NE(text.find("; has 84 more that are none, expected"), std::string::npos) << text;
}

TEST(LoadParameters, NamesAllTensorsOfOtherTypesAndLeavesOtherFailuresAsTheyAre) {
  MapFile file{{{"a.weight", {{2, 3, 1}, -4}}, {"a.bias", {{2}, -5}}}};
  std::vector<float> row(8);
  const auto load = [&] {
    load_parameters("Test", file, "a.", small_table(), std::span<float>(row));
  };
  EXPECT_EQ(message_of<shape_error>(load),
            "mhla::Test: file cannot copy a.weight, a.bias (the first: is of another type), "
            "expected the 2 tensors of the layer below \"a.\"");
  file.stored["a.weight"].number = 0;
  EXPECT_EQ(message_of<std::runtime_error>(load), "no such disk");
}

TEST(LoadParameters, RefusesARowOfAnotherTable) {
  const MapFile file{{{"a.weight", {{2, 3, 1}, 4}}, {"a.bias", {{2}, 5}}}};
  std::vector<float> row(7);
  EXPECT_EQ(message_of<shape_error>(
                [&] { load_parameters("Test", file, "a.", small_table(), std::span<float>(row)); }),
            "mhla::Test: row has 7 numbers, expected 8 of the table");
}

TEST(ParameterTable, HoldsSingleNumbers) {
  ParameterTable table;
  table.add("scale", std::vector<Index>{});
  std::vector<float> row{3};
  const MatrixView<float> scale = table.matrix(std::span(row), "scale");
  EXPECT_EQ(scale.rows * scale.cols, 1);
  EXPECT_EQ(scale(0, 0), 3);
}

TEST(SaveParameters, AddsTheTensorsBelowAPrefix) {
  std::vector<float> row{0, 1, 2, 3, 4, 5, 6, 7};
  MapWriter writer;
  save_parameters(writer, "a.", small_table(), std::span<const float>(row));
  const MapWriter expected{
      {{"a.weight", {{2, 3, 1}, {0, 1, 2, 3, 4, 5}}}, {"a.bias", {{2}, {6, 7}}}}};
  EXPECT_EQ(writer.stored, expected.stored);
  save_parameters(writer, "b.", small_table(), std::span<float>(row));
  EXPECT_EQ(writer.stored.size(), 4u);
}

TEST(SaveParameters, RefusesARowOfAnotherTable) {
  std::vector<float> row(9);
  MapWriter writer;
  EXPECT_EQ(message_of<shape_error>(
                [&] { save_parameters(writer, "a.", small_table(), std::span(row)); }),
            "mhla::save_parameters: row has 9 numbers, expected 8 of the table");
  EXPECT_TRUE(writer.stored.empty());
}

TEST(LayerOfAFile, HasNoMemoryForChannelsThatAFileOnlyClaims) {
  constexpr Index kClaimed = 1 << 27;
  const VisionOptions vision{
      .heads = 2, .tokens = {2, 2}, .block = {1, 2}, .order = TokenOrder::kBlocks};
  const auto expect_refused = [](const std::string& why, auto&& call) {
    const std::string text = message_of<shape_error>(call);
    EXPECT_TRUE(text.starts_with(why)) << text;
  };
  const MapFile none{
      {{"x.to_out.0.weight", {{kClaimed, 0}, 1}}, {"x.o_proj.weight", {{kClaimed, 0}, 1}}}};
  expect_refused("mhla::VisionLayer: file has to_out.0.weight of shape [134217728, 0] below \"x.\"",
                 [&] { VisionLayer<float>(none, "x.", vision); });
  expect_refused("mhla::LanguageLayer: file has o_proj.weight of shape [134217728, 0] below \"x.\"",
                 [&] { LanguageLayer<float>(none, "x.", {.heads = 4}); });
  const MapFile thin{{{"x.to_out.0.weight", {{kClaimed, 1}, 1}}}};
  expect_refused("mhla::VisionLayer: file lacks", [&] { VisionLayer<float>(thin, "x.", vision); });
  // Angles of positions are not allocated either.
  const MapFile words{{{"x.o_proj.weight", {{kClaimed}, 1}}}};
  expect_refused("mhla::LanguageLayer: file lacks",
                 [&] { LanguageLayer<float>(words, "x.", {.heads = 4}); });
  const MapFile frames{{{"x.o.weight", {{kClaimed}, 1}}}};
  expect_refused("mhla::VideoLayer: file lacks", [&] {
    VideoLayer<float>(frames, "x.", {.heads = 4, .grid = {21, 30, 50}, .layout = {3, 5, 10}});
  });
}

TEST(LayerOfAFile, TakesItsChannelsAndItsParameters) {
  const VisionOptions options{
      .heads = 2, .tokens = {2, 2}, .block = {1, 2}, .order = TokenOrder::kBlocks};
  VisionOptions sized = options;
  sized.channels = 6;
  const VisionLayer<float> empty(sized);
  MapFile file;
  float number = 0;
  for (const Parameter& p : empty.table().all()) file.stored["x." + p.name] = {p.shape, ++number};
  const VisionLayer<float> layer(file, "x.", options);
  EXPECT_EQ(layer.options().channels, 6);
  number = 0;
  for (const Parameter& p : layer.table().all()) {
    ++number;
    for (const float value : layer.table().numbers(layer.parameters(), p.name)) {
      EXPECT_EQ(value, number) << p.name;
    }
  }
  EXPECT_EQ(message_of<error>([&] { VisionLayer<float>(file, "y.", options); }),
            "mhla::VisionLayer: file has a layer below 'x.', but no to_out.0.weight below "
            "\"y.\", expected the tensors of the layer below this prefix");
  EXPECT_EQ(message_of<error>([&] { VisionLayer<float>(MapFile(), "y.", options); }),
            "mhla::VisionLayer: file has no to_out.0.weight, below \"y.\" or elsewhere, expected "
            "the tensors of the layer below this prefix");
}

}  // namespace
}  // namespace mhla::test

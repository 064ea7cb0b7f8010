// Compares the page of the layers with the tensors of layers.

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <regex>
#include <string>
#include <utility>
#include <vector>

#include "mhla/layer/language_layer.hpp"
#include "mhla/layer/video_layer.hpp"
#include "mhla/layer/vision_layer.hpp"

namespace mhla::test {
namespace {

/// Returns all matches of a group of an expression.
std::vector<std::string> matches(const std::string& text, const std::string& expression) {
  const std::regex pattern(expression);
  std::vector<std::string> all;
  for (std::sregex_iterator i(text.begin(), text.end(), pattern), end; i != end; ++i) {
    all.push_back((*i)[1]);
  }
  return all;
}

/// Returns the names a_q, a_k of a_{q,k}.
std::vector<std::string> expanded(const std::string& name) {
  const auto begin = name.find('{'), end = name.find('}');
  if (begin == std::string::npos) return {name};
  std::vector<std::string> names;
  for (const std::string& part : matches(name.substr(begin + 1, end - begin), "([^,}]+)[,}]")) {
    names.push_back(name.substr(0, begin) + part + name.substr(end + 1));
  }
  return names;
}

/// Tensors of the page: "shape, initial values" and the text of the names of a layer.
std::map<std::string, std::pair<std::string, std::string>> tensors_of(const std::string& layer) {
  std::ifstream page(MHLA_SOURCE_DIR "/include/mhla/layer/README.md");
  std::map<std::string, std::pair<std::string, std::string>> tensors;
  for (std::string line; std::getline(page, line);) {
    const auto cells = matches(line, R"(\| ([^|]*) (?=\|))");
    if (cells.size() != 4 || cells[3].find(layer) != 0) continue;
    const auto names = matches(cells[0], "`([^`]+)`"),
               shapes = matches(cells[1], R"((\[[^\]]+\]))"),
               initial = matches(cells[2], "([^,]+)(?:, )?");
    if (shapes.empty()) continue;
    EXPECT_EQ(names.size(), shapes.size()) << line;
    for (std::size_t i = 0; i < names.size(); ++i) {
      const std::string& begins = initial[std::min(i, initial.size() - 1)];
      for (const std::string& name : expanded(names[i])) {
        tensors[name] = {shapes[i] + "," + begins, cells[3]};
      }
    }
  }
  return tensors;
}

/// Expects that the page has the tensors of a layer, with these letters in its shapes.
void expect_page(const std::string& layer, const ParameterTable& table,
                 const std::map<std::string, Index>& letters) {
  const auto page = tensors_of(layer);
  EXPECT_EQ(page.size(), table.all().size() + table.left_out().size()) << table.describe();
  for (const auto* tensors : {&table.all(), &table.left_out()}) {
    for (const Parameter& p : *tensors) {
      ASSERT_TRUE(page.contains(p.name)) << p.name;
      auto [text, options] = page.at(p.name);
      const std::string option = p.option.empty() ? "" : "`" + p.option + "`";
      EXPECT_NE(options.find(option), options.npos) << p.name;
      if (tensors == &table.left_out()) continue;
      for (const auto& [letter, number] : letters) {
        text = std::regex_replace(text, std::regex("([\\[,(])" + letter + "(?=[,\\])])"),
                                  "$01" + std::to_string(number));
      }
      text = std::regex_replace(text, std::regex(","), ", ");
      EXPECT_EQ(text, detail::shape_text(p.shape) + ", " + p.initial.text()) << p.name;
    }
  }
}

TEST(LayerPage, HasTheTensorsOfVisionLayers) {
  const VisionLayer<float> layer({.heads = 2,
                                  .tokens = {4, 6},
                                  .block = {2, 3},
                                  .order = TokenOrder::kRaster,
                                  .channels = 10,
                                  .lepe = 5});
  expect_page("vision", layer.table(), {{"C", 10}, {"3C", 30}, {"M", 4}, {"s", 5}, {"s²", 25}});
}

TEST(LayerPage, HasTheTablesOfOffsets) {
  VisionOptions vision{.heads = 2,
                       .tokens = {4, 6},
                       .block = {2, 3},
                       .order = TokenOrder::kRaster,
                       .channels = 10,
                       .lepe = 5,
                       .mixing_per_head = true,
                       .offsets = {3, 5}};
  expect_page(
      "vision", VisionLayer<float>(vision).table(),
      {{"C", 10}, {"3C", 30}, {"H", 2}, {"s", 5}, {"s²", 25}, {"F", 1}, {"Y", 3}, {"X", 5}});
  const VideoLayer<float> video({.heads = 2,
                                 .grid = {2, 4, 6},
                                 .layout = {1, 2, 3},
                                 .channels = 8,
                                 .lepe = true,
                                 .mixing_per_head = true,
                                 .offsets = {1, 3, 5}});
  expect_page("video", video.table(), {{"C", 8}, {"E", 4}, {"H", 2}, {"F", 1}, {"Y", 3}, {"X", 5}});
}

TEST(LayerPage, HasTheTensorsOfVideoLayers) {
  const VideoLayer<float> layer(
      {.heads = 2, .grid = {2, 4, 6}, .layout = {1, 2, 3}, .channels = 8, .lepe = true});
  expect_page("video", layer.table(), {{"C", 8}, {"E", 4}, {"M", 6}});
}

TEST(LayerPage, HasTheTensorsOfLanguageLayers) {
  const LanguageLayer<float> layer({.heads = 2,
                                    .channels = 8,
                                    .feature_map = "hedgehog",
                                    .chunks = 3,
                                    .short_convolution = true});
  auto table = layer.table();
  table.leave_out("g_norm.weight", "gate = false");
  expect_page("language", table, {{"C", 8}, {"C/2", 4}, {"D", 2}, {"E", 4}, {"L", 3}, {"taps", 4}});
}

}  // namespace
}  // namespace mhla::test

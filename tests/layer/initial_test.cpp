#include "mhla/layer/initial.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "mhla/layer/language_block.hpp"
#include "mhla/layer/parameters.hpp"
#include "mhla/layer/sana_block.hpp"
#include "mhla/layer/video_block.hpp"
#include "mhla/layer/vision_block.hpp"
#include "mhla/layer/vlt_stage.hpp"
#include "support/message_of.hpp"

namespace mhla::test {
namespace {

/// Initial values of a tensor.
template <class A = double>
std::vector<A> values(const Initial& initial, std::vector<Index> shape, std::uint64_t seed = 1) {
  ParameterTable table;
  table.add("tensor", std::move(shape), initial);
  std::vector<A> row(static_cast<std::size_t>(table.size()), A(7));
  initialize_parameters(table, std::span(row), seed);
  return row;
}

/// Initial values of a tensor of a layer.
template <class L>
auto values_in(L layer, const std::string& name) {
  layer.initialize(1);
  const auto numbers = layer.table().numbers(layer.parameters(), name);
  return std::vector(numbers.begin(), numbers.end());
}

template <class A>
std::vector<A> numbers(const MixingMatrix<A>& mixing) {
  const Matrix<A> m = mixing.dense();
  return {m.data(), m.data() + m.size()};
}

TEST(Initial, RandomNumbersAreThoseOfSplitMix64) {
  detail::SplitMix64 random(1234567);
  for (const std::uint64_t bits : {6457827717110365317u, 3203168211198807973u, 9817491932198370423u,
                                   4593380528125082431u, 16408922859458223821u}) {
    EXPECT_EQ(random.uniform(), static_cast<double>(bits >> 11) * 0x1p-52 - 1);
  }
}

TEST(Initial, FillsATensorByItsRule) {
  using Row = std::vector<double>;
  EXPECT_EQ(values(Initial::zeros(), {2}), (Row{0, 0}));
  EXPECT_EQ(values(Initial::ones(), {2}), (Row{1, 1}));
  EXPECT_EQ(values(Initial::identity(), {2, 3}), (Row{1, 0, 0, 0, 1, 0}));
  EXPECT_EQ(values(Initial::identity(), {3, 2}), (Row{1, 0, 0, 1, 0, 0}));
  EXPECT_EQ(values(Initial::identity(), {2, 1, 1, 3}), (Row{0, 1, 0, 0, 1, 0}));
  EXPECT_EQ(values(Initial::uniform_causal(), {2, 2, 1, 1}), (Row{1, 0, 0.5, 0.5}));
  EXPECT_EQ(values(Initial::uniform_causal(), {2, 2, 2}), (Row{1, 0, 0.5, 0.5, 1, 0, 0.5, 0.5}));
  EXPECT_EQ(values(Initial::locality({2, 3}), {6, 6}),
            numbers(locality<double>({2, 3}, {.sum_to_one = SumToOne::kColumns})));
  const auto tables = distance_locality<double>({3, 5}, {}, 2);
  EXPECT_EQ(values(Initial::distance_locality({3, 5}), {2, 1, 3, 5}),
            Row(tables.storage().begin(), tables.storage().end()));
}

/// Expects the mean, the variance and the covariance of neighbours within 6 deviations of their
/// estimates.
/// \param kurtosis  fourth moment over the squared variance
/// \param most      largest magnitude
void expect_moments(const std::vector<double>& x, double variance, double kurtosis, double most) {
  const auto n = static_cast<double>(x.size());
  double mean = 0, square = 0, neighbours = 0, largest = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    mean += x[i] / n;
    square += x[i] * x[i] / n;
    if (i > 0) neighbours += x[i] * x[i - 1] / n;
    largest = std::max(largest, std::abs(x[i]));
  }
  EXPECT_LE(std::abs(mean), 6 * std::sqrt(variance / n));
  EXPECT_LE(std::abs(square - variance), 6 * variance * std::sqrt((kurtosis - 1) / n));
  EXPECT_LE(std::abs(neighbours), 6 * variance / std::sqrt(n));
  EXPECT_LE(largest, most);
}

TEST(Initial, RandomTensorsHaveTheMomentsOfTheirRule) {
  // A sum of 12 uniform numbers has a kurtosis of 3 - 6/5 / 12.
  expect_moments(values(Initial::uniform(16), {100, 1000}), 1. / 48, 1.8, 0.25);
  expect_moments(values(Initial::normal(16), {100, 1000}), 1. / 16, 2.9, 6 * 0.25);
  // Without terms, those of the tensor itself.
  EXPECT_EQ(values(Initial::uniform(), {5, 1, 4, 4}), values(Initial::uniform(16), {5, 1, 4, 4}));
}

TEST(Initial, EqualSeedsGiveEqualNumbersInEveryType) {
  const std::vector<Index> shape{30, 40};
  const auto row = values(Initial::uniform(), shape);
  EXPECT_EQ(row, values(Initial::uniform(), shape));
  EXPECT_NE(row, values(Initial::uniform(), shape, 2));
  EXPECT_EQ(values<float>(Initial::uniform(), shape), std::vector<float>(row.begin(), row.end()));
  ParameterTable table;
  for (const char* name : {"first", "second"}) table.add(name, shape, Initial::normal(1));
  std::vector<double> both(2400);
  initialize_parameters(table, std::span(both), 1);
  EXPECT_NE(std::vector(both.begin(), both.begin() + 1200),
            std::vector(both.begin() + 1200, both.end()));
}

TEST(Initial, EveryRuleFillsATensorWithoutNumbers) {
  ParameterTable table;
  table.add("identity", {3, 1, 0}, Initial::identity());
  table.add("mixing", {0, 0}, Initial::uniform_causal());
  table.add("weight", {3, 0}, Initial::uniform());
  table.add("ones", {2}, Initial::ones());
  std::vector<float> row(2);
  initialize_parameters(table, std::span<float>(row), 1);
  EXPECT_EQ(row, std::vector<float>(2, 1));
}

TEST(InitialErrors, NameTheTensorAndTheRow) {
  ParameterTable table;
  EXPECT_EQ(message_of<option_error>([&] {
              table.add("m", {4, 4}, Initial::locality({3, 1}));
            }),
            "mhla::ParameterTable::add: initial is locality, expected initial values of m [4, 4]");
  for (const auto& shape : std::vector<std::vector<Index>>{{4}, {4, 5}, {4, 4, 5}, {2, 2, 4}}) {
    EXPECT_THROW(table.add("m", shape, Initial::uniform_causal()), option_error);
    EXPECT_THROW(table.add("m", shape, Initial::locality({2, 2})), option_error);
  }
  for (const auto& shape : std::vector<std::vector<Index>>{{3, 5}, {1, 3, 5}, {1, 1, 5, 3}}) {
    EXPECT_THROW(table.add("m", shape, Initial::distance_locality({3, 5})), option_error);
  }
  EXPECT_THROW(table.add("m", {4}, Initial::identity()), option_error);
  EXPECT_THROW(table.add("m", {4}, Initial::normal(0)), option_error);
  EXPECT_EQ(table.size(), 0);
  table.add("m", {2, 4, 4}, Initial::locality({2, 2}));
  std::vector<float> row(31, 7);
  EXPECT_EQ(message_of<shape_error>([&] { initialize_parameters(table, std::span(row), 1); }),
            "mhla::initialize_parameters: row has 31 numbers, expected 32 of the table");
  EXPECT_EQ(row, std::vector<float>(31, 7));
}

// tensors_test.cpp has the rules of attention layers, vision_block_test.cpp of the DiT block.

VisionOptions vision() {
  return {
      .heads = 2, .tokens = {4, 6}, .block = {2, 2}, .order = TokenOrder::kBlocks, .channels = 8};
}

TEST(InitialOfLayers, MixingMatricesAreThoseOfTheAuthors) {
  const auto near = numbers(locality<double>({2, 3}, {.sum_to_one = SumToOne::kColumns}));
  EXPECT_EQ(values_in(VisionLayer<double>(vision()), "piece_attn.conv.weight"), near);
  const VideoLayer<double> video(
      {.heads = 2, .grid = {1, 4, 6}, .layout = {1, 2, 3}, .channels = 8});
  EXPECT_EQ(values_in(video, "block_attn.conv.weight"), near);
  const LanguageLayer<double> language({.heads = 2, .channels = 8, .chunks = 5});
  EXPECT_EQ(values_in(language, "mixing_matrix"), numbers(uniform_causal<double>(5)));
}

/// Expects the rules of some tensors.
void expect_rules(const ParameterTable& table,
                  const std::vector<std::pair<std::string, std::string>>& rules) {
  for (const auto& [name, rule] : rules) {
    ASSERT_NE(table.find(name), nullptr) << name << " of " << table.describe();
    EXPECT_EQ(table.find(name)->initial.text(), rule) << name;
  }
}

TEST(InitialOfBlocks, ModulationsAndConvolutionsAreThoseOfTheAuthors) {
  const VisionOptions attention = vision();
  expect_rules(DeitBlock<float>({.attention = attention, .channels = 8}).table(),
               {{"norm1.weight", "ones"},
                {"norm2.bias", "zeros"},
                {"attn.lepe.weight", "uniform 1/sqrt(9)"}});
  expect_rules(SanaBlock<float>({.attention = attention, .channels = 8}).table(),
               {{"scale_shift_table", "normal 1/sqrt(8)"},
                {"mlp.depth_conv.conv.weight", "uniform 1/sqrt(9)"}});
  expect_rules(VltStage<float>({.attention = attention, .channels = 8}).table(),
               {{"blocks.1.pos.weight", "uniform 1/sqrt(9)"},
                {"blocks.1.norm2.norm.weight", "ones"},
                {"blocks.1.attn.piece_attn.conv.weight", "locality"},
                {"blocks.1.ffn.fc2.weight", "uniform 1/sqrt(24)"}});
  expect_rules(WanBlock<float>({.attention = {.heads = 2, .grid = {1, 4, 6}, .layout = {1, 2, 2}},
                                .channels = 8})
                   .table(),
               {{"modulation", "normal 1/sqrt(8)"}, {"ffn.0.weight", "uniform 1/sqrt(8)"}});
  expect_rules(LanguageBlock<float>({.attention = {.heads = 2}, .channels = 8}).table(),
               {{"attn_norm.weight", "ones"}, {"mlp.down_proj.weight", "uniform 1/sqrt(256)"}});
}

TEST(InitialOfBlocks, ADitBlockBeginsAsTheIdentity) {
  DitBlock<double> block(
      {.attention = vision(), .channels = 8, .convolution = DitConvolution::kImage});
  block.initialize(3);
  const Matrix<double> x = Matrix<double>::Random(48, 8), c = Matrix<double>::Random(2, 8);
  EXPECT_EQ(block(x, c), x);
}

}  // namespace
}  // namespace mhla::test

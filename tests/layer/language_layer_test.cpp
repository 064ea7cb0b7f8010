#include "mhla/layer/language_layer.hpp"

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "contract/attention_layer.hpp"
#include "contract/decoding_layer.hpp"
#include "support/layer_definition.hpp"
#include "support/message_of.hpp"
#include "support/seeds.hpp"

namespace mhla::test {
namespace {

/// The layer of the model with 340M parameters, in small sizes.
struct SmallLanguageLayer {
  using Layer = LanguageLayer<double>;
  static constexpr Index kRows = 21, kBatch = 3;
  static LanguageOptions options() { return {.heads = 2, .channels = 16, .chunk = 4, .chunks = 6}; }
};
/// A layer with short convolutions, and with one key head per two query heads.
struct GroupedLanguageLayer {
  using Layer = LanguageLayer<double>;
  static constexpr Index kRows = 11, kBatch = 2;
  static LanguageOptions options() {
    return {.heads = 4,
            .key_heads = 2,
            .channels = 16,
            .feature_map = "elu",
            .chunk = 4,
            .chunks = 3,
            .mixing_per_head = true,
            .short_convolution = true,
            .convolution_bias = true};
  }
};
/// The same with a table of offsets per head.
struct OffsetsLanguageLayer {
  using Layer = LanguageLayer<double>;
  static constexpr Index kRows = 11, kBatch = 2;
  static LanguageOptions options() {
    LanguageOptions o = GroupedLanguageLayer::options();
    o.offsets = 3;
    return o;
  }
};
/// A layer with a learned feature map and without a gate.
template <class Name>
struct MappedLanguageLayer {
  using Layer = LanguageLayer<double>;
  static constexpr Index kRows = 9, kBatch = 2;
  static LanguageOptions options() {
    return {.heads = 2,
            .key_heads = 1,
            .channels = 8,
            .feature_map = Name::kName,
            .chunk = 4,
            .chunks = 3,
            .gate = false};
  }
};
struct HedgehogName {
  static constexpr const char* kName = "hedgehog";
};
struct ProductName {
  static constexpr const char* kName = "elementwise_product";
};
struct T2rName {
  static constexpr const char* kName = "t2r";
};
struct DpfpName {
  static constexpr const char* kName = "dpfp";
};

using LanguageLayers =
    testing::Types<SmallLanguageLayer, GroupedLanguageLayer, OffsetsLanguageLayer,
                   MappedLanguageLayer<HedgehogName>, MappedLanguageLayer<ProductName>,
                   MappedLanguageLayer<T2rName>, MappedLanguageLayer<DpfpName>>;
TEST_ATTENTION_LAYERS(Language, LanguageLayers);

TEST_DECODING_LAYERS(Language, LanguageLayers);

TEST(LanguageLayer, IsItsDefinitionAndBackwardItsAdjointForAnyOptions) {
  constexpr const char* kMaps[] = {"relu", "elu",  "identity",           "hedgehog",
                                   "t2r",  "dpfp", "elementwise_product"};
  for (const std::uint64_t seed : seeds(70)) {
    SCOPED_TRACE(seed);
    Random rng(seed);
    LanguageOptions o{.heads = Index{1} << rng.integer(0, 2),
                      .channels = 8,
                      .feature_map = kMaps[seed % 7],
                      .chunk = rng.integer(1, 5),
                      .chunks = rng.integer(1, 5),
                      .mixing_per_head = seed % 2 == 1,
                      .short_convolution = rng.chance(0.5),
                      .convolution_bias = rng.chance(0.5),
                      .convolution_taps = rng.integer(1, 5),
                      .gate = rng.chance(0.5),
                      .norm_eps = 1e-4,
                      .rotary_base = 100};
    o.key_heads = rng.chance(0.3) ? 0 : o.heads >> rng.integer(0, 2);
    if (o.key_heads == 0) o.key_heads = rng.integer(0, 1);
    o.expand_k = static_cast<double>(o.heads * 2 * rng.integer(1, 2)) / 8;
    o.expand_v = static_cast<double>(o.heads * rng.integer(1, 4)) / 8;
    const bool table = rng.chance(0.4);
    if (table) o.offsets = 2 * rng.integer(0, 3) + 1;
    expect_definition_and_adjoint<LanguageLayer<double>>(
        rng, o, rng.integer(1, 3), rng.integer(0, o.chunk * o.chunks),
        table ? "mixing_offsets" : "mixing_matrix");
  }
}

TEST(LanguageLayer, EqualMatricesPerHeadHaveTheBitsOfTheSharedMatrix) {
  LanguageOptions options = GroupedLanguageLayer::options();
  const LanguageLayer<float> shared = [&] {
    options.mixing_per_head = false;
    LanguageLayer<float> layer(options);
    Random rng(3);
    for (float& p : layer.parameters()) p = static_cast<float>(rng.uniform(-0.5, 0.5));
    return layer;
  }();
  options.mixing_per_head = true;
  LanguageLayer<float> each(options);
  EXPECT_EQ(each.table().find("mixing_matrix")->shape, (std::vector<Index>{4, 3, 3}));
  for (const Parameter& p : each.table().all()) {
    const auto from = shared.table().numbers(shared.parameters(), p.name);
    const auto to = each.table().numbers(each.parameters(), p.name);
    for (std::size_t i = 0; i < to.size(); ++i) to[i] = from[i % from.size()];
  }
  const Matrix<float> x = Random(4).matrix<float>(12, 16), y = shared(x);
  EXPECT_EQ(each(x), y);
  auto state = each.start(), other = shared.start();
  for (Index t = 0; t < 12; ++t) {
    Matrix<float> row(1, 16), as(1, 16);
    each.append(state, x.row(t), row);
    shared.append(other, x.row(t), as);
    EXPECT_EQ(row, as) << t;
  }
}

TEST(LanguageLayer, ProjectsItsMixingMatrixAsTheAuthorsDo) {
  LanguageLayer<float> layer(SmallLanguageLayer::options());
  const auto numbers = layer.table().numbers(layer.parameters(), "mixing_matrix");
  std::fill(numbers.begin(), numbers.end(), 2.f);
  numbers[6] = -1;  // row 1, column 0
  layer.project();
  EXPECT_EQ(numbers[0], 1.f);
  EXPECT_EQ(numbers[1], 0.f);
  EXPECT_EQ(numbers[6], 1e-5f);
}

TEST(LanguageLayer, ProjectsATableOfOffsetsToPositiveNumbers) {
  LanguageLayer<float> layer(OffsetsLanguageLayer::options());
  const auto numbers = layer.table().numbers(layer.parameters(), "mixing_offsets");
  std::fill(numbers.begin(), numbers.end(), 2.f);
  numbers[1] = -1;
  layer.project();
  EXPECT_EQ(numbers[0], 2.f);
  EXPECT_EQ(numbers[1], 1e-5f);
}

/// A layer of more chunks begins with the outputs of a layer of fewer.
TEST(LanguageLayer, ATableOfOffsetsServesAnyNumberOfChunks) {
  LanguageOptions options = OffsetsLanguageLayer::options();
  const LanguageLayer<double> trained = AttentionLayerRun<OffsetsLanguageLayer>().layer;
  options.chunks = 7;
  LanguageLayer<double> longer(options);
  ASSERT_EQ(longer.parameters().size(), trained.parameters().size());
  std::ranges::copy(trained.parameters(), longer.parameters().begin());
  const Matrix<double> x = Random(3).matrix<double>(28, options.channels), y = longer(x);
  EXPECT_EQ(y.topRows(12), trained(x.topRows(12)));
  auto state = longer.start();
  Matrix<double> next(28, options.channels);
  longer.append(state, x, next);
  EXPECT_EQ(next, y);
}

/// A pass of a few chunks has the cost and the bits of a layer that allows no more.
TEST(LanguageLayer, ATableMakesMatricesOfTheChunksOfAPass) {
  LanguageOptions options = OffsetsLanguageLayer::options();
  const LanguageLayer<double> few = AttentionLayerRun<OffsetsLanguageLayer>().layer;
  options.chunks = 500;
  LanguageLayer<double> many(options);
  std::ranges::copy(few.parameters(), many.parameters().begin());
  for (const Index rows : {0, 1, 8, 9, 12}) {
    EXPECT_EQ(many.workspace_bytes(rows), few.workspace_bytes(rows)) << rows;
    EXPECT_EQ(many.backward_workspace_bytes(rows), few.backward_workspace_bytes(rows)) << rows;
    const Matrix<double> x = Random(3).matrix<double>(rows, options.channels);
    EXPECT_EQ(many(x), few(x)) << rows;
    const auto gradients = [&](const LanguageLayer<double>& layer) {
      Matrix<double> dx = Matrix<double>::Zero(rows, options.channels);
      std::vector<double> sums(layer.parameters().size());
      layer.backward(x, x, dx, sums);
      return std::pair(dx, sums);
    };
    EXPECT_EQ(gradients(many), gradients(few)) << rows;
  }
}

TEST(LanguageLayer, BeginsWithTheSameMatrixFromATable) {
  LanguageOptions options = SmallLanguageLayer::options();
  LanguageLayer<double> plain(options);
  options.offsets = 5;
  LanguageLayer<double> table(options);
  plain.initialize(1);
  table.initialize(1);
  const Matrix<double> x = Random(3).matrix<double>(24, options.channels);
  EXPECT_LE((plain(x) - table(x)).cwiseAbs().maxCoeff(), 1e-14);
}

TEST(LanguageLayerErrors, NameTheOptionAndWhatWasExpected) {
  const auto refused = [](LanguageOptions o) {
    return message_of<error>([&] { LanguageLayer<float>{o}; });
  };
  const LanguageOptions right = SmallLanguageLayer::options();
  LanguageOptions o = right;
  for (const Index heads : {3, -1}) {
    o.key_heads = heads;
    EXPECT_EQ(refused(o), "mhla::LanguageLayer: key_heads is " + std::to_string(heads) +
                              ", expected a divisor of the 2 heads");
  }
  for (const double expand : {0.3, 0.0, -1.0, 0.125}) {  // of 16 channels: no width, 0, -8, 1
    o = right, o.expand_k = expand;
    EXPECT_EQ(refused(o), "mhla::LanguageLayer: expand_k is " + std::to_string(expand) +
                              ", expected an even width for each of the 2 heads");
  }
  for (const double expand : {0.3, 0.0, -1.0}) {
    o = right, o.expand_v = expand;
    EXPECT_EQ(refused(o), "mhla::LanguageLayer: expand_v is " + std::to_string(expand) +
                              ", expected whole values for each of the 2 heads");
  }
  for (const double endless : {std::numeric_limits<double>::quiet_NaN(), 1e300, -1e300}) {
    for (double LanguageOptions::*const expand :
         {&LanguageOptions::expand_k, &LanguageOptions::expand_v}) {
      o = right, o.*expand = endless;
      EXPECT_TRUE(refused(o).starts_with("mhla::LanguageLayer: expand_k, expand_v are "));
    }
  }
  o = right, o.feature_map = "gelu";
  EXPECT_EQ(refused(o),
            "mhla::LanguageLayer: feature_map is \"gelu\", expected relu, elu, "
            "identity, hedgehog, t2r, dpfp or elementwise_product");
  o = right, o.chunk = 0;
  EXPECT_EQ(refused(o),
            "mhla::LanguageLayer: chunk, chunks, convolution_taps are 0, 6, 4, "
            "expected at least 1 each");
  for (Index LanguageOptions::*const size :
       {&LanguageOptions::chunks, &LanguageOptions::convolution_taps}) {
    o = right, o.*size = 0;
    EXPECT_TRUE(refused(o).starts_with("mhla::LanguageLayer: chunk, chunks, convolution_taps are"));
  }
  o = right, o.chunk = o.chunks = Index{1} << 40;
  EXPECT_EQ(refused(o),
            "mhla::LanguageLayer: chunk, chunks has shape [1099511627776, 1099511627776], "
            "expected a product that fits std::ptrdiff_t");
  o = right, o.offsets = 2;
  EXPECT_EQ(refused(o),
            "mhla::LanguageLayer: offsets is [1, 1, 2], expected odd sizes, as many offsets before "
            "as after, or 0 for a mixing matrix");
  o = right, o.norm_eps = -1;
  EXPECT_EQ(refused(o), "mhla::LanguageLayer: norm_eps is -1.000000, expected 0 or more");
  const LanguageLayer<float> layer(right);
  Matrix<float> x(25, 16), y(25, 16);
  EXPECT_EQ(message_of<error>([&] { layer(x, y); }),
            "mhla::LanguageLayer: x has 25 tokens an item, expected at most 24");
  EXPECT_EQ(message_of<error>([&] { layer(x, y, {.batch = 2}); }),
            "mhla::LanguageLayer: x has 25 rows, expected a multiple of 2 (the batch)");
  EXPECT_EQ(message_of<error>([&] { layer(x, y, {.batch = -1}); }),
            "mhla::LanguageLayer: batch is -1, expected 0 or more");
}

}  // namespace
}  // namespace mhla::test

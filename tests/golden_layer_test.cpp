/// \file
/// Conformance of the attention layers: files of the authors' layers (support/golden_folder.hpp),
/// in the folder `layers` of the golden folder.

#include "support/golden_layer.hpp"

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "mhla/io/safetensors_writer.hpp"
#include "support/golden_folder.hpp"

namespace mhla::test {
namespace {

golden::Result check_attention_layer(const Safetensors& file, const std::string& kind) {
  if (kind == "dit" || kind == "deit") return golden::check_vision_layer(file);
  if (kind == "video") return golden::check_video_layer(file);
  if (kind == "nlp") return golden::check_language_layer(file);
  throw std::runtime_error("is of a kind that is unknown");
}

TEST(Golden, LayerFilesMatch) {
  const auto failures =
      golden::check_folder(golden::golden_folder() / "layers", check_attention_layer);
  for (const std::string& failure : failures) ADD_FAILURE() << failure;
}

/// Returns the failures of a language layer's file with one chunk and this gradient of the mixing
/// coefficient. The coefficient scales the outputs, and the norm after it undoes the scale.
std::vector<std::string> failures_of_one_chunk(double gradient) {
  const auto like = Safetensors::read(golden::kData / "layers" / "nlp_layer_1.safetensors");
  LanguageOptions options = golden::language_options(like);
  options.norm_eps = 0;
  const LanguageLayer<double> layer(like, "param.", options);
  const Index rows = options.chunk / 2, c = layer.options().channels;
  const Matrix<double> x = golden::rows_of(like, "x").topRows(rows);
  const Matrix<double> dy = golden::rows_of(like, "dy").topRows(rows), y = layer(x);
  Matrix<double> dx = Matrix<double>::Zero(rows, c);
  std::vector<double> gradients(layer.parameters().size());
  layer.backward(x, dy, dx, gradients);
  layer.table().numbers(std::span(gradients), "mixing_matrix")[0] = gradient;
  SafetensorsWriter writer;
  for (const auto& [name, m] : {std::pair("x", &x), {"dy", &dy}, {"y", &y}, {"dx", &dx}}) {
    writer.add(name, {1, rows, c},
               std::span<const double>(m->data(), static_cast<std::size_t>(m->size())));
  }
  save_parameters(writer, "param.", layer.table(), layer.parameters());
  save_parameters(writer, "grad.", layer.table(), std::span<const double>(gradients));
  for (const auto& [key, text] : like.metadata()) {
    writer.add_metadata(key, key == "norm_eps" ? "0.0" : text);
  }
  const TemporaryFolder folder;
  writer.write(folder.path() / "one_chunk.safetensors");
  return golden::check_folder(folder.path(), check_attention_layer);
}

TEST(Golden, AGradientThatIsZeroByAlgebraIsComparedWithItsTerms) {
  EXPECT_EQ(failures_of_one_chunk(1e-15).size(), 0u);
  const auto failures = failures_of_one_chunk(1e-6);
  ASSERT_EQ(failures.size(), 1u);
  EXPECT_NE(failures[0].find("grad.mixing_matrix"), std::string::npos) << failures[0];
}

TEST(Golden, WrongNumbersOfLayersFail) {
  const auto expect = [](const char* file, const char* changed, const std::string& reason) {
    golden::expect_failure(file, changed, reason, check_attention_layer);
  };
  for (const char* name : {"x", "y", "param.lepe.weight", "param.to_out.0.bias"}) {
    expect("layers/dit_layer_1.safetensors", name, ": y ");
  }
  for (const char* name : {"dx", "grad.q_norm.weight", "grad.piece_attn.conv.weight"}) {
    expect("layers/dit_layer_1.safetensors", name, name);
  }
  for (const char* name : {"grad.g_norm.weight", "grad.k.bias"}) {
    expect("layers/video_layer_0.safetensors", name, name);
  }
  for (const char* name : {"grad.mixing_matrix", "grad.k_conv1d.weight"}) {
    expect("layers/nlp_layer_1.safetensors", name, name);
  }
  expect("layers/nlp_layer_1.safetensors", "kind", "'none': is of a kind that is unknown");
  expect("layers/nlp_layer_1.safetensors", "rotary_interleaved",
         "has rotary_interleaved 'none', expected 'false'");
}

}  // namespace
}  // namespace mhla::test

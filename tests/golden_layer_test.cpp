/// \file
/// Conformance of the attention layers: files of the authors' layers (support/golden_folder.hpp),
/// in the folder `layers` of the golden folder.

#include "support/golden_layer.hpp"

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
}

}  // namespace
}  // namespace mhla::test

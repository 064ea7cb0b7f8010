#pragma once

/// \file
/// Checks of golden files of whole layers: outputs, and every gradient.

#include <algorithm>
#include <cmath>
#include <span>
#include <string>
#include <vector>

#include "mhla/layer/language_layer.hpp"
#include "mhla/layer/video_layer.hpp"
#include "mhla/layer/vision_layer.hpp"
#include "support/golden_stage.hpp"
#include "support/layer_definition.hpp"
#include "support/layer_oracle.hpp"

namespace mhla::test::golden {

/// A tensor [..., cols] of a file as rows.
inline Matrix<double> rows_of(const Safetensors& file, const std::string& name) {
  const StoredTensor& stored = file.tensor(name);
  const Index cols = stored.shape.empty() ? 1 : stored.shape.back();
  Matrix<double> rows(cols == 0 ? 0 : stored.size() / cols, cols);
  file.copy_to(name, std::span<double>(rows.data(), static_cast<std::size_t>(rows.size())));
  return rows;
}

/// Compares a layer with x, y, dy, dx, param.* and grad.* of a file, in double and in float.
template <template <class> class L, class Options>
Result check_layer(const Safetensors& file, const Options& options, Index batch) {
  Result result;
  const L<double> layer(file, "param.", options);
  const Matrix<double> x = rows_of(file, "x"), dy = rows_of(file, "dy");
  std::vector<std::byte> kept(layer.kept_bytes(x.rows(), batch));
  Matrix<double> y(x.rows(), x.cols()), dx = Matrix<double>::Zero(x.rows(), x.cols());
  std::vector<double> gradients(layer.parameters().size(), 0);
  layer(x, y, {.batch = batch, .kept = kept});
  layer.backward(x, dy, dx, gradients, {.batch = batch, .kept = kept});
  result.outputs["y"].add(y, rows_of(file, "y"));
  LayerOracle<L<double>> oracle(layer, batch, x, dy);
  const auto compare = [&](const std::string& name, auto variables, const double* ours) {
    const Matrix<double> golden = rows_of(file, name);
    Error& error = result.gradients[name];
    error.add(Eigen::Map<const Matrix<double>>(ours, golden.rows(), golden.cols()), golden);
    if (error.relative() <= kGradientTolerance) return;
    error.terms = oracle.along(variables, [] { return 1.0; }).ways;
  };
  compare("dx", oracle.input(), dx.data());
  for (const Parameter& p : layer.table().all()) {
    compare("grad." + p.name, oracle.tensor(p), gradients.data() + p.begin);
  }
  L<float> in_float(layer.options());
  const auto parameters = layer.parameters();
  std::transform(parameters.begin(), parameters.end(), in_float.parameters().begin(),
                 [](double p) { return static_cast<float>(p); });
  const Matrix<float> rounded = x.cast<float>();
  Matrix<float> y_in_float(x.rows(), x.cols());
  in_float(rounded, y_in_float, {.batch = batch});
  const Matrix<Jet> exact = oracle.output();
  for (Index i = 0; i < y.size(); ++i) {
    const Jet& number = exact.data()[i];
    result.raise_in_float(std::abs(y_in_float.data()[i] - number.value),
                          kFloatRoundoff * number.error);
  }
  return result;
}

/// Throws if the metadata has another text for a key.
inline void expect_value(const Safetensors& file, const std::string& key, const std::string& text) {
  const auto found = file.metadata().find(key);
  if (found == file.metadata().end() || found->second == text) return;
  throw std::runtime_error("has " + key + " '" + found->second + "', expected '" + text + "'");
}

/// Side of a square of this many tokens.
inline Index square_side(const Safetensors& file, const std::string& key) {
  const auto count = value<Index>(file, key);
  const auto side = static_cast<Index>(std::lround(std::sqrt(std::max<Index>(count, 0))));
  if (side * side == count) return side;
  throw std::runtime_error("has " + key + " " + std::to_string(count) + ", expected a square");
}

inline Result check_vision_layer(const Safetensors& file) {
  const Index side = square_side(file, "embed_len"), block = square_side(file, "block_size");
  const double eps = value<double>(file, "eps");
  const bool stored_eps = file.metadata().contains("rms_norm_eps");  // otherwise PyTorch's eps
  return check_layer<VisionLayer>(
      file,
      VisionOptions{.heads = value<Index>(file, "heads"),
                    .tokens = {side, side},
                    .block = {block, block},
                    .order = TokenOrder::kBlocks,
                    .qk_norm = value<bool>(file, "qk_norm"),
                    .qkv_bias = value<bool>(file, "qkv_bias"),
                    .lepe = value<Index>(file, "lepe_kernel"),
                    .normalizer = CrossQuery{eps},
                    .feature_eps = eps,
                    .layer_norm_eps = value<double>(file, "layer_norm_eps"),
                    .qk_norm_eps = stored_eps ? value<double>(file, "rms_norm_eps") : 0},
      file.tensor("x").shape.at(0));
}

inline Result check_video_layer(const Safetensors& file) {
  const auto grid = value<std::vector<Index>>(file, "grid"),
             layout = value<std::vector<Index>>(file, "block_layout");
  const double eps = value<double>(file, "eps");
  return check_layer<VideoLayer>(
      file,
      VideoOptions{.heads = value<Index>(file, "heads"),
                   .grid = {grid.at(0), grid.at(1), grid.at(2)},
                   .layout = {layout.at(0), layout.at(1), layout.at(2)},
                   .qk_norm = value<bool>(file, "qk_norm"),
                   .gate = value<bool>(file, "is_gated"),
                   .lepe = value<bool>(file, "is_lepe"),
                   .normalizer = value<bool>(file, "normalize_out") ? AnyNormalizer(CrossQuery{eps})
                                                                    : AnyNormalizer(NoNormalizer{}),
                   .feature_eps = eps,
                   .rotary_base = value<double>(file, "rope_theta")},
      file.tensor("x").shape.at(0));
}

inline LanguageOptions language_options(const Safetensors& file) {
  expect_value(file, "rotary_interleaved", "false");
  expect_value(file, "rotary_after_feature_map", "true");
  expect_value(file, "scale", "head_k_dim**-0.5");  // scales features
  expect_value(file, "mixing_projection", "clamp(1e-5,1) then lower triangle");
  expect_value(file, "mixing_grad", "with respect to the projected matrix");
  LanguageOptions o{.heads = value<Index>(file, "num_heads"),
                    .channels = value<Index>(file, "hidden_size"),
                    .expand_k = value<double>(file, "expand_k"),
                    .expand_v = value<double>(file, "expand_v"),
                    .feature_map = value<std::string>(file, "feature_map"),
                    .chunk = value<Index>(file, "chunk_size"),
                    .chunks = value<Index>(file, "max_chunks"),
                    .short_convolution = value<bool>(file, "use_short_conv"),
                    .convolution_bias = file.contains("param.q_conv1d.bias"),
                    .convolution_taps = value<Index>(file, "conv_size"),
                    .gate = value<bool>(file, "use_output_gate"),
                    .norm_eps = value<double>(file, "norm_eps"),
                    .rotary_base = value<double>(file, "rotary_base")};
  const Index width = mhla::detail::LanguageSizes(o).width;
  if (width > 0) o.key_heads = file.tensor("param.k_proj.weight").shape.at(0) / width;
  return o;
}

inline Result check_language_layer(const Safetensors& file) {
  return check_layer<LanguageLayer>(file, language_options(file), file.tensor("x").shape.at(0));
}

}  // namespace mhla::test::golden

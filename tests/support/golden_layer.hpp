#pragma once

/// \file
/// Checks of golden files of whole layers: forwards, and every gradient.

#include <algorithm>
#include <cmath>
#include <span>
#include <string>
#include <vector>

#include "mhla/layer/language_layer.hpp"
#include "mhla/layer/video_layer.hpp"
#include "mhla/layer/vision_layer.hpp"
#include "support/golden.hpp"

namespace mhla::test::golden {

/// A tensor [..., cols] of a file as rows.
inline Matrix<double> rows_of(const Safetensors& file, const std::string& name) {
  const StoredTensor& stored = file.tensor(name);
  const Index cols = stored.shape.empty() ? 1 : stored.shape.back();
  Matrix<double> rows(cols == 0 ? 0 : stored.size() / cols, cols);
  file.copy_to(name, std::span<double>(rows.data(), static_cast<std::size_t>(rows.size())));
  return rows;
}

/// Of an output's largest magnitude. Measured, not derived: ten times the error of known files.
inline constexpr double kLayerErrorInFloat = 4e-6;

/// Compares a layer with x, y, dy, dx, param.* and grad.* of a file, in double and in float.
template <template <class> class L, class Options>
Result check_layer(const Safetensors& file, const Options& options, Index batch = 0) {
  Result result;
  const L<double> layer(file, "param.", options);
  const Matrix<double> x = rows_of(file, "x"), dy = rows_of(file, "dy");
  std::vector<std::byte> kept(layer.kept_bytes(x.rows(), batch));
  Matrix<double> y(x.rows(), x.cols()), dx = Matrix<double>::Zero(x.rows(), x.cols());
  std::vector<double> gradients(layer.parameters().size(), 0);
  layer(x, y, {.batch = batch, .kept = kept});
  layer.backward(x, dy, dx, gradients, {.batch = batch, .kept = kept});
  result.outputs["y"].add(y, rows_of(file, "y"));
  result.gradients["dx"].add(dx, rows_of(file, "dx"));
  for (const Parameter& p : layer.table().all()) {
    const Matrix<double> golden = rows_of(file, "grad." + p.name);
    const auto sums = layer.table().numbers(std::span<const double>(gradients), p.name);
    result.gradients["grad." + p.name].add(
        Eigen::Map<const Matrix<double>>(sums.data(), golden.rows(), golden.cols()), golden);
  }
  L<float> in_float(layer.options());
  const auto parameters = layer.parameters();
  std::transform(parameters.begin(), parameters.end(), in_float.parameters().begin(),
                 [](double p) { return static_cast<float>(p); });
  const Matrix<float> rounded = x.cast<float>();
  Matrix<float> y_in_float(x.rows(), x.cols());
  in_float(rounded, y_in_float, {.batch = batch});
  result.raise_in_float((y_in_float.cast<double>() - y).cwiseAbs().maxCoeff(),
                        kLayerErrorInFloat * y.cwiseAbs().maxCoeff());
  return result;
}

inline Result check_vision_layer(const Safetensors& file) {
  const auto tokens = value<Index>(file, "embed_len"), block = value<Index>(file, "block_size");
  const auto side = [](Index n) { return static_cast<Index>(std::lround(std::sqrt(n))); };
  return check_layer<VisionLayer>(
      file, VisionOptions{.heads = value<Index>(file, "heads"),
                          .tokens = {side(tokens), side(tokens)},
                          .block = {side(block), side(block)},
                          .qk_norm = value<bool>(file, "qk_norm"),
                          .qkv_bias = value<bool>(file, "qkv_bias"),
                          .lepe = value<Index>(file, "lepe_kernel"),
                          .normalizer = CrossQuery{value<double>(file, "eps")},
                          .feature_eps = value<double>(file, "eps"),
                          .layer_norm_eps = value<double>(file, "layer_norm_eps")});
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
                   .rotary_base = value<double>(file, "rope_theta")});
}

inline Result check_language_layer(const Safetensors& file) {
  const Index batch = file.tensor("x").shape.at(0);
  return check_layer<LanguageLayer>(
      file,
      LanguageOptions{.heads = value<Index>(file, "num_heads"),
                      .expand_k = value<double>(file, "expand_k"),
                      .expand_v = value<double>(file, "expand_v"),
                      .feature_map = value<std::string>(file, "feature_map"),
                      .chunk = value<Index>(file, "chunk_size"),
                      .chunks = value<Index>(file, "max_chunks"),
                      .short_convolution = value<bool>(file, "use_short_conv"),
                      .convolution_taps = value<Index>(file, "conv_size"),
                      .gate = value<bool>(file, "use_output_gate"),
                      .norm_eps = value<double>(file, "norm_eps"),
                      .rotary_base = value<double>(file, "rotary_base")},
      batch);
}

}  // namespace mhla::test::golden

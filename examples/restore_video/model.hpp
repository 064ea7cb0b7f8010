#pragma once

/// \file
/// A video transformer that fills the holes of one clip: its parameters and both passes. The
/// library has its blocks (Wan2.1's self-attention with a 3-D rotary embedding, and perceptron).
///
///     p = patches, hidden ones from the nearest frame that shows them      [N, 3*patch*patch]
///     x = p W + b, plus a learned token for hidden patches                 [N,C]
///     x = block(x, 0)                                                      in each block
///     y = p + (norm(x) * gain + shift) W + b                               [N, 3*patch*patch]
///
/// The last W is initially 0: training begins with the nearest frame and corrects it. This takes a
/// fraction of the steps of predicting all pixels, and gives a sharp background.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <mhla/layer/dense.hpp>
#include <mhla/layer/layer_norm.hpp>
#include <mhla/layer/video_block.hpp>
#include <mhla/policy/locality.hpp>
#include <span>
#include <vector>

#include "../support/block_model.hpp"
#include "../support/random.hpp"
#include "clips.hpp"

namespace restore_video {

using examples::Buffer;

inline constexpr double kNormEps = 1e-6;

/// Settings and parameters.
template <class T>
class Model : public examples::BlockModel<mhla::WanBlock<T>> {
 public:
  /// Makes a model with initial parameters.
  explicit Model(const Settings& settings) : settings_(settings) {
    this->add_dense("patch", settings.dim, settings.features());
    this->add("hidden", {settings.dim});
    this->add_blocks(settings.depth, settings.block());
    this->add_norm("norm", settings.dim);
    this->add_dense("pixels", settings.features(), settings.dim);
    this->set_parameters(initial_parameters());
  }

  const Settings& settings() const { return settings_; }
  /// The trained tensors. The single coefficient of linear attention stays 1.
  std::vector<examples::TrainedTensor> trained() const {
    return examples::trained_tensors(this->table(), settings_.attention == Attention::kLinear);
  }

 private:
  std::vector<T> initial_parameters() const;

  Settings settings_;
};

/// The memory of a worker.
template <class T>
struct Activations {
  explicit Activations(const Model<T>& model)
      : Activations(model, model.settings().tokens(), model.settings().dim,
                    model.settings().features()) {}

  examples::BlockPass<mhla::WanBlock<T>> pass;
  Buffer<T> condition;  // of the blocks: 0
  Buffer<T> normed, output;
  Buffer<T> dnormed, doutput;
  std::vector<std::byte> workspace;

 private:
  Activations(const Model<T>& model, Index n, Index c, Index features)
      : pass(model, 1, n, c),
        condition(1, 6 * c),
        normed(n, c),
        output(n, features),
        dnormed(normed),
        doutput(output),
        workspace(std::max({mhla::dense_adjoint_workspace_bytes<T>(n, features, c),
                            mhla::dense_adjoint_workspace_bytes<T>(n, c, features),
                            mhla::layer_norm_adjoint_workspace_bytes<T>(n, c)})) {}
};

/// Writes a.output, [N, 3*patch*patch].
template <class T>
void forward(const Model<T>& model, const Clip<T>& clip, Activations<T>& a);

/// Adds the gradients of the parameters, given a.doutput, the gradient of a.output, after forward.
template <class T>
void backward(const Model<T>& model, const Clip<T>& clip, Activations<T>& a, std::span<T> gradient);

// ------------------------------------------------------------------------------------------------

/// Initial parameters, equal for all attentions except the mixing matrix, which is locality. Gains
/// and gates are 1, biases and the last layer 0. Weights of residual branches are smaller, the more
/// blocks there are.
template <class T>
std::vector<T> Model<T>::initial_parameters() const {
  examples::Random random(static_cast<std::uint64_t>(settings_.seed));
  std::vector<T> row(static_cast<std::size_t>(this->table().size()), T(0));
  for (const mhla::Parameter& p : this->table().all()) {
    const std::span<T> numbers = p.place().numbers(std::span<T>(row));
    const auto draw = [&](double deviation) {
      for (T& number : numbers) number = static_cast<T>(deviation * random.normal());
    };
    if (examples::is_mixing(p.name)) {
      const mhla::Matrix<T> start = mhla::locality<T>(settings_.layout()).dense();
      std::copy_n(start.data(), start.size(), numbers.begin());
    } else if (p.name.ends_with("modulation")) {  // shift, scale and gate, twice
      std::fill_n(numbers.begin() + 2 * settings_.dim, settings_.dim, T(1));
      std::fill_n(numbers.begin() + 5 * settings_.dim, settings_.dim, T(1));
    } else if (p.name == "hidden") {
      draw(0.1);
    } else if (p.shape.size() == 2 && p.name != "pixels.weight") {
      const bool adds = p.name.ends_with(".o.weight") || p.name.ends_with("ffn.2.weight");
      draw(1 / std::sqrt(static_cast<double>(p.shape[1] * (adds ? 2 * settings_.depth : 1))));
    } else if (p.name.find("norm") != std::string::npos && p.name.ends_with(".weight")) {
      std::ranges::fill(numbers, T(1));
    }
  }
  return row;
}

template <class T>
void forward(const Model<T>& model, const Clip<T>& clip, Activations<T>& a) {
  const auto p = model.parameters();
  const mhla::ParameterTable& table = model.table();
  const mhla::Call call{.workspace = a.workspace};
  const Index n = model.settings().tokens();
  const auto x = a.pass.input(1), output = a.output.rows(n);
  mhla::dense(clip.filled, model.dense(p, "patch"), x, call);
  const auto hidden = table.numbers(p, "hidden");
  for (Index t = 0; t < n; ++t) {
    if (!clip.hidden(t)) continue;
    for (Index j = 0; j < x.cols; ++j) x(t, j) += hidden[static_cast<std::size_t>(j)];
  }
  a.pass.forward(model, 1, a.condition.rows(1));
  mhla::layer_norm(a.pass.output(1), table.numbers(p, "norm.weight"), table.numbers(p, "norm.bias"),
                   kNormEps, a.normed.rows(n));
  mhla::dense(a.normed.rows(n), model.dense(p, "pixels"), output, call);
  for (Index t = 0; t < n; ++t) {
    for (Index j = 0; j < output.cols; ++j) output(t, j) += clip.filled(t, j);
  }
}

template <class T>
void backward(const Model<T>& model, const Clip<T>& clip, Activations<T>& a,
              std::span<T> gradient) {
  const auto p = model.parameters();
  const mhla::ParameterTable& table = model.table();
  const mhla::Call call{.workspace = a.workspace};
  const Index n = model.settings().tokens();
  mhla::dense_adjoint(a.normed.rows(n), model.dense(p, "pixels"), a.doutput.rows(n),
                      a.dnormed.zero_rows(n), model.dense(gradient, "pixels"), call);
  mhla::layer_norm_adjoint(a.pass.output(1), table.numbers(p, "norm.weight"), kNormEps,
                           a.dnormed.rows(n), a.pass.zero_gradient(1),
                           table.numbers(gradient, "norm.weight"),
                           table.numbers(gradient, "norm.bias"), call);
  a.pass.backward(model, 1, gradient, a.condition.rows(1), mhla::MatrixView<T>());
  const auto dx = a.pass.gradient(1);
  const auto dhidden = table.numbers(gradient, "hidden");
  for (Index t = 0; t < n; ++t) {
    if (!clip.hidden(t)) continue;
    for (Index j = 0; j < dx.cols; ++j) dhidden[static_cast<std::size_t>(j)] += dx(t, j);
  }
  mhla::dense_adjoint(clip.filled, model.dense(p, "patch"), dx, {}, model.dense(gradient, "patch"),
                      call);
}

}  // namespace restore_video

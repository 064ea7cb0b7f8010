#pragma once

/// \file
/// A small vision transformer on a few images, made of blocks of the library: forward and backward.
///
///     x = patches W + position                             [N,C]
///     x += attention(norm(x)),   x += mlp(norm(x))         in each block
///     logits = mean over tokens of norm(x) W               [10]

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <mhla/layer/dense.hpp>
#include <mhla/layer/layer_norm.hpp>
#include <mhla/layer/vision_block.hpp>
#include <mhla/policy/locality.hpp>
#include <span>
#include <string>
#include <vector>

#include "../support/block_model.hpp"
#include "../support/random.hpp"
#include "settings.hpp"

namespace train_images {

using examples::Buffer;

inline constexpr double kNormEps = 1e-5;

/// Settings and parameters.
template <class T>
class Model : public examples::BlockModel<mhla::DeitBlock<T>> {
 public:
  /// Makes a model with initial parameters.
  explicit Model(const Settings& settings) : settings_(settings) {
    const Index c = settings.dim;
    this->add_dense("patch", c, kPatchPixels);
    this->add("position", {settings.tokens(), c});
    this->add_blocks(settings.depth, block_options(settings));
    this->add_norm("norm", c);
    this->add_dense("head", examples::kClasses, c);
    this->set_parameters(initial_parameters());
  }

  const Settings& settings() const { return settings_; }
  /// Mixing matrix of each block; empty without MHLA.
  std::vector<mhla::Matrix<T>> mixing() const {
    std::vector<mhla::Matrix<T>> all;
    for (const mhla::Parameter& p : this->table().all()) {
      if (settings_.attention != Attention::kMhla || !examples::is_mixing(p.name)) continue;
      const auto m = p.place().matrix(this->parameters());
      all.emplace_back(Eigen::Map<const mhla::Matrix<T>>(m.data, m.rows, m.cols));
    }
    return all;
  }

 private:
  /// Initial parameters. Tensors that two kinds of attention share are equal for the same seed,
  /// because mixing matrices are not random. Gains are 1, biases 0.
  std::vector<T> initial_parameters() const {
    examples::Random random(static_cast<std::uint64_t>(settings_.seed));
    std::vector<T> row(static_cast<std::size_t>(this->table().size()), T(0));
    for (const mhla::Parameter& p : this->table().all()) {
      const std::span<T> numbers = p.place().numbers(std::span<T>(row));
      if (examples::is_mixing(p.name)) {
        const Index m = p.shape[0];
        const auto start = m > 1 && settings_.init == MixingStart::kLocality
                               ? mhla::locality<T>(block_grid(settings_)).dense()
                               : mhla::Matrix<T>::Constant(m, m, T(1) / static_cast<T>(m)).eval();
        std::copy_n(start.data(), start.size(), numbers.begin());
      } else if (p.name == "position") {
        for (T& number : numbers) number = static_cast<T>(0.02 * random.normal());
      } else if (p.shape.size() > 1) {
        const double deviation = 1 / std::sqrt(static_cast<double>(p.place().cols));
        for (T& number : numbers) number = static_cast<T>(deviation * random.normal());
      } else if (p.name.ends_with("norm.weight") || p.name.ends_with("norm1.weight") ||
                 p.name.ends_with("norm2.weight")) {
        std::ranges::fill(numbers, T(1));
      }
    }
    return row;
  }

  Settings settings_;
};

/// The memory of a worker.
template <class T>
struct Activations {
  /// \param images  largest number of images at a time
  Activations(const Model<T>& model, Index images)
      : tokens(images * model.settings().tokens(), kPatchPixels),
        pass(model, images, model.settings().tokens(), model.settings().dim),
        normed(images * model.settings().tokens(), model.settings().dim),
        pooled(images, model.settings().dim),
        logits(images, examples::kClasses),
        dlogits(logits),
        dpooled(pooled),
        dnormed(normed) {
    const Index n = images * model.settings().tokens(), c = model.settings().dim;
    workspace.resize(
        std::max({mhla::dense_adjoint_workspace_bytes<T>(n, kPatchPixels, c),
                  mhla::dense_adjoint_workspace_bytes<T>(images, c, examples::kClasses),
                  mhla::layer_norm_adjoint_workspace_bytes<T>(n, c)}));
  }

  Buffer<T> tokens;  // [B*N, 4]
  examples::BlockPass<mhla::DeitBlock<T>> pass;
  Buffer<T> normed;
  Buffer<T> pooled, logits;  // rows are images
  Buffer<T> dlogits, dpooled, dnormed;
  std::vector<std::byte> workspace;
};

/// Writes the logits [images,10] of the images in `a.tokens` to `a.logits`.
template <class T>
void forward(const Model<T>& model, Index images, Activations<T>& a) {
  const auto p = model.parameters();
  const mhla::ParameterTable& table = model.table();
  const mhla::Call call{.workspace = a.workspace};
  const Index tokens = model.settings().tokens(), n = images * tokens, c = model.settings().dim;
  const auto x = a.pass.input(images), normed = a.normed.rows(n),
             pooled = a.pooled.zero_rows(images);
  mhla::dense(a.tokens.rows(n), model.dense(p, "patch"), x, call);
  const auto position = table.matrix(p, "position");
  for (Index r = 0; r < n; ++r) {
    for (Index j = 0; j < c; ++j) x(r, j) += position(r % tokens, j);
  }
  a.pass.forward(model, images);
  mhla::layer_norm(a.pass.output(images), table.numbers(p, "norm.weight"),
                   table.numbers(p, "norm.bias"), kNormEps, normed);
  for (Index r = 0; r < n; ++r) {
    for (Index j = 0; j < c; ++j) pooled(r / tokens, j) += normed(r, j) / static_cast<T>(tokens);
  }
  mhla::dense(pooled, model.dense(p, "head"), a.logits.rows(images), call);
}

/// Adds the gradients of the parameters, given `a.dlogits`, the gradient of the logits, after
/// forward.
/// \param gradient  in the layout of the parameters
template <class T>
void backward(const Model<T>& model, Index images, Activations<T>& a, std::span<T> gradient) {
  const auto p = model.parameters();
  const mhla::ParameterTable& table = model.table();
  const mhla::Call call{.workspace = a.workspace};
  const Index tokens = model.settings().tokens(), n = images * tokens, c = model.settings().dim;
  const auto dpooled = a.dpooled.zero_rows(images), dnormed = a.dnormed.rows(n);
  mhla::dense_adjoint(a.pooled.rows(images), model.dense(p, "head"), a.dlogits.rows(images),
                      dpooled, model.dense(gradient, "head"), call);
  for (Index r = 0; r < n; ++r) {
    for (Index j = 0; j < c; ++j) dnormed(r, j) = dpooled(r / tokens, j) / static_cast<T>(tokens);
  }
  mhla::layer_norm_adjoint(a.pass.output(images), table.numbers(p, "norm.weight"), kNormEps,
                           dnormed, a.pass.zero_gradient(images),
                           table.numbers(gradient, "norm.weight"),
                           table.numbers(gradient, "norm.bias"), call);
  a.pass.backward(model, images, gradient);
  const auto dx = a.pass.gradient(images), dposition = table.matrix(gradient, "position");
  mhla::dense_adjoint(a.tokens.rows(n), model.dense(p, "patch"), dx, {},
                      model.dense(gradient, "patch"), call);
  for (Index r = 0; r < n; ++r) {
    for (Index j = 0; j < c; ++j) dposition(r % tokens, j) += dx(r, j);
  }
}

}  // namespace train_images

#pragma once

/// \file
/// A small vision transformer, forwards and backwards, on a few images at a time.
///
///     x = patches W + position                             [N,C]
///     x += attention(norm(x)),   x += mlp(norm(x))         in each layer
///     logits = mean over tokens of norm(x) W               [10]

#include <mhla/layer/dense.hpp>
#include <mhla/layer/layer_norm.hpp>
#include <mhla/layer/mlp.hpp>
#include <span>
#include <type_traits>
#include <vector>

#include "activations.hpp"
#include "parameters.hpp"
#include "settings.hpp"

namespace train_images {

/// Settings and parameters.
template <class T>
class Model {
 public:
  /// With initial parameters.
  explicit Model(const Settings& settings)
      : settings_(settings),
        layout_(settings),
        parameters_(initial_parameters<T>(layout_, settings)) {}

  const Settings& settings() const { return settings_; }
  const Layout& layout() const { return layout_; }
  std::span<const T> parameters() const { return parameters_; }
  std::span<T> parameters() { return parameters_; }
  /// Of a layer; absent without MHLA.
  mhla::MixingView<const T> mixing(std::size_t layer) const {
    return layout_.layers[layer].mixing.mixing(parameters());
  }

 private:
  Settings settings_;
  Layout layout_;
  std::vector<T> parameters_;
};

/// Writes the logits [images,10] of the images in `a.tokens` to `a.logits`.
template <class T>
void forward(const Model<T>& model, Index images, Activations<T>& a);

/// Adds the gradients of the parameters, given those of the logits in `a.dlogits`, after forward.
/// \param gradient  laid out as the parameters
template <class T>
void backward(const Model<T>& model, Index images, Activations<T>& a, std::span<T> gradient);

// ------------------------------------------------------------------------------------------------

namespace detail {

constexpr double kNormEps = 1e-5;

/// A view without gaps between its rows, for Eigen.
template <class T>
auto eigen(mhla::MatrixView<T> m) {
  using Dense = mhla::Matrix<std::remove_const_t<T>>;
  return Eigen::Map<std::conditional_t<std::is_const_v<T>, const Dense, Dense>>(m.data, m.rows,
                                                                                m.cols);
}

/// The layers of the library on tensors of a model.
template <class T>
class Pass {
  using View = mhla::MatrixView<T>;

 public:
  Pass(const Model<T>& model, std::span<std::byte> workspace)
      : parameters_(model.parameters()), call_{.workspace = workspace} {}

  void dense(const Dense& d, View x, View y) const {
    mhla::dense(x, d.view(parameters_), y, call_);
  }
  void mlp(const Mlp& m, View x, View pre, View hidden, View y) const {
    mhla::mlp(x, m.view(parameters_), pre, hidden, y, call_);
  }
  void norm(const Norm& n, View x, View y) const {
    mhla::layer_norm(x, n.gain.vector(parameters_), n.shift.vector(parameters_), kNormEps, y);
  }

  void dense_adjoint(const Dense& d, View x, View dy, View dx, std::span<T> gradient) const {
    mhla::dense_adjoint(x, d.view(parameters_), dy, dx, d.view(gradient), call_);
  }
  void mlp_adjoint(const Mlp& m, View x, View pre, View hidden, View dy, View dx,
                   std::span<T> gradient) const {
    mhla::mlp_adjoint(x, m.view(parameters_), pre, hidden, dy, dx, m.view(gradient), call_);
  }
  void norm_adjoint(const Norm& n, View x, View dy, View dx, std::span<T> gradient) const {
    mhla::layer_norm_adjoint(x, n.gain.vector(parameters_), kNormEps, dy, dx,
                             n.gain.vector(gradient), n.shift.vector(gradient), call_);
  }

 private:
  std::span<const T> parameters_;
  mhla::Call call_;
};

}  // namespace detail

template <class T>
void forward(const Model<T>& model, Index images, Activations<T>& a) {
  using detail::eigen;
  const Layout& layout = model.layout();
  const detail::Pass<T> pass(model, a.workspace);
  const Index n = images * kTokens;

  mhla::MatrixView<T> x = a.layers[0].input.rows(n);
  pass.dense(layout.patch, a.tokens.rows(n), x);
  for (Index i = 0; i < images; ++i) {
    eigen(x.middle_rows(i * kTokens, kTokens)) += eigen(layout.position.matrix(model.parameters()));
  }
  for (std::size_t l = 0; l < a.layers.size(); ++l) {
    const LayerSlices& p = layout.layers[l];
    LayerActivations<T>& layer = a.layers[l];
    pass.norm(p.norm1, x, layer.norm1.rows(n));
    pass.dense(p.qkv, layer.norm1.rows(n), layer.qkv.rows(n));
    a.attention.forward(layer.qkv.rows(n), model.mixing(l), layer.attended.rows(n));
    const auto middle = layer.middle.rows(n);
    pass.dense(p.out, layer.attended.rows(n), middle);
    eigen(middle) += eigen(x);

    pass.norm(p.norm2, middle, layer.norm2.rows(n));
    x = (l + 1 < a.layers.size() ? a.layers[l + 1].input : a.output).rows(n);
    pass.mlp(p.mlp, layer.norm2.rows(n), layer.pre.rows(n), layer.hidden.rows(n), x);
    eigen(x) += eigen(middle);
  }
  const auto normed = a.normed.rows(n), pooled = a.pooled.rows(images);
  pass.norm(layout.last_norm, x, normed);
  for (Index i = 0; i < images; ++i) {
    // Token by token: the order of Eigen's own sum depends on the alignment of the buffers.
    auto mean = eigen(pooled).row(i);
    mean.setZero();
    for (Index t = 0; t < kTokens; ++t) mean += eigen(normed).row(i * kTokens + t);
    mean /= static_cast<T>(kTokens);
  }
  pass.dense(layout.head, pooled, a.logits.rows(images));
}

template <class T>
void backward(const Model<T>& model, Index images, Activations<T>& a, std::span<T> gradient) {
  using detail::eigen;
  const Layout& layout = model.layout();
  const detail::Pass<T> pass(model, a.workspace);
  const Index n = images * kTokens;

  const auto dpooled = a.dpooled.zero_rows(images), dnormed = a.dinner.rows(n);
  pass.dense_adjoint(layout.head, a.pooled.rows(images), a.dlogits.rows(images), dpooled, gradient);
  for (Index i = 0; i < images; ++i) {
    eigen(dnormed).middleRows(i * kTokens, kTokens).rowwise() =
        eigen(dpooled).row(i) / static_cast<T>(kTokens);
  }
  const auto dx = a.dx.zero_rows(n);
  pass.norm_adjoint(layout.last_norm, a.output.rows(n), dnormed, dx, gradient);

  for (std::size_t l = a.layers.size(); l-- > 0;) {
    const LayerSlices& p = layout.layers[l];
    LayerActivations<T>& layer = a.layers[l];
    const auto dnorm2 = a.dinner.zero_rows(n);
    pass.mlp_adjoint(p.mlp, layer.norm2.rows(n), layer.pre.rows(n), layer.hidden.rows(n), dx,
                     dnorm2, gradient);
    pass.norm_adjoint(p.norm2, layer.middle.rows(n), dnorm2, dx, gradient);

    const auto dattended = a.dinner.zero_rows(n), dqkv = a.dqkv.zero_rows(n);
    pass.dense_adjoint(p.out, layer.attended.rows(n), dx, dattended, gradient);
    a.attention.backward(layer.qkv.rows(n), model.mixing(l), dattended, dqkv,
                         p.mixing.mixing(gradient));
    const auto dnorm1 = a.dinner.zero_rows(n);
    pass.dense_adjoint(p.qkv, layer.norm1.rows(n), dqkv, dnorm1, gradient);
    pass.norm_adjoint(p.norm1, layer.input.rows(n), dnorm1, dx, gradient);
  }
  pass.dense_adjoint(layout.patch, a.tokens.rows(n), dx, {}, gradient);
  for (Index i = 0; i < images; ++i) {
    eigen(layout.position.matrix(gradient)) += eigen(dx.middle_rows(i * kTokens, kTokens));
  }
}

}  // namespace train_images

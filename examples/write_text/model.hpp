#pragma once

/// \file
/// A language model of bytes: the forward of a sequence or its next tokens, the backward of a
/// sequence.
///
///     x = embedding[byte]                                                       [N,C]
///     q, k, v, g = norm(x) W;   q, k = rotary(phi(q)), rotary(phi(k))           in each layer
///     x += (norm of every head of attention(q, k, v) * silu(g)) W
///     x += (silu(norm(x) W) * (norm(x) W)) W
///     logits = norm(x) W                                                        [N,256]
///
/// The map phi is relu, with softmax attention the identity. All norms are RMS norms. Everything
/// but attention is row-wise.

#include <algorithm>
#include <mhla/layer/head_map.hpp>
#include <mhla/layer/rotary.hpp>
#include <span>
#include <vector>

#include "activations.hpp"
#include "attention.hpp"
#include "parameters.hpp"
#include "text.hpp"

namespace write_text {

constexpr double kNormEps = 1e-6;

/// Settings and parameters.
template <class T>
class Model {
 public:
  /// Makes a model with initial parameters.
  explicit Model(const Settings& settings)
      : settings_(settings),
        layout_(settings),
        parameters_(initial_parameters<T>(layout_, settings)),
        angles_(mhla::RotaryTable<T>::sequence(settings.context, settings.width())) {}

  const Settings& settings() const { return settings_; }
  const Layout& layout() const { return layout_; }
  std::span<const T> parameters() const { return parameters_; }
  std::span<T> parameters() { return parameters_; }
  const mhla::RotaryTable<T>& angles() const { return angles_; }
  /// Mixing matrix of a layer; absent without MHLA.
  mhla::MixingView<const T> mixing(std::size_t layer) const {
    return mixing_at(layout_.layers[layer].mixing, parameters());
  }
  mhla::GatedMlpView<const T> mlp(const LayerPlaces& p) const { return mlp_in(p, parameters()); }

  template <class U>
  static mhla::GatedMlpView<U> mlp_in(const LayerPlaces& p, std::span<U> row) {
    return {{p.gate.matrix(row)}, {p.up.matrix(row)}, {p.down.matrix(row)}};
  }

 private:
  Settings settings_;
  Layout layout_;
  std::vector<T> parameters_;
  mhla::RotaryTable<T> angles_;
};

/// Products of a model for many rows, with parameters that are not packed.
template <class T>
struct Products {
  using View = mhla::MatrixView<T>;

  const Model<T>& model;
  mhla::Call call;

  void dense(const ParameterSlice& weight, View x, View y) const {
    mhla::dense(x, {weight.matrix(model.parameters())}, y, call);
  }
  void mlp(const LayerPlaces& p, View x, View gate, View up, View hidden, View y) const {
    mhla::gated_mlp(x, model.mlp(p), gate, up, hidden, y, call);
  }
};

/// Computes the logits a.logits of the bytes; the first byte has position `first`.
/// \param products  Products, or a class with its members
/// \param attend    attend(layer number, queries and keys [n,2C], values [n,C], out [n,C])
template <class T, class P, class Attend>
void forward(const Model<T>& model, const P& products, Bytes bytes, Index first, Activations<T>& a,
             Attend&& attend);

/// Computes the logits of a whole sequence.
template <class T>
void forward(const Model<T>& model, Bytes bytes, CausalAttention<T>& attention, Activations<T>& a) {
  forward(model, Products<T>{model, {.workspace = a.workspace}}, bytes, 0, a,
          [&](std::size_t layer, auto qk, auto v, auto out) {
            attention.forward(qk, v, model.mixing(layer), out);
          });
}

/// Adds the gradients of the parameters, given d.logits, the gradient of the logits, after forward.
/// \param gradient  in the layout of the parameters
template <class T>
void backward(const Model<T>& model, Bytes bytes, CausalAttention<T>& attention, Activations<T>& a,
              ActivationGradients<T>& d, std::span<T> gradient);

// ------------------------------------------------------------------------------------------------

namespace detail {

template <class T>
void add_rows(mhla::MatrixView<T> x, mhla::MatrixView<T> y) {  // y += x
  for (Index r = 0; r < y.rows; ++r) {
    for (Index j = 0; j < y.cols; ++j) y(r, j) += x(r, j);
  }
}

}  // namespace detail

template <class T, class P, class Attend>
void forward(const Model<T>& model, const P& products, Bytes bytes, Index first, Activations<T>& a,
             Attend&& attend) {
  const Settings& s = model.settings();
  const Layout& layout = model.layout();
  const std::span<const T> p = model.parameters();
  const Index n = std::ssize(bytes), c = s.dim;
  mhla::MatrixView<T> x = a.layers[0].input.rows(n);
  for (Index t = 0; t < n; ++t) {
    std::copy_n(layout.embedding.matrix(p).row(bytes[static_cast<std::size_t>(t)]), c, x.row(t));
  }
  for (std::size_t l = 0; l < a.layers.size(); ++l) {
    const LayerPlaces& at = layout.layers[l];
    LayerActivations<T>& layer = a.layers[l];
    const auto lead = layer.lead.rows(n), turned = layer.turned.rows(n);
    mhla::rms_norm(x, at.norm.numbers(p), kNormEps, layer.normed.rows(n));
    products.dense(at.lead, layer.normed.rows(n), lead);
    mhla::MatrixView<T> features = lead.middle_cols(0, 2 * c);
    if (s.attention != Attention::kSoftmax) {
      features = layer.features.rows(n);
      mhla::map_heads(lead.middle_cols(0, 2 * c), mhla::Relu{}, 2 * s.heads, features);
    }
    mhla::rotary(features, model.angles().rows(first, n), 2 * s.heads, turned);
    attend(l, turned, lead.middle_cols(2 * c, c), layer.attended.rows(n));
    mhla::gated_rms_norm(layer.attended.rows(n), at.head_norm.numbers(p), kNormEps,
                         lead.middle_cols(3 * c, c), layer.mixed.rows(n));
    const auto middle = layer.middle.rows(n);
    products.dense(at.out, layer.mixed.rows(n), middle);
    detail::add_rows(x, middle);

    mhla::rms_norm(middle, at.mlp_norm.numbers(p), kNormEps, layer.mlp_normed.rows(n));
    x = (l + 1 < a.layers.size() ? a.layers[l + 1].input : a.output).rows(n);
    products.mlp(at, layer.mlp_normed.rows(n), layer.gate.rows(n), layer.up.rows(n),
                 a.hidden.rows(n), x);
    detail::add_rows(middle, x);
  }
  mhla::rms_norm(x, layout.norm.numbers(p), kNormEps, a.normed.rows(n));
  products.dense(layout.head, a.normed.rows(n), a.logits.rows(n));
}

template <class T>
void backward(const Model<T>& model, Bytes bytes, CausalAttention<T>& attention, Activations<T>& a,
              ActivationGradients<T>& d, std::span<T> gradient) {
  using View = mhla::MatrixView<T>;
  const Settings& s = model.settings();
  const Layout& layout = model.layout();
  const std::span<const T> p = model.parameters();
  const mhla::Call call{.workspace = d.workspace};
  const Index n = std::ssize(bytes), c = s.dim;
  const auto dense = [&](const ParameterSlice& weight, View x, View dy, View dx) {
    mhla::dense_adjoint(x, {weight.matrix(p)}, dy, dx, {weight.matrix(gradient)}, call);
  };
  const auto norm = [&](const ParameterSlice& gain, View x, View dy, View dx) {
    mhla::rms_norm_adjoint(x, gain.numbers(p), kNormEps, dy, dx, gain.numbers(gradient), call);
  };
  const auto inner = [&] { return d.inner.zero_rows(n); };

  const View dx = d.x.zero_rows(n), dnormed = inner();
  dense(layout.head, a.normed.rows(n), d.logits.rows(n), dnormed);
  norm(layout.norm, a.output.rows(n), dnormed, dx);
  for (std::size_t l = a.layers.size(); l-- > 0;) {
    const LayerPlaces& at = layout.layers[l];
    LayerActivations<T>& layer = a.layers[l];
    const View dmlp = inner();
    mhla::gated_mlp_adjoint(layer.mlp_normed.rows(n), model.mlp(at), layer.gate.rows(n),
                            layer.up.rows(n), dx, dmlp, Model<T>::mlp_in(at, gradient), call);
    norm(at.mlp_norm, layer.middle.rows(n), dmlp, dx);

    const View lead = layer.lead.rows(n), dlead = d.lead.zero_rows(n), dmixed = inner();
    dense(at.out, layer.mixed.rows(n), dx, dmixed);
    // dattended uses the memory of d.features, which is not needed yet.
    const View dattended = d.features.zero_rows(n).middle_cols(0, c);
    mhla::gated_rms_norm_adjoint(layer.attended.rows(n), at.head_norm.numbers(p), kNormEps,
                                 lead.middle_cols(3 * c, c), dmixed, dattended,
                                 at.head_norm.numbers(gradient), dlead.middle_cols(3 * c, c), call);
    const View dturned = d.turned.zero_rows(n);
    attention.backward(layer.turned.rows(n), lead.middle_cols(2 * c, c), model.mixing(l), dattended,
                       dturned, dlead.middle_cols(2 * c, c), mixing_at(at.mixing, gradient));
    const View qk = lead.middle_cols(0, 2 * c), dqk = dlead.middle_cols(0, 2 * c);
    const auto angles = model.angles().rows(0, n);
    if (s.attention == Attention::kSoftmax) {
      mhla::rotary_adjoint(dturned, angles, 2 * s.heads, dqk);
    } else {
      const View dfeatures = d.features.zero_rows(n);
      mhla::rotary_adjoint(dturned, angles, 2 * s.heads, dfeatures);
      mhla::map_heads_adjoint(qk, mhla::Relu{}, 2 * s.heads, layer.features.rows(n), dfeatures, dqk,
                              {}, call);
    }
    const View dlayer = inner();
    dense(at.lead, layer.normed.rows(n), dlead, dlayer);
    norm(at.norm, layer.input.rows(n), dlayer, dx);
  }
  const View dembedding = layout.embedding.matrix(gradient);
  for (Index t = 0; t < n; ++t) {
    detail::add_rows(dx.middle_rows(t, 1),
                     dembedding.middle_rows(bytes[static_cast<std::size_t>(t)], 1));
  }
}

}  // namespace write_text

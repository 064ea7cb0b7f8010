#pragma once

/// \file
/// A model token by token. The state of a layer depends on the attention:
///
///     MHLA      a StreamingState of the library per head: the same size at any position
///     linear    the sum S of k v^T per head [D,E]: the same size at any position
///     softmax   a cache of all keys and values: 2*C numbers per position
///
/// Products use packed weights, and have the bits of products of the whole sequence.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <map>
#include <span>
#include <utility>
#include <variant>
#include <vector>

#include "model.hpp"

namespace write_text {

/// Products of a model for few rows, with packed parameters.
template <class T>
class PackedProducts {
  using View = mhla::MatrixView<T>;

 public:
  explicit PackedProducts(const Model<T>& model) : model_(model) {
    const Layout& layout = model.layout();
    pack(layout.head);
    for (const LayerPlaces& at : layout.layers) {
      for (const ParameterSlice& place : {at.lead, at.out, at.gate, at.up, at.down}) pack(place);
    }
  }

  void dense(const ParameterSlice& weight, View x, View y) const {
    mhla::dense(x, packed(weight), y);
  }
  void mlp(const LayerPlaces& p, View x, View gate, View up, View hidden, View y) const {
    mhla::gated_mlp(x, mhla::PackedGatedMlp<T>{packed(p.gate), packed(p.up), packed(p.down)}, gate,
                    up, hidden, y);
  }

 private:
  struct Packed {
    std::vector<std::byte> memory;
    mhla::PackedDense<T> dense;

    explicit Packed(mhla::MatrixView<const T> weight)
        : memory(mhla::packed_dense_bytes<T>(weight.cols, weight.rows)), dense(memory, {weight}) {}
  };
  void pack(const ParameterSlice& place) {
    packed_.try_emplace(place.begin, place.matrix(model_.parameters()));
  }
  const mhla::PackedDense<T>& packed(const ParameterSlice& place) const {
    return packed_.at(place.begin).dense;
  }

  const Model<T>& model_;
  std::map<Index, Packed> packed_;  // key: index of the first parameter
};

/// State of the softmax attention of a layer.
template <class T>
class KeyValueCache {
 public:
  explicit KeyValueCache(const Settings& s)
      : settings_(s),
        keys_(static_cast<std::size_t>(s.heads), mhla::Matrix<T>(s.context, s.width())),
        values_(keys_),
        scores_(s.context) {}

  /// Appends one token; q and k are side by side in qk.
  void append(const T* qk, const T* v, T* out) {
    const Index d = settings_.width();
    const T scale = static_cast<T>(1 / std::sqrt(static_cast<double>(d)));
    for (Index h = 0; h < settings_.heads; ++h) {
      auto& keys = keys_[static_cast<std::size_t>(h)];
      auto& values = values_[static_cast<std::size_t>(h)];
      const auto head = [&](const T* row) { return Eigen::Map<const Row>(row + h * d, d); };
      keys.row(seen_) = head(qk + settings_.dim);
      values.row(seen_) = head(v);
      auto scores = scores_.head(seen_ + 1);
      scores.noalias() = keys.topRows(seen_ + 1) * (scale * head(qk)).transpose();
      scores = (scores.array() - scores.maxCoeff()).exp();
      Eigen::Map<Row>(out + h * d, d).noalias() =
          scores.transpose() * values.topRows(seen_ + 1) / scores.sum();
    }
    ++seen_;
  }
  std::size_t bytes() const {
    return static_cast<std::size_t>(2 * settings_.dim * seen_) * sizeof(T);
  }

 private:
  using Row = Eigen::Matrix<T, 1, Eigen::Dynamic>;

  Settings settings_;
  std::vector<mhla::Matrix<T>> keys_, values_;  // [H] of [N,D]
  Eigen::Matrix<T, Eigen::Dynamic, 1> scores_;
  Index seen_ = 0;
};

/// State of the linear attention of a layer.
template <class T>
class LinearSums {
 public:
  explicit LinearSums(const Settings& s)
      : settings_(s),
        sums_(static_cast<std::size_t>(s.heads), mhla::Matrix<T>::Zero(s.width(), s.width())) {}

  void append(const T* qk, const T* v, T* out) {
    const Index d = settings_.width();
    const T scale = static_cast<T>(1 / std::sqrt(static_cast<double>(d)));
    for (Index h = 0; h < settings_.heads; ++h) {
      auto& sum = sums_[static_cast<std::size_t>(h)];
      const auto head = [&](const T* row) { return Eigen::Map<const Row>(row + h * d, d); };
      sum.noalias() += head(qk + settings_.dim).transpose() * head(v);
      Eigen::Map<Row>(out + h * d, d).noalias() = scale * head(qk) * sum;
    }
  }
  std::size_t bytes() const {
    return static_cast<std::size_t>(settings_.dim * settings_.width()) * sizeof(T);
  }

 private:
  using Row = Eigen::Matrix<T, 1, Eigen::Dynamic>;

  Settings settings_;
  std::vector<mhla::Matrix<T>> sums_;  // [H] of [D,E]
};

/// State of the MHLA of a layer.
/// \tparam Mixing  MixingMatrix or DecayMixing
template <class T, class Mixing = mhla::MixingMatrix<T>>
class MhlaStates {
 public:
  MhlaStates(const Settings& s, Mixing mixing)
      : settings_(s),
        stream_({.width = s.width(), .values = s.width(), .block_length = s.block},
                std::move(mixing), causal_operator(s)),
        heads_(static_cast<std::size_t>(s.heads), stream_.start()),
        workspace_(mhla::append_workspace_bytes(stream_)) {}

  void append(mhla::MatrixView<T> qk, mhla::MatrixView<T> v, mhla::MatrixView<T> out) {
    mhla::append(stream_, std::span(heads_), head_inputs(qk, v, settings_),
                 split_heads(out, settings_), {.workspace = workspace_});
  }
  std::size_t bytes() const { return heads_.size() * stream_.state_bytes(); }

 private:
  Settings settings_;
  mhla::Streaming<T, CausalOperator, Mixing> stream_;
  std::vector<mhla::StreamingState<T>> heads_;  // [H]
  std::vector<std::byte> workspace_;
};

/// Reads a sequence a few bytes at a time. The model must outlive it, unchanged.
template <class T>
class Decoder {
 public:
  explicit Decoder(const Model<T>& model)
      : model_(model), products_(model), activations_(model.settings(), model.settings().block) {
    const Settings& s = model.settings();
    for (std::size_t l = 0; l < model.layout().layers.size(); ++l) {
      if (s.attention == Attention::kSoftmax) layers_.emplace_back(KeyValueCache<T>(s));
      if (s.attention == Attention::kLinear) layers_.emplace_back(LinearSums<T>(s));
      if (s.attention == Attention::kMhla) {
        layers_.emplace_back(MhlaStates<T>(s, mhla::MixingMatrix<T>(model.mixing(l))));
      }
    }
  }

  /// Reads the next bytes, at most a block, and returns the logits after each byte [n,256], valid
  /// until the next call.
  mhla::MatrixView<const T> append(Bytes bytes) {
    const auto attend = [this](std::size_t layer, mhla::MatrixView<T> qk, mhla::MatrixView<T> v,
                               mhla::MatrixView<T> out) {
      std::visit([&](auto& state) { read(state, qk, v, out); }, layers_[layer]);
    };
    forward(model_, products_, bytes, position_, activations_, attend);
    position_ += std::ssize(bytes);
    return activations_.logits.rows(std::ssize(bytes));
  }

  Index position() const { return position_; }
  /// Bytes of the states of all layers.
  std::size_t state_bytes() const {
    std::size_t sum = 0;
    for (const auto& layer : layers_) {
      sum += std::visit([](const auto& state) { return state.bytes(); }, layer);
    }
    return sum;
  }

 private:
  using View = mhla::MatrixView<T>;

  static void read(MhlaStates<T>& state, View qk, View v, View out) { state.append(qk, v, out); }
  static void read(auto& state, View qk, View v, View out) {
    for (Index t = 0; t < qk.rows; ++t) state.append(qk.row(t), v.row(t), out.row(t));
  }

  const Model<T>& model_;
  PackedProducts<T> products_;
  Activations<T> activations_;
  std::vector<std::variant<KeyValueCache<T>, LinearSums<T>, MhlaStates<T>>> layers_;
  Index position_ = 0;
};

}  // namespace write_text

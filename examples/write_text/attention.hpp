#pragma once

/// \file
/// The three causal attentions of the example as one pair of functions, over one sequence.
///
/// Queries and keys have their rotary embedding, side by side, [N,2C]. Linear attention and MHLA
/// have no feature map here, because relu precedes the embedding. Like the released language layer
/// they have no normaliser: a norm of every head follows.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <mhla/mhla.hpp>
#include <vector>

#include "settings.hpp"

namespace write_text {

using CausalOperator = mhla::Operator<mhla::Identity, mhla::Identity, mhla::NoNormalizer>;

inline CausalOperator causal_operator(const Settings& s) {
  return {{}, {}, {}, 1 / std::sqrt(static_cast<double>(s.width()))};
}

/// Rows [N, C] as heads [1, N, H, D].
template <class T>
mhla::TensorView<T> split_heads(mhla::MatrixView<T> x, const Settings& s) {
  return {
      x.data, {1, x.rows, s.heads, s.width()}, {x.rows * x.row_stride, x.row_stride, s.width(), 1}};
}
/// Queries and keys, [N,2C], and values, [N,C], as inputs of a form.
template <class T>
mhla::BatchInputs<T> head_inputs(mhla::MatrixView<T> qk, mhla::MatrixView<T> v, const Settings& s) {
  return {.q = split_heads<const T>(qk.middle_cols(0, s.dim), s),
          .k = split_heads<const T>(qk.middle_cols(s.dim, s.dim), s),
          .v = split_heads<const T>(v, s)};
}

/// Attention over a whole sequence, for one worker.
template <class T>
class CausalAttention {
  using Mixing = mhla::MixingView<const T>;
  using View = mhla::MatrixView<T>;

 public:
  explicit CausalAttention(const Settings& settings)
      : settings_(settings), operator_(causal_operator(settings)) {}

  /// \param qk [N,2C], v [N,C]; mixing [M,M], read by MHLA alone
  /// \param out  [N,C], overwritten
  void forward(View qk, View v, Mixing mixing, View out) {
    const auto in = head_inputs(qk, v, settings_);
    const auto o = split_heads(out, settings_);
    switch (settings_.attention) {
      case Attention::kSoftmax:
        return mhla::softmax_causal(in, o, {}, lend(mhla::softmax_workspace_bytes(in)));
      case Attention::kLinear:
        return mhla::linear_causal(in, operator_, o,
                                   lend(mhla::linear_causal_workspace_bytes(in, operator_)));
      case Attention::kMhla:
        return mhla::causal(in, blocks(), mixing, operator_, o,
                            lend(mhla::causal_workspace_bytes(in, blocks(), operator_)));
    }
  }

  /// Adds to the gradients dqk, dv and, for MHLA, dmixing.
  void backward(View qk, View v, Mixing mixing, View dout, View dqk, View dv,
                mhla::MixingView<T> dmixing) {
    const auto in = head_inputs(qk, v, settings_);
    const auto d = split_heads<const T>(dout, settings_);
    const Index c = settings_.dim;
    const mhla::BatchGradients<T> gradients{.q = split_heads(dqk.middle_cols(0, c), settings_),
                                            .k = split_heads(dqk.middle_cols(c, c), settings_),
                                            .v = split_heads(dv, settings_)};
    switch (settings_.attention) {
      case Attention::kSoftmax:
        return mhla::softmax_causal_gradient(in, d, gradients, {},
                                             lend(mhla::softmax_gradient_workspace_bytes(in)));
      case Attention::kLinear:
        return mhla::linear_causal_gradient(
            in, operator_, d, gradients, {},
            lend(mhla::linear_causal_gradient_workspace_bytes(in, operator_)));
      case Attention::kMhla:
        return mhla::causal_gradient(
            in, blocks(), mixing, operator_, d, gradients, {.mixing = dmixing},
            lend(mhla::causal_gradient_workspace_bytes(in, blocks(), mixing, operator_)));
    }
  }

 private:
  mhla::ContiguousBlocks blocks() const { return {settings_.block}; }
  mhla::Call lend(std::size_t bytes) {
    if (workspace_.size() < bytes) workspace_.resize(bytes);
    return {.workspace = workspace_};
  }

  Settings settings_;
  CausalOperator operator_;
  std::vector<std::byte> workspace_;
};

}  // namespace write_text

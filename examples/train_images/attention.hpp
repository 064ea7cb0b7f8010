#pragma once

/// \file
/// The three attentions of the example behind one pair of functions, on packed activations.
///
/// qkv holds queries, keys and values of all heads side by side, [B*N, 3*C]; a head is a strided
/// view of it, so nothing is copied.

#include <algorithm>
#include <cstddef>
#include <mhla/mhla.hpp>
#include <vector>

#include "settings.hpp"

namespace train_images {

/// Attention over images of N tokens, for one worker.
template <class T>
class ImageAttention {
  using Mixing = mhla::MixingView<const T>;

 public:
  /// \param images  largest number of images of a call
  ImageAttention(const Settings& settings, Index images)
      : attention_(settings.attention),
        dim_(settings.dim),
        heads_(settings.heads),
        blocks_(token_blocks(settings.blocks)) {
    const mhla::BatchInputs<T> in = inputs({nullptr, images * kTokens, 3 * dim_, 3 * dim_});
    workspace_.resize(std::max(forward_bytes(in), backward_bytes(in)));
  }

  /// \param qkv     [B*N,3C]
  /// \param mixing  [M,M], read by MHLA only
  /// \param out     [B*N,C], overwritten
  void forward(mhla::MatrixView<const T> qkv, Mixing mixing, mhla::MatrixView<T> out) {
    const mhla::BatchInputs<T> in = inputs(qkv);
    const mhla::TensorView<T> o = heads(out, 0);
    const mhla::Call call{.workspace = workspace_};
    switch (attention_) {
      case Attention::kSoftmax:
        return mhla::softmax_bidirectional(in, o, {}, call);
      case Attention::kLinear:
        return mhla::linear_bidirectional(in, operator_, o, call);
      case Attention::kMhla:
        return mhla::bidirectional(in, blocks_, mixing, operator_, o, call);
    }
  }

  /// \param dout     [B*N,C]
  /// \param dqkv     [B*N,3C], added to
  /// \param dmixing  [M,M], added to; MHLA only
  void backward(mhla::MatrixView<const T> qkv, Mixing mixing, mhla::MatrixView<const T> dout,
                mhla::MatrixView<T> dqkv, mhla::MixingView<T> dmixing) {
    const mhla::BatchInputs<T> in = inputs(qkv);
    const mhla::TensorView<const T> d = heads(dout, 0);
    const mhla::BatchGradients<T> gradients{
        .q = heads(dqkv, 0), .k = heads(dqkv, 1), .v = heads(dqkv, 2)};
    const mhla::Call call{.workspace = workspace_};
    switch (attention_) {
      case Attention::kSoftmax:
        return mhla::softmax_bidirectional_gradient(in, d, gradients, {}, call);
      case Attention::kLinear:
        return mhla::linear_bidirectional_gradient(in, operator_, d, gradients, {}, call);
      case Attention::kMhla:
        return mhla::bidirectional_gradient(in, blocks_, mixing, operator_, d, gradients,
                                            {.mixing = dmixing}, call);
    }
  }

 private:
  /// Columns [part*C, (part+1)*C) of B*N rows as [B, N, H, C/H].
  template <class V>
  mhla::TensorView<V> heads(mhla::MatrixView<V> rows, Index part) const {
    V* const data = rows.data == nullptr ? nullptr : rows.data + part * dim_;
    const Index width = dim_ / heads_;
    return {data,
            {rows.rows / kTokens, kTokens, heads_, width},
            {kTokens * rows.row_stride, rows.row_stride, width, 1}};
  }
  mhla::BatchInputs<T> inputs(mhla::MatrixView<const T> qkv) const {
    return mhla::inputs(heads(qkv, 0), heads(qkv, 1), heads(qkv, 2));
  }

  std::size_t forward_bytes(const mhla::BatchInputs<T>& in) const {
    switch (attention_) {
      case Attention::kSoftmax:
        return mhla::softmax_workspace_bytes(in);
      case Attention::kLinear:
        return mhla::linear_bidirectional_workspace_bytes(in, operator_);
      default:
        return mhla::bidirectional_workspace_bytes(in, blocks_, operator_);
    }
  }
  std::size_t backward_bytes(const mhla::BatchInputs<T>& in) const {
    const mhla::MixingMatrix<T> mixing(mhla::Band(blocks_.blocks(), blocks_.blocks()));
    switch (attention_) {
      case Attention::kSoftmax:
        return mhla::softmax_gradient_workspace_bytes(in);
      case Attention::kLinear:
        return mhla::linear_bidirectional_gradient_workspace_bytes(in, operator_);
      default:
        return mhla::bidirectional_gradient_workspace_bytes(in, blocks_, mixing, operator_);
    }
  }

  Attention attention_;
  Index dim_;
  Index heads_;
  mhla::Grid blocks_;
  // The paper's operator: relu and the sum of a token's own weights. The small eps keeps the sum
  // of a query whose features are all 0 away from 0.
  mhla::Operator<> operator_{mhla::Relu{}, mhla::Relu{}, mhla::KeySum{1e-6}};
  std::vector<std::byte> workspace_;
};

}  // namespace train_images

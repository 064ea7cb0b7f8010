#pragma once

/// \file
/// The three attentions of the example behind one pair of functions, on packed activations.
///
/// qkv holds queries, keys and values of all heads side by side, [B*N, 3*C]; a head is a strided
/// view of it, so nothing is copied.

#include <algorithm>
#include <cstddef>
#include <mhla/gradient/batched.hpp>
#include <mhla/mhla.hpp>
#include <span>
#include <vector>

#include "settings.hpp"

namespace train_images {

/// [M,M]; without MHLA a [1,1] matrix that nothing reads.
template <class T>
mhla::MixingMatrix<T> zero_mixing(const Settings& settings) {
  const Index m = settings.attention == Attention::kMhla ? settings.blocks : 1;
  return mhla::MixingMatrix<T>(mhla::Matrix<T>::Zero(m, m));
}

/// Attention over images of N tokens, for one worker.
template <class T>
class ImageAttention {
 public:
  /// \param images  largest number of images of a call
  ImageAttention(const Settings& settings, Index images)
      : attention_(settings.attention),
        dim_(settings.dim),
        heads_(settings.heads),
        blocks_(token_blocks(settings.blocks)),
        dmixing_(zero_mixing<T>(settings)) {
    const mhla::BatchInputs<T> in = inputs({nullptr, images * kTokens, 3 * dim_, 3 * dim_});
    workspace_.resize(std::max(forward_bytes(in), backward_bytes(in)));
  }

  /// \param qkv     [B*N,3C]
  /// \param mixing  [M,M], read by MHLA only
  /// \param out     [B*N,C], overwritten
  void forward(mhla::MatrixView<const T> qkv, const mhla::MixingMatrix<T>& mixing,
               mhla::MatrixView<T> out) {
    const mhla::BatchInputs<T> in = inputs(qkv);
    const mhla::TensorView<T> o = heads(out, 0);
    switch (attention_) {
      case Attention::kSoftmax:
        return mhla::softmax_bidirectional(in, o, {}, workspace_);
      case Attention::kLinear:
        return mhla::linear_bidirectional(in, operator_, o, workspace_);
      case Attention::kMhla:
        return mhla::bidirectional(in, blocks_, blocks_, mixing, operator_, o, workspace_);
    }
  }

  /// \param dout     [B*N,C]
  /// \param dqkv     [B*N,3C], added to
  /// \param dmixing  the [M,M] gradient of mixing row by row, added to; MHLA only
  void backward(mhla::MatrixView<const T> qkv, const mhla::MixingMatrix<T>& mixing,
                mhla::MatrixView<const T> dout, mhla::MatrixView<T> dqkv, std::span<T> dmixing) {
    const mhla::BatchInputs<T> in = inputs(qkv);
    const mhla::TensorView<const T> d = heads(dout, 0);
    const mhla::BatchGradients<T> gradients{
        .q = heads(dqkv, 0), .k = heads(dqkv, 1), .v = heads(dqkv, 2)};
    switch (attention_) {
      case Attention::kSoftmax:
        return mhla::softmax_bidirectional_gradient(in, d, gradients, {}, workspace_);
      case Attention::kLinear:
        return mhla::linear_bidirectional_gradient(in, operator_, d, gradients, {}, workspace_);
      case Attention::kMhla:
        break;
    }
    dmixing_.for_each([](T& c) { c = 0; });
    const mhla::ParameterGradients<T> parameters{.mixing = &dmixing_};
    mhla::bidirectional_gradient(in, blocks_, blocks_, mixing, operator_, d, gradients, parameters,
                                 workspace_);
    auto sum = dmixing.begin();
    dmixing_.for_each([&](T& c) { *sum++ += c; });
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
    return {.q = heads(qkv, 0), .k = heads(qkv, 1), .v = heads(qkv, 2)};
  }

  std::size_t forward_bytes(const mhla::BatchInputs<T>& in) const {
    switch (attention_) {
      case Attention::kSoftmax:
        return mhla::softmax_workspace_bytes(in);
      case Attention::kLinear:
        return mhla::linear_bidirectional_workspace_bytes(in, operator_);
      default:
        return mhla::bidirectional_workspace_bytes(in, blocks_, blocks_, operator_);
    }
  }
  std::size_t backward_bytes(const mhla::BatchInputs<T>& in) const {
    switch (attention_) {
      case Attention::kSoftmax:
        return mhla::softmax_gradient_workspace_bytes(in);
      case Attention::kLinear:
        return mhla::linear_bidirectional_gradient_workspace_bytes(in, operator_);
      default:
        return mhla::bidirectional_gradient_workspace_bytes(in, blocks_, blocks_, dmixing_,
                                                            operator_);
    }
  }

  Attention attention_;
  Index dim_;
  Index heads_;
  mhla::Grid blocks_;
  // The paper's operator: relu and the sum of a token's own weights. The small eps keeps the sum
  // of a query whose features are all 0 away from 0.
  mhla::Operator<> operator_{mhla::Relu{}, mhla::Relu{}, mhla::KeySum{1e-6}};
  mhla::MixingMatrix<T> dmixing_;
  std::vector<std::byte> workspace_;
};

}  // namespace train_images

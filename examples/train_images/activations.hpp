#pragma once

/// \file
/// The memory of one worker: activations of a few images, their gradients, and scratch.

#include <algorithm>
#include <cstddef>
#include <mhla/layer/dense.hpp>
#include <mhla/layer/layer_norm.hpp>
#include <mhla/layer/mlp.hpp>
#include <vector>

#include "../support/buffer.hpp"
#include "attention.hpp"
#include "settings.hpp"

namespace train_images {

using examples::Buffer;

/// What the forward pass of a layer leaves for the backward pass; rows are tokens.
template <class T>
struct LayerActivations {
  LayerActivations(Index rows, Index c, Index mlp)
      : input(rows, c),
        norm1(rows, c),
        qkv(rows, 3 * c),
        attended(rows, c),
        middle(rows, c),
        norm2(rows, c),
        pre(rows, mlp),
        hidden(rows, mlp) {}

  Buffer<T> input, norm1, qkv, attended;  // of attention
  Buffer<T> middle, norm2, pre, hidden;   // of the MLP
};

template <class T>
struct Activations {
  /// \param images  largest number of images at a time
  Activations(const Settings& s, Index images);

  ImageAttention<T> attention;
  Buffer<T> tokens;  // [B*N, 4]
  std::vector<LayerActivations<T>> layers;
  Buffer<T> output, normed;  // of the last layer
  Buffer<T> pooled, logits;  // rows are images
  Buffer<T> dlogits, dpooled;
  Buffer<T> dx;      // of what the residual connections carry
  Buffer<T> dinner;  // of what the layers read from there
  Buffer<T> dqkv;
  std::vector<std::byte> workspace;  // of the layers
};

// ------------------------------------------------------------------------------------------------

template <class T>
Activations<T>::Activations(const Settings& s, Index images)
    : attention(s, images),
      tokens(images * kTokens, kPatchPixels),
      layers(static_cast<std::size_t>(s.depth),
             LayerActivations<T>(images * kTokens, s.dim, s.hidden())),
      output(images * kTokens, s.dim),
      normed(images * kTokens, s.dim),
      pooled(images, s.dim),
      logits(images, kClasses),
      dlogits(images, kClasses),
      dpooled(images, s.dim),
      dx(images * kTokens, s.dim),
      dinner(images * kTokens, s.dim),
      dqkv(images * kTokens, 3 * s.dim) {
  std::size_t bytes = 0;
  const auto dense = [&](Index rows, Index in, Index out) {
    bytes = std::max({bytes, mhla::dense_workspace_bytes<T>(in, out),
                      mhla::dense_adjoint_workspace_bytes<T>(rows, in, out)});
  };
  const Index n = images * kTokens, c = s.dim;
  for (const Index rows : {n, kTokens}) {  // chunks of rows depend on their number
    dense(rows, kPatchPixels, c);
    dense(rows, c, 3 * c);
    dense(rows, c, c);
    bytes = std::max({bytes, mhla::mlp_workspace_bytes<T>(c, s.hidden(), c),
                      mhla::mlp_adjoint_workspace_bytes<T>(rows, c, s.hidden(), c),
                      mhla::layer_norm_adjoint_workspace_bytes<T>(rows, c)});
  }
  dense(images, c, kClasses);
  workspace.resize(bytes);
}

}  // namespace train_images

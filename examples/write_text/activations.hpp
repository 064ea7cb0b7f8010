#pragma once

/// \file
/// The memory of one worker: activations of a sequence, or of some of its tokens, their gradients,
/// and scratch. Rows are tokens.

#include <algorithm>
#include <cstddef>
#include <mhla/layer/dense.hpp>
#include <mhla/layer/gated_mlp.hpp>
#include <mhla/layer/head_map.hpp>
#include <mhla/layer/rms_norm.hpp>
#include <vector>

#include "../support/buffer.hpp"
#include "settings.hpp"

namespace write_text {

using examples::Buffer;

/// Activations that the forward pass of a layer keeps for the backward pass.
template <class T>
struct LayerActivations {
  LayerActivations(Index rows, Index c, Index f)
      : input(rows, c),
        normed(rows, c),
        lead(rows, 4 * c),
        features(rows, 2 * c),
        turned(rows, 2 * c),
        attended(rows, c),
        mixed(rows, c),
        middle(rows, c),
        mlp_normed(rows, c),
        gate(rows, f),
        up(rows, f) {}

  Buffer<T> input, normed;
  Buffer<T> lead;              // queries, keys, values, gates
  Buffer<T> features, turned;  // queries and keys after relu, and after the rotary embedding
  Buffer<T> attended, mixed;   // heads, and these normed and gated
  Buffer<T> middle, mlp_normed, gate, up;
};

template <class T>
struct Activations {
  /// \param rows  most tokens per pass
  Activations(const Settings& s, Index rows);

  std::vector<LayerActivations<T>> layers;
  Buffer<T> output, normed, logits;
  Buffer<T> hidden;  // of the perceptrons
  std::vector<std::byte> workspace;
};

/// Gradients of activations, reused by all layers.
template <class T>
struct ActivationGradients {
  ActivationGradients(const Settings& s, Index rows);

  Buffer<T> logits;
  Buffer<T> x;      // gradient of the residual stream
  Buffer<T> inner;  // gradient of a layer's input
  Buffer<T> lead, turned, features;
  std::vector<std::byte> workspace;
};

// ------------------------------------------------------------------------------------------------

template <class T>
Activations<T>::Activations(const Settings& s, Index rows)
    : layers(static_cast<std::size_t>(s.depth), LayerActivations<T>(rows, s.dim, s.hidden())),
      output(rows, s.dim),
      normed(rows, s.dim),
      logits(rows, kBytes),
      hidden(rows, s.hidden()),
      workspace(std::max({mhla::dense_workspace_bytes<T>(s.dim, 4 * s.dim),
                          mhla::dense_workspace_bytes<T>(s.dim, kBytes),
                          mhla::gated_mlp_workspace_bytes<T>(s.dim, s.hidden(), s.dim)})) {}

template <class T>
ActivationGradients<T>::ActivationGradients(const Settings& s, Index rows)
    : logits(rows, kBytes),
      x(rows, s.dim),
      inner(rows, s.dim),
      lead(rows, 4 * s.dim),
      turned(rows, 2 * s.dim),
      features(rows, 2 * s.dim),
      workspace(
          std::max({mhla::dense_adjoint_workspace_bytes<T>(rows, s.dim, 4 * s.dim),
                    mhla::dense_adjoint_workspace_bytes<T>(rows, s.dim, s.dim),
                    mhla::dense_adjoint_workspace_bytes<T>(rows, s.dim, kBytes),
                    mhla::gated_mlp_adjoint_workspace_bytes<T>(rows, s.dim, s.hidden(), s.dim),
                    mhla::rms_norm_adjoint_workspace_bytes<T>(rows, s.dim),
                    mhla::map_heads_adjoint_workspace_bytes<T>(rows, s.width(), 0),
                    mhla::gated_rms_norm_adjoint_workspace_bytes<T>(rows, s.width())})) {}

}  // namespace write_text

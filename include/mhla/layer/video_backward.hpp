#pragma once

/// \file
/// The backward part of the video layer (video_body.hpp).

#include <algorithm>
#include <span>

#include "mhla/core/arch.hpp"
#include "mhla/core/matrix.hpp"
#include "mhla/core/workspace.hpp"
#include "mhla/layer/dense.hpp"
#include "mhla/layer/depthwise_convolution.hpp"
#include "mhla/layer/head_map.hpp"
#include "mhla/layer/rms_norm.hpp"
#include "mhla/layer/rotary.hpp"
#include "mhla/layer/video_body.hpp"

namespace mhla {
inline namespace MHLA_TARGET {
namespace detail {

template <Accumulator T>
VideoBody<T>::BackwardScratch::BackwardScratch(Arena& arena, const VideoBody& body, LayerRows sizes,
                                               const ExecutorRef& executor) {
  const Index c = body.options_.channels;
  const auto take = [&] { return take_matrix<T>(kName, arena, sizes.rows, c); };
  dmixed = take(), dattention = take(), dv = take();
  if (body.options_.gate) dgate = take();
  dq_rotated = take(), dk_rotated = take();
  if (!body.options_.softmax) dq_features = take(), dk_features = take();
  if (body.options_.qk_norm) normed = take(), dnormed = take();
  dprojected = take();
  Arena counting;
  const BatchInputs<T> in = body.inputs(Tape(counting, body, sizes));
  std::size_t bytes = std::max({dense_adjoint_workspace_bytes<T>(sizes.rows, c, c),
                                body.attention().gradient_workspace_bytes(in, executor),
                                rms_norm_adjoint_workspace_bytes<T>(sizes.rows, c),
                                gated_rms_norm_adjoint_workspace_bytes<T>(sizes.rows, body.width()),
                                map_heads_adjoint_workspace_bytes<T>(sizes.rows, c, 0)});
  if (body.options_.lepe) {
    bytes = std::max(
        bytes, depthwise_convolution_adjoint_workspace_bytes<T>(sizes.rows, c, body.kernel()));
  }
  rest = take_bytes(kName, arena, bytes);
}

template <Accumulator T>
void VideoBody<T>::backward(std::span<const T> parameters, MatrixView<const T> x, const Tape& tape,
                            MatrixView<const T> dy, MatrixView<T> dx, std::span<T> gradients,
                            const BackwardScratch& scratch, const ExecutorRef& executor) const {
  const Call call{.workspace = scratch.rest, .executor = executor};
  const VideoSlices& at = tensors_;
  const MatrixView<T> added_to[] = {scratch.dmixed,      scratch.dattention, scratch.dv,
                                    scratch.dgate,       scratch.dq_rotated, scratch.dk_rotated,
                                    scratch.dq_features, scratch.dk_features};
  for (const MatrixView<T>& sum : added_to) clear(sum, executor);
  dense_adjoint(tape.mixed, at.o(parameters), dy, scratch.dmixed, at.o(gradients), call);
  if (options_.lepe) {
    depthwise_convolution_adjoint(tape.v, at.lepe(parameters), grid(), scratch.dmixed, scratch.dv,
                                  at.lepe(gradients), call);
  }
  if (options_.gate) {
    gated_rms_norm_adjoint(tape.attention, at.head_gain.numbers(parameters), options_.norm_eps,
                           tape.gate, scratch.dmixed, scratch.dattention,
                           at.head_gain.numbers(gradients), scratch.dgate, call);
    dense_adjoint(x, at.gate(parameters), scratch.dgate, dx, at.gate(gradients), call);
  } else {
    rms_norm_adjoint(tape.attention, at.head_gain.numbers(parameters), options_.norm_eps,
                     scratch.dmixed, scratch.dattention, at.head_gain.numbers(gradients), call);
  }
  BatchGradients<T> sums_of{
      .q = split(scratch.dq_rotated), .k = split(scratch.dk_rotated), .v = split(scratch.dv)};
  if (sums()) {
    sums_of.normalizer_q = split(scratch.dq_features);
    sums_of.normalizer_k = split(scratch.dk_features);
  }
  attention().add_gradients(
      inputs(tape), mixing_at(at.mixing, parameters), split(scratch.dattention), sums_of,
      mixing_at(at.mixing, gradients),
      {.workspace = scratch.rest, .executor = executor, .kept = tape.summaries});
  dense_adjoint(x, at.v(parameters), scratch.dv, dx, at.v(gradients), call);
  const auto add_rotated = [&](MatrixView<T> projected, const WeightSlices<DenseView>& weights,
                               const ParameterSlice& gain_place, MatrixView<T> drotated,
                               MatrixView<T> dfeatures) {
    const std::span<const T> gain = gain_place.numbers(parameters);
    const MatrixView<const T> normed = norm(projected, gain, scratch.normed, executor);
    const MatrixView<T> dnormed = options_.qk_norm ? scratch.dnormed : scratch.dprojected;
    clear(dnormed, executor);
    if (options_.softmax) {
      rotary_adjoint(drotated, angles_, options_.heads, dnormed, executor);
    } else {
      rotary_adjoint(drotated, angles_, options_.heads, dfeatures, executor);
      // The gradient of Relu reads only its input, so normed can replace the features.
      map_heads_adjoint(normed, relu(), 1, normed, dfeatures, dnormed, {}, call);
    }
    if (options_.qk_norm) {
      clear(scratch.dprojected, executor);
      rms_norm_adjoint(projected, gain, options_.norm_eps, dnormed, scratch.dprojected,
                       gain_place.numbers(gradients), call);
    }
    dense_adjoint(x, weights(parameters), scratch.dprojected, dx, weights(gradients), call);
  };
  add_rotated(tape.q, at.q, at.q_gain, scratch.dq_rotated, scratch.dq_features);
  add_rotated(tape.k, at.k, at.k_gain, scratch.dk_rotated, scratch.dk_features);
}

}  // namespace detail
}  // namespace MHLA_TARGET
}  // namespace mhla

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
VideoBody<T>::BackwardRoom::BackwardRoom(Arena& arena, const VideoBody& body, LayerRows sizes,
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
                            const BackwardRoom& room, const ExecutorRef& executor) const {
  const Call call{.workspace = room.rest, .executor = executor};
  const VideoPlaces& at = tensors_;
  const MatrixView<T> added_to[] = {room.dmixed,      room.dattention, room.dv,
                                    room.dgate,       room.dq_rotated, room.dk_rotated,
                                    room.dq_features, room.dk_features};
  for (const MatrixView<T>& sum : added_to) clear(sum, executor);
  dense_adjoint(tape.mixed, at.o(parameters), dy, room.dmixed, at.o(gradients), call);
  if (options_.lepe) {
    depthwise_convolution_adjoint(tape.v, at.lepe(parameters), grid(), room.dmixed, room.dv,
                                  at.lepe(gradients), call);
  }
  if (options_.gate) {
    gated_rms_norm_adjoint(tape.attention, at.head_gain.numbers(parameters), options_.norm_eps,
                           tape.gate, room.dmixed, room.dattention, at.head_gain.numbers(gradients),
                           room.dgate, call);
    dense_adjoint(x, at.gate(parameters), room.dgate, dx, at.gate(gradients), call);
  } else {
    rms_norm_adjoint(tape.attention, at.head_gain.numbers(parameters), options_.norm_eps,
                     room.dmixed, room.dattention, at.head_gain.numbers(gradients), call);
  }
  BatchGradients<T> sums_of{
      .q = split(room.dq_rotated), .k = split(room.dk_rotated), .v = split(room.dv)};
  if (sums()) {
    sums_of.normalizer_q = split(room.dq_features);
    sums_of.normalizer_k = split(room.dk_features);
  }
  attention().add_gradients(inputs(tape), mixing_at(at.mixing, parameters), split(room.dattention),
                            sums_of, mixing_at(at.mixing, gradients),
                            {.workspace = room.rest, .executor = executor, .kept = tape.summaries});
  dense_adjoint(x, at.v(parameters), room.dv, dx, at.v(gradients), call);
  const auto add_rotated = [&](MatrixView<T> projected, const WeightPlaces<DenseView>& weights,
                               const ParameterPlace& gain_place, MatrixView<T> drotated,
                               MatrixView<T> dfeatures) {
    const std::span<const T> gain = gain_place.numbers(parameters);
    const MatrixView<const T> normed = norm(projected, gain, room.normed, executor);
    const MatrixView<T> dnormed = options_.qk_norm ? room.dnormed : room.dprojected;
    clear(dnormed, executor);
    if (options_.softmax) {
      rotary_adjoint(drotated, angles_, options_.heads, dnormed, executor);
    } else {
      rotary_adjoint(drotated, angles_, options_.heads, dfeatures, executor);
      // Relu reads its input alone: normed stands for the features, too.
      map_heads_adjoint(normed, relu(), 1, normed, dfeatures, dnormed, {}, call);
    }
    if (options_.qk_norm) {
      clear(room.dprojected, executor);
      rms_norm_adjoint(projected, gain, options_.norm_eps, dnormed, room.dprojected,
                       gain_place.numbers(gradients), call);
    }
    dense_adjoint(x, weights(parameters), room.dprojected, dx, weights(gradients), call);
  };
  add_rotated(tape.q, at.q, at.q_gain, room.dq_rotated, room.dq_features);
  add_rotated(tape.k, at.k, at.k_gain, room.dk_rotated, room.dk_features);
}

}  // namespace detail
}  // namespace MHLA_TARGET
}  // namespace mhla

#pragma once

/// \file
/// Parameters and forward part of the video layer (video_layer.hpp).

#include <algorithm>
#include <span>
#include <string>

#include "mhla/core/arch.hpp"
#include "mhla/core/matrix.hpp"
#include "mhla/core/tensor.hpp"
#include "mhla/core/workspace.hpp"
#include "mhla/layer/dense.hpp"
#include "mhla/layer/depthwise_convolution.hpp"
#include "mhla/layer/grid_attention.hpp"
#include "mhla/layer/head_map.hpp"
#include "mhla/layer/layer.hpp"
#include "mhla/layer/rms_norm.hpp"
#include "mhla/layer/rotary.hpp"
#include "mhla/layer/video_parameters.hpp"
#include "mhla/policy/grid_partition.hpp"

namespace mhla {
inline namespace MHLA_TARGET {
namespace detail {

template <Accumulator T>
class VideoBody {
 public:
  using Scalar = T;
  using Options = VideoOptions;
  static constexpr const char* kName = "VideoLayer";
  static constexpr const char* kBackwardName = "VideoLayer::backward";
  static constexpr const char* kOutput = "o.weight";

  /// Values that backward reads, all [rows, C].
  struct Tape {
    MatrixView<T> q, k, v, gate;           // projections
    MatrixView<T> q_features, k_features;  // f(q), f(k), if the normaliser sums weights
    MatrixView<T> q_rotated, k_rotated;
    MatrixView<T> attention, mixed;  // a, m
    Workspace summaries;

    Tape(Arena& arena, const VideoBody& body, LayerRows sizes);
  };
  struct ForwardScratch {
    MatrixView<T> normed, features, lepe;  // [rows, C]
    Workspace rest;
    ForwardScratch(Arena& arena, const VideoBody& body, LayerRows sizes,
                   const ExecutorRef& executor);
  };
  struct BackwardScratch {
    MatrixView<T> dmixed, dattention, dgate, dv;  // [rows, C]
    MatrixView<T> dq_rotated, dk_rotated, dq_features, dk_features;
    MatrixView<T> normed, dnormed, dprojected;  // of q, then of k
    Workspace rest;
    BackwardScratch(Arena& arena, const VideoBody& body, LayerRows sizes,
                    const ExecutorRef& executor);
  };

  explicit VideoBody(const VideoOptions& options)
      : options_(checked_video_options(options)),
        blocks_(options.grid, video_block(options)),
        table_(video_table(options)),
        tensors_(table_) {}
  void prepare() { angles_ = RotaryTable<T>::grid(options_.grid, width(), options_.rotary_base); }

  const VideoOptions& options() const { return options_; }
  const ParameterTable& table() const { return table_; }
  Index tokens() const { return blocks_.tokens(); }  ///< N

  /// Computes everything up to `mixed`.
  void record(std::span<const T> parameters, MatrixView<const T> x, const Tape& tape,
              const ForwardScratch& scratch, const ExecutorRef& executor) const;
  void write(std::span<const T> parameters, const Tape& tape, MatrixView<T> y,
             const ForwardScratch& scratch, const ExecutorRef& executor) const {
    dense(tape.mixed, tensors_.o(parameters), y, {.workspace = scratch.rest, .executor = executor});
  }
  void backward(std::span<const T> parameters, MatrixView<const T> x, const Tape& tape,
                MatrixView<const T> dy, MatrixView<T> dx, std::span<T> gradients,
                const BackwardScratch& scratch, const ExecutorRef& executor) const;

 private:
  Index width() const { return options_.channels / options_.heads; }  // D
  bool sums() const { return !options_.softmax && options_.normalizer.sums() != WeightSums::kNone; }
  GridShape kernel() const { return {3, 3, 3}; }
  DepthwiseGrid grid() const { return {.tokens = options_.grid, .kernel = kernel()}; }
  Relu relu() const { return {options_.feature_eps}; }
  auto attention() const {
    using Op = Operator<Identity, Identity, AnyNormalizer>;
    return GridAttention<T, Op>{options_.softmax, blocks_, {{}, {}, options_.normalizer}};
  }
  template <class U>
  TensorView<U> split(const MatrixView<U>& x) const {
    return split_heads(x, x.rows / tokens(), options_.heads, width());
  }
  BatchInputs<T> inputs(const Tape& tape) const {
    return {.q = split(tape.q_rotated),
            .k = split(tape.k_rotated),
            .v = split(tape.v),
            .normalizer_q = split(tape.q_features),
            .normalizer_k = split(tape.k_features)};
  }
  /// Returns rms_norm(x), or x without the norm.
  MatrixView<const T> norm(MatrixView<T> x, std::span<const T> gain, MatrixView<T> normed,
                           const ExecutorRef& executor) const {
    if (!options_.qk_norm) return x;
    rms_norm(x, gain, options_.norm_eps, normed, executor);
    return normed;
  }
  /// Computes f(norm(x)) and its rotation. With softmax, rotates norm(x).
  void rotate(MatrixView<T> x, std::span<const T> gain, MatrixView<T> normed,
              MatrixView<T> features, MatrixView<T> rotated, const ExecutorRef& executor) const {
    const MatrixView<const T> from = norm(x, gain, normed, executor);
    if (!options_.softmax) map_heads(from, relu(), 1, features, executor);
    rotary(options_.softmax ? from : features, angles_, options_.heads, rotated, executor);
  }

  VideoOptions options_;
  Grid blocks_;
  ParameterTable table_;
  VideoSlices tensors_;
  RotaryTable<T> angles_;  // of every token
};

template <Accumulator T>
VideoBody<T>::Tape::Tape(Arena& arena, const VideoBody& body, LayerRows sizes) {
  const auto take = [&] {
    return take_matrix<T>(kName, arena, sizes.rows, body.options_.channels);
  };
  q = take(), k = take(), v = take();
  if (body.options_.gate) gate = take();
  if (body.sums()) q_features = take(), k_features = take();
  q_rotated = take(), k_rotated = take();
  attention = take(), mixed = take();
  summaries = take_bytes(kName, arena, body.attention().kept_bytes(body.inputs(*this)));
}

template <Accumulator T>
VideoBody<T>::ForwardScratch::ForwardScratch(Arena& arena, const VideoBody& body, LayerRows sizes,
                                             const ExecutorRef& executor) {
  const Index c = body.options_.channels;
  const auto take = [&] { return take_matrix<T>(kName, arena, sizes.rows, c); };
  if (body.options_.qk_norm) normed = take();
  if (!body.options_.softmax && !body.sums()) features = take();
  if (body.options_.lepe) lepe = take();
  Arena counting;
  const BatchInputs<T> in = body.inputs(Tape(counting, body, sizes));
  std::size_t bytes =
      std::max(dense_workspace_bytes<T>(c, c), body.attention().workspace_bytes(in, executor));
  if (body.options_.lepe) {
    bytes = std::max(bytes, depthwise_convolution_workspace_bytes<T>(c, body.kernel()));
  }
  rest = take_bytes(kName, arena, bytes);
}

template <Accumulator T>
void VideoBody<T>::record(std::span<const T> parameters, MatrixView<const T> x, const Tape& tape,
                          const ForwardScratch& scratch, const ExecutorRef& executor) const {
  const Call call{.workspace = scratch.rest, .executor = executor};
  const VideoSlices& at = tensors_;
  dense(x, at.q(parameters), tape.q, call);
  dense(x, at.k(parameters), tape.k, call);
  dense(x, at.v(parameters), tape.v, call);
  rotate(tape.q, at.q_gain.numbers(parameters), scratch.normed,
         sums() ? tape.q_features : scratch.features, tape.q_rotated, executor);
  rotate(tape.k, at.k_gain.numbers(parameters), scratch.normed,
         sums() ? tape.k_features : scratch.features, tape.k_rotated, executor);
  attention().run(inputs(tape), mixing_at(at.mixing, parameters), split(tape.attention),
                  {.workspace = scratch.rest, .executor = executor, .kept = tape.summaries});
  if (options_.gate) {
    dense(x, at.gate(parameters), tape.gate, call);
    gated_rms_norm(tape.attention, at.head_gain.numbers(parameters), options_.norm_eps, tape.gate,
                   tape.mixed, executor);
  } else {
    rms_norm(tape.attention, at.head_gain.numbers(parameters), options_.norm_eps, tape.mixed,
             executor);
  }
  if (options_.lepe) {
    depthwise_convolution(tape.v, at.lepe(parameters), grid(), scratch.lepe, call);
    add<T>(scratch.lepe, tape.mixed, executor);
  }
}

}  // namespace detail
}  // namespace MHLA_TARGET
}  // namespace mhla

#pragma once

/// \file
/// The attention layer of the authors' vision models: DiT (image generation) and DeiT (image
/// classification). For B images of N tokens and C channels in H heads of D:
///
///     n       = layer_norm(x)                                                       [B*N, C]
///     q, k, v = n Wqkv^T + b,   q, k = rms_norm(q), rms_norm(k)                     [B*N, C] each
///     heads   = MHLA(relu(q) + eps, relu(k) + eps, v) + convolution(v)              [B*N, C]
///     y       = heads Wo^T + bo                                                     [B*N, C]
///
/// The convolution is LePE, locally enhanced positional encoding: depthwise, over the image. With
/// VisionOptions::softmax, softmax attention of q, k and v replaces MHLA.
/// Cost: 8*N*C^2 flops for the projections, 4*N*C*D + 2*M^2*C*D for MHLA and 2*N*C*taps for LePE;
/// 5*N*C numbers are kept, 7*N*C with qk_norm, and M*C*(D+1) of summaries. Source:
/// arXiv:2601.07832, section 4.1, and the released layers.

#include <algorithm>
#include <array>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "mhla/core/arch.hpp"
#include "mhla/core/matrix.hpp"
#include "mhla/core/tensor.hpp"
#include "mhla/core/workspace.hpp"
#include "mhla/layer/dense.hpp"
#include "mhla/layer/depthwise_convolution.hpp"
#include "mhla/layer/grid_attention.hpp"
#include "mhla/layer/layer.hpp"
#include "mhla/layer/layer_norm.hpp"
#include "mhla/layer/rms_norm.hpp"
#include "mhla/layer/vision_parameters.hpp"
#include "mhla/policy/grid_partition.hpp"

namespace mhla {
inline namespace MHLA_TARGET {

namespace detail {

template <Accumulator T>
class VisionBody {
 public:
  using Scalar = T;
  using Options = VisionOptions;
  static constexpr const char* kName = "VisionLayer";
  static constexpr const char* kBackwardName = "VisionLayer::backward";
  static constexpr const char* kOutput = "to_out.0.weight";

  /// Values that backward reads.
  struct Tape {
    MatrixView<T> normed;  // n [rows, C]
    MatrixView<T> qkv;     // [rows, 3C]
    MatrixView<T> q, k;    // normalised, or columns of qkv
    MatrixView<T> heads;   // with LePE [rows, C]
    Workspace summaries;

    Tape(Arena& arena, const VisionBody& body, LayerRows sizes);
    MatrixView<T> v() const { return columns(qkv, 2); }
  };
  struct ForwardScratch {
    MatrixView<T> lepe;  // [rows, C]
    Workspace rest;
    ForwardScratch(Arena& arena, const VisionBody& body, LayerRows sizes,
                   const ExecutorRef& executor);
  };
  struct BackwardScratch {
    MatrixView<T> dheads;   // [rows, C]
    MatrixView<T> dqkv;     // [rows, 3C]
    MatrixView<T> dq, dk;   // of the normalised ones, or columns of dqkv
    MatrixView<T> dnormed;  // [rows, C]
    Workspace rest;
    BackwardScratch(Arena& arena, const VisionBody& body, LayerRows sizes,
                    const ExecutorRef& executor);
  };

  explicit VisionBody(const VisionOptions& options);

  const VisionOptions& options() const { return options_; }
  const ParameterTable& table() const { return table_; }
  Index tokens() const { return blocks_.tokens(); }  ///< N

  /// Computes everything up to `heads`.
  void record(std::span<const T> parameters, MatrixView<const T> x, const Tape& tape,
              const ForwardScratch& scratch, const ExecutorRef& executor) const;
  void write(std::span<const T> parameters, const Tape& tape, MatrixView<T> y,
             const ForwardScratch& scratch, const ExecutorRef& executor) const {
    dense(tape.heads, tensors_.to_out(parameters), y,
          {.workspace = scratch.rest, .executor = executor});
  }
  void backward(std::span<const T> parameters, MatrixView<const T> x, const Tape& tape,
                MatrixView<const T> dy, MatrixView<T> dx, std::span<T> gradients,
                const BackwardScratch& scratch, const ExecutorRef& executor) const;

 private:
  /// Queries, keys or values.
  static MatrixView<T> columns(const MatrixView<T>& qkv, Index part) {
    return columns_of(qkv, part, 3);
  }
  template <class U>
  TensorView<U> split(const MatrixView<U>& x) const {
    const Index d = options_.channels / options_.heads;
    return split_heads(x, x.rows / tokens(), options_.heads, d);
  }
  BatchInputs<T> inputs(const Tape& tape) const {
    return {.q = split(tape.q), .k = split(tape.k), .v = split(tape.v())};
  }
  auto attention() const {
    using Op = Operator<Relu, Relu, AnyNormalizer>;
    return GridAttention<T, Op>{
        options_.softmax,
        blocks_,
        {{options_.feature_eps}, {options_.feature_eps}, options_.normalizer}};
  }
  DepthwiseGrid grid() const {
    return {.tokens = options_.tokens,
            .kernel = GridShape(options_.lepe, options_.lepe),
            .places = places_};
  }

  VisionOptions options_;
  Grid blocks_;                // of tokens as they lie
  std::vector<Index> places_;  // of raster positions; empty in raster order
  ParameterTable table_;
  VisionSlices tensors_;
};

}  // namespace detail

/// The layer: layer.hpp documents it.
template <Accumulator A>
using VisionLayer = Layer<detail::VisionBody<A>>;

// ------------------------------------------------------------------------------------------------

namespace detail {

/// Returns the blocks of tokens in the order of the rows.
inline Grid vision_blocks(const VisionOptions& o) {
  const Grid raster(o.tokens, o.block);
  if (o.order == TokenOrder::kRaster) return raster;
  return Grid(GridShape(raster.tokens()), GridShape(raster.block_size(0)));
}

template <Accumulator T>
VisionBody<T>::VisionBody(const VisionOptions& options)
    : options_(checked_vision_options(options)),
      blocks_(vision_blocks(options)),
      places_(vision_places(options)),
      table_(vision_table(options)),
      tensors_(table_) {
  if (options_.qk_norm_eps == 0) {
    options_.qk_norm_eps = static_cast<double>(std::numeric_limits<T>::epsilon());
  }
}

template <Accumulator T>
VisionBody<T>::Tape::Tape(Arena& arena, const VisionBody& body, LayerRows sizes) {
  const Index c = body.options_.channels;
  if (body.options_.layer_norm) normed = take_matrix<T>(kName, arena, sizes.rows, c);
  qkv = take_matrix<T>(kName, arena, sizes.rows, 3 * c);
  q = columns(qkv, 0), k = columns(qkv, 1);
  if (body.options_.qk_norm) {
    q = take_matrix<T>(kName, arena, sizes.rows, c);
    k = take_matrix<T>(kName, arena, sizes.rows, c);
  }
  heads = take_matrix<T>(kName, arena, sizes.rows, c);
  summaries = take_bytes(kName, arena, body.attention().kept_bytes(body.inputs(*this)));
}

template <Accumulator T>
VisionBody<T>::ForwardScratch::ForwardScratch(Arena& arena, const VisionBody& body, LayerRows sizes,
                                              const ExecutorRef& executor) {
  const Index c = body.options_.channels;
  if (body.options_.lepe > 0) lepe = take_matrix<T>(kName, arena, sizes.rows, c);
  Arena counting;
  const BatchInputs<T> in = body.inputs(Tape(counting, body, sizes));
  rest = take_bytes(
      kName, arena,
      std::max({dense_workspace_bytes<T>(c, 3 * c), body.attention().workspace_bytes(in, executor),
                body.options_.lepe > 0
                    ? depthwise_convolution_workspace_bytes<T>(c, body.grid().kernel)
                    : 0}));
}

template <Accumulator T>
void VisionBody<T>::record(std::span<const T> parameters, MatrixView<const T> x, const Tape& tape,
                           const ForwardScratch& scratch, const ExecutorRef& executor) const {
  const Call call{.workspace = scratch.rest, .executor = executor};
  const VisionSlices& at = tensors_;
  if (options_.layer_norm) {
    layer_norm(x, at.norm_gain.numbers(parameters), at.norm_shift.numbers(parameters),
               options_.layer_norm_eps, tape.normed, executor);
    x = tape.normed;
  }
  dense(x, at.to_qkv(parameters), tape.qkv, call);
  if (options_.qk_norm) {
    rms_norm(columns(tape.qkv, 0), at.q_gain.numbers(parameters), options_.qk_norm_eps, tape.q,
             executor);
    rms_norm(columns(tape.qkv, 1), at.k_gain.numbers(parameters), options_.qk_norm_eps, tape.k,
             executor);
  }
  attention().run(inputs(tape), mixing_at(at.mixing, parameters), split(tape.heads),
                  {.workspace = scratch.rest, .executor = executor, .kept = tape.summaries});
  if (options_.lepe > 0) {
    depthwise_convolution(tape.v(), at.lepe(parameters), grid(), scratch.lepe, call);
    add<T>(scratch.lepe, tape.heads, executor);
  }
}

template <Accumulator T>
VisionBody<T>::BackwardScratch::BackwardScratch(Arena& arena, const VisionBody& body,
                                                LayerRows sizes, const ExecutorRef& executor) {
  const Index c = body.options_.channels;
  dheads = take_matrix<T>(kName, arena, sizes.rows, c);
  dqkv = take_matrix<T>(kName, arena, sizes.rows, 3 * c);
  dq = columns(dqkv, 0), dk = columns(dqkv, 1);
  if (body.options_.qk_norm) {
    dq = take_matrix<T>(kName, arena, sizes.rows, c);
    dk = take_matrix<T>(kName, arena, sizes.rows, c);
  }
  if (body.options_.layer_norm) dnormed = take_matrix<T>(kName, arena, sizes.rows, c);
  Arena counting;
  const BatchInputs<T> in = body.inputs(Tape(counting, body, sizes));
  std::size_t bytes = std::max({dense_adjoint_workspace_bytes<T>(sizes.rows, c, c),
                                dense_adjoint_workspace_bytes<T>(sizes.rows, c, 3 * c),
                                body.attention().gradient_workspace_bytes(in, executor),
                                layer_norm_adjoint_workspace_bytes<T>(sizes.rows, c)});
  if (body.options_.qk_norm) {
    bytes = std::max(bytes, rms_norm_adjoint_workspace_bytes<T>(sizes.rows, c));
  }
  if (body.options_.lepe > 0) {
    bytes = std::max(
        bytes, depthwise_convolution_adjoint_workspace_bytes<T>(sizes.rows, c, body.grid().kernel));
  }
  rest = take_bytes(kName, arena, bytes);
}

template <Accumulator T>
void VisionBody<T>::backward(std::span<const T> parameters, MatrixView<const T> x, const Tape& tape,
                             MatrixView<const T> dy, MatrixView<T> dx, std::span<T> gradients,
                             const BackwardScratch& scratch, const ExecutorRef& executor) const {
  const Call call{.workspace = scratch.rest, .executor = executor};
  const VisionSlices& at = tensors_;
  const auto [dq, dk, dv] =
      std::array{columns(scratch.dqkv, 0), columns(scratch.dqkv, 1), columns(scratch.dqkv, 2)};
  clear(scratch.dheads, executor);
  clear(scratch.dqkv, executor);
  if (options_.qk_norm) clear(scratch.dq, executor), clear(scratch.dk, executor);
  if (options_.layer_norm) clear(scratch.dnormed, executor);
  dense_adjoint(tape.heads, at.to_out(parameters), dy, scratch.dheads, at.to_out(gradients), call);
  if (options_.lepe > 0) {
    depthwise_convolution_adjoint(tape.v(), at.lepe(parameters), grid(), scratch.dheads, dv,
                                  at.lepe(gradients), call);
  }
  const BatchGradients<T> to{.q = split(scratch.dq), .k = split(scratch.dk), .v = split(dv)};
  attention().add_gradients(
      inputs(tape), mixing_at(at.mixing, parameters), split(scratch.dheads), to,
      mixing_at(at.mixing, gradients),
      {.workspace = scratch.rest, .executor = executor, .kept = tape.summaries});
  if (options_.qk_norm) {
    const double eps = options_.qk_norm_eps;
    rms_norm_adjoint(columns(tape.qkv, 0), at.q_gain.numbers(parameters), eps, scratch.dq, dq,
                     at.q_gain.numbers(gradients), call);
    rms_norm_adjoint(columns(tape.qkv, 1), at.k_gain.numbers(parameters), eps, scratch.dk, dk,
                     at.k_gain.numbers(gradients), call);
  }
  if (!options_.layer_norm) {
    dense_adjoint(x, at.to_qkv(parameters), scratch.dqkv, dx, at.to_qkv(gradients), call);
    return;
  }
  dense_adjoint(tape.normed, at.to_qkv(parameters), scratch.dqkv, scratch.dnormed,
                at.to_qkv(gradients), call);
  layer_norm_adjoint(x, at.norm_gain.numbers(parameters), options_.layer_norm_eps, scratch.dnormed,
                     dx, at.norm_gain.numbers(gradients), at.norm_shift.numbers(gradients), call);
}

}  // namespace detail
}  // namespace MHLA_TARGET
}  // namespace mhla

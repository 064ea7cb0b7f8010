#pragma once

/// \file
/// The steps of layers' graphs (graph.hpp). Each returns the value that it writes.

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "mhla/attention/bidirectional.hpp"
#include "mhla/attention/softmax.hpp"
#include "mhla/core/arch.hpp"
#include "mhla/core/call.hpp"
#include "mhla/core/matrix.hpp"
#include "mhla/core/tensor.hpp"
#include "mhla/gradient/bidirectional.hpp"
#include "mhla/gradient/softmax.hpp"
#include "mhla/layer/body.hpp"
#include "mhla/layer/dense.hpp"
#include "mhla/layer/depthwise_convolution.hpp"
#include "mhla/layer/graph.hpp"
#include "mhla/layer/head_map.hpp"
#include "mhla/layer/layer_norm.hpp"
#include "mhla/layer/parameters.hpp"
#include "mhla/layer/rms_norm.hpp"
#include "mhla/layer/rotary.hpp"
#include "mhla/layer/step.hpp"
#include "mhla/policy/grid_partition.hpp"

namespace mhla {
inline namespace MHLA_TARGET {
namespace detail {

/// y = x W^T + b.
template <class T>
Value dense_step(Graph<T>& g, Value x, const WeightSlices<DenseView>& w) {
  const Value y = g.value(w.weight.rows);
  const auto forward = [=](const Pass<T>& p) {
    dense(p.in(x), w(p.parameters), p.out(y), p.call());
  };
  const auto adjoint = [=](const Pass<T>& p) {
    dense_adjoint(p.in(x), w(p.parameters), p.dout(y), p.din(x), w(p.gradients), p.call());
  };
  const auto forward_bytes = [=](const Pass<T>&) {
    return dense_workspace_bytes<T>(x.cols, y.cols);
  };
  const auto adjoint_bytes = [=](const Pass<T>& p) {
    return dense_adjoint_workspace_bytes<T>(p.sizes.rows, x.cols, y.cols);
  };
  return g.add({.output = y, .inputs = {x}, .read = {x}}, forward, adjoint, forward_bytes,
               adjoint_bytes);
}

template <class T>
Value layer_norm_step(Graph<T>& g, Value x, ParameterSlice gain, ParameterSlice shift, double eps) {
  const Value y = g.value(x.cols);
  const auto forward = [=](const Pass<T>& p) {
    layer_norm(p.in(x), gain.numbers(p.parameters), shift.numbers(p.parameters), eps, p.out(y),
               p.executor);
  };
  const auto adjoint = [=](const Pass<T>& p) {
    layer_norm_adjoint(p.in(x), gain.numbers(p.parameters), eps, p.dout(y), p.din(x),
                       gain.numbers(p.gradients), shift.numbers(p.gradients), p.call());
  };
  const auto adjoint_bytes = [=](const Pass<T>& p) {
    return layer_norm_adjoint_workspace_bytes<T>(p.sizes.rows, x.cols);
  };
  return g.add({.output = y, .inputs = {x}, .read = {x}}, forward, adjoint, NoBytes(),
               adjoint_bytes);
}

/// The norm of groups of as many columns as `gain` has numbers.
template <class T>
Value rms_norm_step(Graph<T>& g, Value x, ParameterSlice gain, double eps) {
  const Value y = g.value(x.cols);
  const auto forward = [=](const Pass<T>& p) {
    rms_norm(p.in(x), gain.numbers(p.parameters), eps, p.out(y), p.executor);
  };
  const auto adjoint = [=](const Pass<T>& p) {
    rms_norm_adjoint(p.in(x), gain.numbers(p.parameters), eps, p.dout(y), p.din(x),
                     gain.numbers(p.gradients), p.call());
  };
  const auto adjoint_bytes = [=](const Pass<T>& p) {
    return rms_norm_adjoint_workspace_bytes<T>(p.sizes.rows, gain.rows);
  };
  return g.add({.output = y, .inputs = {x}, .read = {x}}, forward, adjoint, NoBytes(),
               adjoint_bytes);
}

/// The norm times silu(gate).
template <class T>
Value gated_rms_norm_step(Graph<T>& g, Value x, ParameterSlice gain, double eps, Value gate) {
  const Value y = g.value(x.cols);
  const auto forward = [=](const Pass<T>& p) {
    gated_rms_norm(p.in(x), gain.numbers(p.parameters), eps, p.in(gate), p.out(y), p.executor);
  };
  const auto adjoint = [=](const Pass<T>& p) {
    gated_rms_norm_adjoint(p.in(x), gain.numbers(p.parameters), eps, p.in(gate), p.dout(y),
                           p.din(x), gain.numbers(p.gradients), p.din(gate), p.call());
  };
  const auto adjoint_bytes = [=](const Pass<T>& p) {
    return gated_rms_norm_adjoint_workspace_bytes<T>(p.sizes.rows, gain.rows);
  };
  return g.add({.output = y, .inputs = {x, gate}, .read = {x, gate}}, forward, adjoint, NoBytes(),
               adjoint_bytes);
}

/// y = relu(x) + eps.
template <class T>
Value relu_step(Graph<T>& g, Value x, double eps) {
  const Value y = g.value(x.cols);
  const Relu relu{eps};
  const auto forward = [=](const Pass<T>& p) { map_heads(p.in(x), relu, 1, p.out(y), p.executor); };
  const auto adjoint = [=](const Pass<T>& p) {
    // The adjoint of Relu reads only its input, which stands for the output here.
    map_heads_adjoint(p.in(x), relu, 1, p.in(x), p.dout(y), p.din(x), {}, p.call());
  };
  const auto adjoint_bytes = [=](const Pass<T>& p) {
    return map_heads_adjoint_workspace_bytes<T>(p.sizes.rows, x.cols, 0);
  };
  return g.add({.output = y, .inputs = {x}, .read = {x}}, forward, adjoint, NoBytes(),
               adjoint_bytes);
}

/// \param table  of the tokens of an item, once the graph is prepared
template <class T>
Value rotary_step(Graph<T>& g, Value x, std::shared_ptr<const RotaryTable<T>> table, Index heads) {
  const Value y = g.value(x.cols);
  const auto forward = [=](const Pass<T>& p) {
    rotary(p.in(x), *table, heads, p.out(y), p.executor);
  };
  const auto adjoint = [=](const Pass<T>& p) {
    rotary_adjoint(p.dout(y), *table, heads, p.din(x), p.executor);
  };
  return g.add({.output = y, .inputs = {x}}, forward, adjoint);
}

/// A depthwise convolution over the image or video of an item.
/// \param places  as those of DepthwiseGrid
template <class T>
Value convolution_step(Graph<T>& g, Value x, const WeightSlices<ConvolutionView>& w,
                       GridShape tokens, GridShape kernel, std::vector<Index> places = {}) {
  const Value y = g.value(x.cols);
  const auto kept = std::make_shared<const std::vector<Index>>(std::move(places));
  const auto grid = [=] { return DepthwiseGrid{tokens, kernel, *kept}; };
  const auto forward = [=](const Pass<T>& p) {
    depthwise_convolution(p.in(x), w(p.parameters), grid(), p.out(y), p.call());
  };
  const auto adjoint = [=](const Pass<T>& p) {
    depthwise_convolution_adjoint(p.in(x), w(p.parameters), grid(), p.dout(y), p.din(x),
                                  w(p.gradients), p.call());
  };
  const auto forward_bytes = [=](const Pass<T>&) {
    return depthwise_convolution_workspace_bytes<T>(x.cols, kernel);
  };
  const auto adjoint_bytes = [=](const Pass<T>& p) {
    return depthwise_convolution_adjoint_workspace_bytes<T>(p.sizes.rows, x.cols, kernel);
  };
  return g.add({.output = y, .inputs = {x}, .read = {x}}, forward, adjoint, forward_bytes,
               adjoint_bytes);
}

/// The step sum += v, which writes over sum. No other step reads v.
template <class T>
void add_step(Graph<T>& g, Value sum, Value v) {
  g.share_gradient(sum, v);
  const auto forward = [=](const Pass<T>& p) { add(p.in(v), p.out(sum), p.executor); };
  const auto adjoint = [](const Pass<T>&) {};
  g.add({.output = {}, .inputs = {sum, v}}, forward, adjoint);
}

/// Queries, keys and values, and the queries and keys of denominators if they differ.
struct AttentionValues {
  Value q, k, v;
  Value normalizer_q = {}, normalizer_k = {};

  /// Returns the heads of view(value) for each value, as BatchInputs or BatchGradients.
  template <class Batch, class View>
  Batch heads(Index batch, Index count, const View& view) const {
    const auto split = [&](Value x) { return split_heads(view(x), batch, count, x.cols / count); };
    return {.q = split(q),
            .k = split(k),
            .v = split(v),
            .normalizer_q = split(normalizer_q),
            .normalizer_k = split(normalizer_k)};
  }
};

/// MHLA over the blocks of a grid. Without a mixing matrix it is softmax attention, which reads
/// neither blocks nor op.
template <class T, class Op>
Value attention_step(Graph<T>& g, const AttentionValues& a, Index heads, const Grid& blocks,
                     const Op& op, ParameterSlice mixing) {
  const Value y = g.value(a.v.cols);
  const bool softmax = mixing.rows == 0;
  const Index m = blocks.blocks();
  const auto inputs = [=](const Pass<T>& p) {
    return a.heads<BatchInputs<T>>(p.sizes.batch, heads, [&](Value x) { return p.in(x); });
  };
  const auto split = [=](const Pass<T>& p, const auto& rows) {
    return split_heads(rows, p.sizes.batch, heads, y.cols / heads);
  };
  const auto forward = [=](const Pass<T>& p) {
    const auto out = split(p, p.out(y));
    if (softmax) return softmax_bidirectional(inputs(p), out, {}, p.call(y));
    bidirectional(inputs(p), blocks, mixing_at(mixing, p.parameters, m), op, out, p.call(y));
  };
  const auto adjoint = [=](const Pass<T>& p) {
    const auto dout = split(p, p.dout(y));
    const auto sums =
        a.heads<BatchGradients<T>>(p.sizes.batch, heads, [&](Value x) { return p.din(x); });
    if (softmax) return softmax_bidirectional_gradient(inputs(p), dout, sums, {}, p.call(y));
    bidirectional_gradient(inputs(p), blocks, mixing_at(mixing, p.parameters, m), op, dout, sums,
                           {.mixing = mixing_at(mixing, p.gradients, m)}, p.call(y));
  };
  const auto forward_bytes = [=](const Pass<T>& p) {
    if (softmax) return softmax_workspace_bytes(inputs(p), p.executor);
    return bidirectional_workspace_bytes(inputs(p), blocks, op, p.executor);
  };
  const auto adjoint_bytes = [=](const Pass<T>& p) {
    if (softmax) return softmax_gradient_workspace_bytes(inputs(p), p.executor);
    const Index matrices = mixing.rows * mixing.cols / (m * m);
    const MixingView<const T> absent(nullptr, Pattern(m, m), matrices, m * m);
    return bidirectional_gradient_workspace_bytes(inputs(p), blocks, absent, op, p.executor);
  };
  const auto kept_bytes = [=](const Pass<T>& p) {
    return softmax ? 0 : bidirectional_kept_bytes(inputs(p), blocks, op);
  };
  return g.add({.output = y,
                .inputs = {a.q, a.k, a.v, a.normalizer_q, a.normalizer_k},
                .read = {a.q, a.k, a.v, a.normalizer_q, a.normalizer_k}},
               forward, adjoint, forward_bytes, adjoint_bytes, kept_bytes);
}

}  // namespace detail
}  // namespace MHLA_TARGET
}  // namespace mhla

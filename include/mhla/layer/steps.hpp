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
#include "mhla/layer/activation.hpp"
#include "mhla/layer/body.hpp"
#include "mhla/layer/dense.hpp"
#include "mhla/layer/depthwise_convolution.hpp"
#include "mhla/layer/graph.hpp"
#include "mhla/layer/head_map.hpp"
#include "mhla/layer/layer_norm.hpp"
#include "mhla/layer/mixing_tensor.hpp"
#include "mhla/layer/parameters.hpp"
#include "mhla/layer/rms_norm.hpp"
#include "mhla/layer/rotary.hpp"
#include "mhla/layer/step.hpp"
#include "mhla/policy/grid_partition.hpp"

namespace mhla {
inline namespace MHLA_TARGET {
namespace detail {

template <class T>
struct DenseForward {
  Value x, y;
  WeightSlices<DenseView> w;

  void operator()(const Pass<T>& p) const {
    if (p.packed != nullptr) {
      if (!p.counting()) dense(p.in(x), p.packed->at(w.weight), p.out(y), p.executor);
      return;
    }
    if (p.counting()) return p.needs(dense_workspace_bytes<T>(x.cols, y.cols));
    dense(p.in(x), w(p.parameters), p.out(y), p.call());
  }
};

/// The adjoint of a step whose gradients another step adds.
struct NoAdjoint {
  template <class T>
  void operator()(const Pass<T>&) const {}
};

}  // namespace detail

/// y = x W^T + b.
template <class T>
Value dense_step(Graph<T>& g, Value x, const detail::WeightSlices<DenseView>& w) {
  const Value y = g.value(w.weight.rows, g.per_item(x));
  const auto adjoint = [=](const Pass<T>& p) {
    if (p.counting()) {
      return p.needs(dense_adjoint_workspace_bytes<T>(p.rows(x), x.cols, y.cols));
    }
    dense_adjoint(p.in(x), w(p.parameters), p.dout(y), p.din(x), w(p.gradients), p.call());
  };
  return g.add({.output = y, .inputs = {x}, .read = {x}}, detail::DenseForward<T>{x, y, w},
               adjoint);
}

/// \param gain, shift  [C] or none
template <class T>
Value layer_norm_step(Graph<T>& g, Value x, ParameterSlice gain, ParameterSlice shift, double eps) {
  const Value y = g.value(x.cols, g.per_item(x));
  const auto forward = [=](const Pass<T>& p) {
    if (p.counting()) return;
    layer_norm(p.in(x), gain.numbers(p.parameters), shift.numbers(p.parameters), eps, p.out(y),
               p.executor);
  };
  const auto adjoint = [=](const Pass<T>& p) {
    if (p.counting()) return p.needs(layer_norm_adjoint_workspace_bytes<T>(p.rows(x), x.cols));
    layer_norm_adjoint(p.in(x), gain.numbers(p.parameters), eps, p.dout(y), p.din(x),
                       gain.numbers(p.gradients), shift.numbers(p.gradients), p.call());
  };
  return g.add({.output = y, .inputs = {x}, .read = {x}}, forward, adjoint);
}

/// The norm of groups of as many columns as `gain` has numbers.
template <class T>
Value rms_norm_step(Graph<T>& g, Value x, ParameterSlice gain, double eps) {
  const Value y = g.value(x.cols, g.per_item(x));
  const auto forward = [=](const Pass<T>& p) {
    if (p.counting()) return;
    rms_norm(p.in(x), gain.numbers(p.parameters), eps, p.out(y), p.executor);
  };
  const auto adjoint = [=](const Pass<T>& p) {
    if (p.counting()) return p.needs(rms_norm_adjoint_workspace_bytes<T>(p.rows(x), gain.rows));
    rms_norm_adjoint(p.in(x), gain.numbers(p.parameters), eps, p.dout(y), p.din(x),
                     gain.numbers(p.gradients), p.call());
  };
  return g.add({.output = y, .inputs = {x}, .read = {x}}, forward, adjoint);
}

/// The norm times silu(gate).
template <class T>
Value gated_rms_norm_step(Graph<T>& g, Value x, ParameterSlice gain, double eps, Value gate) {
  const Value y = g.value(x.cols, g.per_item(x));
  const auto forward = [=](const Pass<T>& p) {
    if (p.counting()) return;
    gated_rms_norm(p.in(x), gain.numbers(p.parameters), eps, p.in(gate), p.out(y), p.executor);
  };
  const auto adjoint = [=](const Pass<T>& p) {
    if (p.counting()) {
      return p.needs(gated_rms_norm_adjoint_workspace_bytes<T>(p.rows(x), gain.rows));
    }
    gated_rms_norm_adjoint(p.in(x), gain.numbers(p.parameters), eps, p.in(gate), p.dout(y),
                           p.din(x), gain.numbers(p.gradients), p.din(gate), p.call());
  };
  return g.add({.output = y, .inputs = {x, gate}, .read = {x, gate}}, forward, adjoint);
}

/// y = relu(x) + eps.
template <class T>
Value relu_step(Graph<T>& g, Value x, double eps) {
  const Value y = g.value(x.cols, g.per_item(x));
  const Relu relu{eps};
  const auto forward = [=](const Pass<T>& p) {
    if (!p.counting()) map_heads(p.in(x), relu, 1, p.out(y), p.executor);
  };
  const auto adjoint = [=](const Pass<T>& p) {
    if (p.counting()) return p.needs(map_heads_adjoint_workspace_bytes<T>(p.rows(x), x.cols, 0));
    // The adjoint of Relu reads only its input, which stands for the output here.
    map_heads_adjoint(p.in(x), relu, 1, p.in(x), p.dout(y), p.din(x), {}, p.call());
  };
  return g.add({.output = y, .inputs = {x}, .read = {x}}, forward, adjoint);
}

namespace detail {
/// y = F(x).
template <class F, class T>
struct ActivationForward {
  Value x, y;
  void operator()(const Pass<T>& p) const {
    if (!p.counting()) activate<F, T>("activation", p.in(x), p.out(y), p.executor);
  }
};
}  // namespace detail

/// y = F(x) of an activation F: Gelu, ErfGelu or detail::Silu.
template <class F, class T>
Value activation_step(Graph<T>& g, Value x) {
  const Value y = g.value(x.cols, g.per_item(x));
  const auto adjoint = [=](const Pass<T>& p) {
    if (p.counting() || p.din(x).absent()) return;
    detail::activate_adjoint<F, T>("activation", p.in(x), p.dout(y), p.din(x), p.executor);
  };
  return g.add({.output = y, .inputs = {x}, .read = {x}}, detail::ActivationForward<F, T>{x, y},
               adjoint);
}

/// \param table  of the tokens of an item, once the graph is prepared
template <class T>
Value rotary_step(Graph<T>& g, Value x, std::shared_ptr<const RotaryTable<T>> table, Index heads) {
  const Value y = g.value(x.cols);
  const auto forward = [=](const Pass<T>& p) {
    if (!p.counting()) rotary(p.in(x), *table, heads, p.out(y), p.executor);
  };
  const auto adjoint = [=](const Pass<T>& p) {
    if (p.counting() || p.din(x).absent()) return;
    rotary_adjoint(p.dout(y), *table, heads, p.din(x), p.executor);
  };
  return g.add({.output = y, .inputs = {x}}, forward, adjoint);
}

/// A depthwise convolution over the image or video of an item.
/// \param places  as those of DepthwiseGrid
template <class T>
Value convolution_step(Graph<T>& g, Value x, const detail::WeightSlices<ConvolutionView>& w,
                       GridShape tokens, GridShape kernel, std::vector<Index> places = {}) {
  const Value y = g.value(x.cols);
  const auto kept = std::make_shared<const std::vector<Index>>(std::move(places));
  const auto grid = [=] { return DepthwiseGrid{tokens, kernel, *kept}; };
  const auto forward = [=](const Pass<T>& p) {
    if (p.counting()) return p.needs(depthwise_convolution_workspace_bytes<T>(x.cols, kernel));
    depthwise_convolution(p.in(x), w(p.parameters), grid(), p.out(y), p.call());
  };
  const auto adjoint = [=](const Pass<T>& p) {
    if (p.counting()) {
      return p.needs(depthwise_convolution_adjoint_workspace_bytes<T>(p.rows(x), x.cols, kernel));
    }
    depthwise_convolution_adjoint(p.in(x), w(p.parameters), grid(), p.dout(y), p.din(x),
                                  w(p.gradients), p.call());
  };
  return g.add({.output = y, .inputs = {x}, .read = {x}}, forward, adjoint);
}

namespace detail {
/// sum += v in the forward.
template <class T>
struct AddForward {
  Value v, sum;
  void operator()(const Pass<T>& p) const {
    if (!p.counting()) add(p.in(v), p.out(sum), p.executor);
  }
};
}  // namespace detail

/// sum += v, the output of a step, which no other step reads.
template <class T>
void add_step(Graph<T>& g, Value sum, Value v) {
  g.share_gradient(v, sum);
  g.add({.sum = sum, .inputs = {v}}, detail::AddForward<T>{v, sum}, detail::NoAdjoint());
}

/// sum += x, a residual that other steps read too. Returns the sum: the output of a step that no
/// step has read, and not the layer's input.
template <class T>
Value residual_step(Graph<T>& g, Value sum, Value x) {
  const auto adjoint = [=](const Pass<T>& p) {
    if (p.counting() || p.din(x).absent()) return;
    detail::add(p.dout(sum), p.din(x), p.executor);
  };
  g.add({.sum = sum, .inputs = {x}}, detail::AddForward<T>{x, sum}, adjoint);
  return sum;
}

/// Queries, keys and values, and the queries and keys of denominators if they differ.
struct AttentionValues {
  Value q, k, v;
  Value normalizer_q = {}, normalizer_k = {};

  /// Returns the heads of view(value) for each value, as BatchInputs or BatchGradients.
  template <class Batch, class View>
  Batch heads(Index batch, Index count, const View& view) const {
    const auto split = [&](Value x) {
      return detail::split_heads(view(x), batch, count, x.cols / count);
    };
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
                     const Op& op, const MixingTensor& mixing) {
  const Value y = g.value(a.v.cols);
  const bool softmax = mixing.absent();
  const Index m = blocks.blocks();
  const char* const name = g.name();
  const auto inputs = [=](const Pass<T>& p) {
    return a.heads<BatchInputs<T>>(p.sizes.batch, heads, [&](Value x) { return p.in(x); });
  };
  const auto split = [=](const Pass<T>& p, const auto& rows) {
    return detail::split_heads(rows, p.sizes.batch, heads, y.cols / heads);
  };
  const auto forward = [=](const Pass<T>& p) {
    const auto in = inputs(p);
    if (p.counting_kept()) return p.keeps(bidirectional_kept_bytes(in, blocks, op));
    if (p.counting()) {
      if (softmax) return p.needs(softmax_workspace_bytes(in, p.executor));
      return p.needs(detail::MixingOfPass<T>::bytes(mixing, m, false) +
                     bidirectional_workspace_bytes(in, blocks, op, p.executor));
    }
    const auto out = split(p, p.out(y));
    if (softmax) return softmax_bidirectional(in, out, {}, p.call());
    const detail::MixingOfPass<T> w(name, mixing, m, p, false);
    bidirectional(in, blocks, w.matrices(), op, out, w.call());
  };
  const auto adjoint = [=](const Pass<T>& p) {
    const auto in = inputs(p);
    if (p.counting()) {
      if (softmax) return p.needs(softmax_gradient_workspace_bytes(in, p.executor));
      const MixingView<const T> absent(nullptr, mixing.pattern(m), mixing.matrices(m), m * m);
      return p.needs(detail::MixingOfPass<T>::bytes(mixing, m, true) +
                     bidirectional_gradient_workspace_bytes(in, blocks, absent, op, p.executor));
    }
    const auto dout = split(p, p.dout(y));
    const auto sums =
        a.heads<BatchGradients<T>>(p.sizes.batch, heads, [&](Value x) { return p.din(x); });
    if (softmax) return softmax_bidirectional_gradient(in, dout, sums, {}, p.call());
    const detail::MixingOfPass<T> w(name, mixing, m, p, true);
    bidirectional_gradient(in, blocks, w.matrices(), op, dout, sums, {.mixing = w.gradient()},
                           w.call());
    w.add_gradient();
  };
  const StepValues::Values values{a.q, a.k, a.v, a.normalizer_q, a.normalizer_k};
  return g.add({.output = y, .inputs = values, .read = values, .keeps = !softmax}, forward,
               adjoint);
}

}  // namespace MHLA_TARGET
}  // namespace mhla

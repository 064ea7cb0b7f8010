#pragma once

/// \file
/// The steps of blocks of models (graph.hpp). Attention and then a feed-forward part are residual
/// branches, each after a norm. For B items and C channels:
///
///     n = norm(x) * (1 + scale) + shift                                     [B*N, C]
///     x = x + gate * part(n)                                                [B*N, C]
///
/// Shifts, scales and gates are rows of a modulation m. It follows from the condition c of an item:
///
///     adaptive:  m = silu(c) W^T + b        c [B,C], W [6C,C], m [B,6C]
///     table:     m = c + w                  c [B,6C], w [6C] of the block, m [B,6C]
///
/// Without a condition they are 0, 0 and 1.
/// Sources: Peebles and Xie, arXiv:2212.09748; for the table, PixArt, arXiv:2310.00426.

#include <algorithm>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "mhla/core/arch.hpp"
#include "mhla/core/error.hpp"
#include "mhla/core/matrix.hpp"
#include "mhla/kernel/packet.hpp"
#include "mhla/layer/activation.hpp"
#include "mhla/layer/body.hpp"
#include "mhla/layer/gate.hpp"
#include "mhla/layer/gated_mlp.hpp"
#include "mhla/layer/graph.hpp"
#include "mhla/layer/initial.hpp"
#include "mhla/layer/mlp.hpp"
#include "mhla/layer/modulate.hpp"
#include "mhla/layer/parameters.hpp"
#include "mhla/layer/rows.hpp"
#include "mhla/layer/steps.hpp"

namespace mhla {
inline namespace MHLA_TARGET {

namespace detail {

/// y = x * silu(gate).
template <class T>
struct GateForward {
  Value x, gate, y;
  void operator()(const Pass<T>& p) const {
    if (p.counting()) return;
    mhla::gate(p.in(x), p.in(gate), p.out(y), GateFunction::kSilu, p.executor);
  }
};

/// Where the weights of a gated perceptron lie.
struct GatedMlpSlices {
  WeightSlices<DenseView> gate, up, down;

  template <class T>
  GatedMlpView<T> operator()(std::span<T> row) const {
    return {gate(row), up(row), down(row)};
  }
};

}  // namespace detail

/// y = F(x W1^T + b1) W2^T + b2, of an activation F: Gelu or ErfGelu. One adjoint serves it.
template <class F, class T>
Value mlp_step(Graph<T>& g, Value x, const detail::WeightSlices<DenseView>& first,
               const detail::WeightSlices<DenseView>& second) {
  const Value pre = g.value(first.weight.rows), hidden = g.value(pre.cols);
  const Value y = g.value(second.weight.rows);
  using Dense = detail::DenseForward<T>;
  constexpr detail::NoAdjoint kNone;
  g.add({.output = pre, .unsloped = {x}}, Dense{x, pre, first}, kNone);
  g.add({.output = hidden, .unsloped = {pre}}, detail::ActivationForward<F, T>{pre, hidden}, kNone);
  const auto adjoint = [=](const Pass<T>& p) {
    if (p.counting()) {
      return p.needs(mlp_adjoint_workspace_bytes<T>(p.rows(x), x.cols, pre.cols, y.cols));
    }
    mlp_adjoint<F>(p.in(x), {first(p.parameters), second(p.parameters)}, p.in(pre), p.in(hidden),
                   p.dout(y), p.din(x), {first(p.gradients), second(p.gradients)}, p.call());
  };
  return g.add({.output = y, .inputs = {x}, .read = {x, pre, hidden}, .unsloped = {hidden}},
               Dense{hidden, y, second}, adjoint);
}

/// y = (silu(x Wg^T) * (x Wu^T)) Wd^T. One adjoint serves it.
template <class T>
Value gated_mlp_step(Graph<T>& g, Value x, const detail::GatedMlpSlices& w) {
  const Value gate = g.value(w.gate.weight.rows), up = g.value(gate.cols);
  const Value hidden = g.value(gate.cols), y = g.value(w.down.weight.rows);
  using Dense = detail::DenseForward<T>;
  constexpr detail::NoAdjoint kNone;
  g.add({.output = gate, .unsloped = {x}}, Dense{x, gate, w.gate}, kNone);
  g.add({.output = up, .unsloped = {x}}, Dense{x, up, w.up}, kNone);
  g.add({.output = hidden, .unsloped = {gate, up}}, detail::GateForward<T>{up, gate, hidden},
        kNone);
  const auto adjoint = [=](const Pass<T>& p) {
    if (p.counting()) {
      return p.needs(gated_mlp_adjoint_workspace_bytes<T>(p.rows(x), x.cols, gate.cols, y.cols));
    }
    gated_mlp_adjoint(p.in(x), w(p.parameters), p.in(gate), p.in(up), p.dout(y), p.din(x),
                      w(p.gradients), p.call());
  };
  return g.add({.output = y, .inputs = {x}, .read = {x, gate, up}, .unsloped = {hidden}},
               Dense{hidden, y, w.down}, adjoint);
}

/// Shift, scale and gate of the attention, then of the feed-forward part.
struct Modulation {
  Value all{};  ///< [B,6C], or absent

  Value shift(Index branch) const { return all.part(3 * branch, 6); }
  Value scale(Index branch) const { return all.part(3 * branch + 1, 6); }
  Value gate(Index branch) const { return all.part(3 * branch + 2, 6); }
};

/// The modulation silu(c) W^T + b. W and b begin with 0, so a block begins as the identity.
template <class T>
Modulation adaptive_modulation(Graph<T>& g, Index channels, const std::string& name) {
  const Value c = g.condition(channels);
  const auto w = g.dense(name, {6 * channels, channels}, {}, {}, Initial::zeros());
  return {dense_step(g, activation_step<detail::Silu>(g, c), w)};
}

/// The modulation c + w.
/// \param shape  of w in a checkpoint: 6C numbers, the last axis of C
template <class T>
Modulation table_modulation(Graph<T>& g, const std::string& name, const std::vector<Index>& shape) {
  const ParameterSlice w = g.tensor(name, shape, Initial::normal(shape.back()));
  const Value c = g.condition(w.rows * w.cols), m = g.value(c.cols, true);
  const auto forward = [=](const Pass<T>& p) {
    if (p.counting()) return;
    const auto from = p.in(c);
    const auto to = p.out(m);
    detail::for_each_layer_strip(from.rows, p.executor, [&](Index begin, Index count) {
      for (Index b = begin; b < begin + count; ++b) {
        std::copy_n(from.row(b), c.cols, to.row(b));
        detail::add_to(w.numbers(p.parameters).data(), to.row(b), c.cols);
      }
    });
  };
  const auto adjoint = [=](const Pass<T>& p) {
    if (p.counting()) return;
    const auto dm = p.dout(m);
    if (!p.din(c).absent()) detail::add(dm, p.din(c), p.executor);
    if (p.gradients.empty()) return;
    detail::add_rows_to(dm.data, dm.row_stride, dm.rows, w.numbers(p.gradients).data(), dm.cols);
  };
  return {g.add({.output = m, .inputs = {c}}, forward, adjoint)};
}

/// y = x * (1 + scale) + shift.
template <class T>
Value modulate_step(Graph<T>& g, Value x, Value scale, Value shift) {
  const Value y = g.value(x.cols);
  const auto forward = [=](const Pass<T>& p) {
    if (!p.counting()) modulate(p.in(x), p.in(scale), p.in(shift), p.out(y), p.executor);
  };
  const auto adjoint = [=](const Pass<T>& p) {
    if (p.counting()) return;
    modulate_adjoint(p.in(x), p.in(scale), p.dout(y), p.din(x), p.din(scale), p.din(shift),
                     p.executor);
  };
  return g.add({.output = y, .inputs = {x, scale, shift}, .read = {x, scale}}, forward, adjoint);
}

/// y = x + gate * h.
template <class T>
Value gated_sum_step(Graph<T>& g, Value x, Value gate, Value h) {
  const Value y = g.value(x.cols);
  const auto forward = [=](const Pass<T>& p) {
    if (!p.counting()) add_gated(p.in(x), p.in(gate), p.in(h), p.out(y), p.executor);
  };
  const auto adjoint = [=](const Pass<T>& p) {
    if (p.counting()) return;
    add_gated_adjoint(p.in(gate), p.in(h), p.dout(y), p.din(x), p.din(gate), p.din(h), p.executor);
  };
  return g.add({.output = y, .inputs = {x, gate, h}, .read = {gate, h}}, forward, adjoint);
}

/// x + gate * part(norm(x) * (1 + scale) + shift), where backward computes the part's input again.
/// \param norm  norm(x) adds the norm's step
/// \param part  part(n) adds the steps of the part
template <class T, class Norm, class Part>
Value branch_steps(Graph<T>& g, Value x, const Modulation& m, Index branch, const Norm& norm,
                   const Part& part) {
  Value n = g.remade(norm(x));
  if (m.all.absent()) return residual_step(g, part(n), x);
  n = g.remade(modulate_step(g, n, m.scale(branch), m.shift(branch)));
  return gated_sum_step(g, x, m.gate(branch), part(n));
}

namespace detail {

/// Returns the options of a block that all families have, after checking that they fit each other.
/// The attention has the block's channels.
/// \tparam Attention  family of the attention
/// \param hidden_of   hidden_of(channels): width of the feed-forward part if the option is 0
template <class Attention, class Options, class HiddenOf>
Options checked_block(const char* function, Options o, const HiddenOf& hidden_of) {
  expect_channels(function, o.channels);
  const Index hidden = hidden_of(o.channels);
  expect_not_negative(function, "norm_eps", o.norm_eps);
  Index& channels = o.attention.channels;
  if (channels != 0 && channels != o.channels) {
    fail_option(function, "attention.channels", "is " + std::to_string(channels),
                "0, or the " + std::to_string(o.channels) + " channels of the block");
  }
  channels = o.channels;
  o.attention = Attention::checked(o.attention);
  if (o.hidden < 0) {
    fail_option(function, "hidden", "is " + std::to_string(o.hidden),
                "0 for " + std::to_string(hidden) + ", or more");
  }
  if (o.hidden == 0) o.hidden = hidden;
  return o;
}

/// A layer norm of a block, with affine parameters NAME.{weight,bias} or without.
template <class T>
auto layer_norm_of(Graph<T>& g, Index channels, double eps, const std::string& name, bool affine) {
  const auto gain = g.tensor(name + ".weight", {channels}, Initial::ones(), affine);
  const auto shift = g.tensor(name + ".bias", {channels}, Initial::zeros(), affine);
  return [=, &g](Value x) { return layer_norm_step(g, x, gain, shift, eps); };
}

}  // namespace detail
}  // namespace MHLA_TARGET
}  // namespace mhla

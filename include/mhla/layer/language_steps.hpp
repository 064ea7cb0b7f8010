#pragma once

/// \file
/// The steps of the language layer (language_layer.hpp). Each runs whole sequences, and the next
/// tokens of the sequences of a state (language_state.hpp).

#include <algorithm>
#include <array>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <variant>

#include "mhla/attention/causal.hpp"
#include "mhla/attention/streaming.hpp"
#include "mhla/core/arch.hpp"
#include "mhla/core/matrix.hpp"
#include "mhla/core/scalar.hpp"
#include "mhla/gradient/causal.hpp"
#include "mhla/layer/body.hpp"
#include "mhla/layer/graph.hpp"
#include "mhla/layer/head_map.hpp"
#include "mhla/layer/language_decoding.hpp"
#include "mhla/layer/language_maps.hpp"
#include "mhla/layer/language_parameters.hpp"
#include "mhla/layer/mixing_tensor.hpp"
#include "mhla/layer/parameters.hpp"
#include "mhla/layer/rotary.hpp"
#include "mhla/layer/short_convolution.hpp"
#include "mhla/layer/step.hpp"

namespace mhla {
inline namespace MHLA_TARGET {
namespace detail {

/// \param tail  number of the convolution's last inputs in a state
template <class T>
Value short_convolution_step(Graph<T>& g, Value x, const WeightSlices<ConvolutionView>& w,
                             std::size_t tail) {
  const Value y = g.value(x.cols);
  const Index taps = w.weight.cols;
  const auto forward = [=](const Pass<T>& p) {
    if (p.counting()) return p.needs(short_convolution_workspace_bytes<T>(x.cols, taps));
    const auto from = p.in(x);
    const auto to = p.out(y);
    if (p.decoding == nullptr) {
      return short_convolution(from, w(p.parameters), {.batch = p.sizes.batch}, to, {}, p.call());
    }
    p.decoding->for_each_run([&](const SequenceRun& run) {
      const Index kept = taps - 1;
      short_convolution(run.of(from), w(p.parameters), {.batch = run.count}, run.of(to),
                        p.decoding->tails[tail].middle_rows(run.begin * kept, run.count * kept),
                        p.call());
    });
  };
  const auto adjoint = [=](const Pass<T>& p) {
    const ShortConvolutionOptions options{.batch = p.sizes.batch};
    if (p.counting()) {
      return p.needs(
          short_convolution_adjoint_workspace_bytes<T>(p.rows(x), x.cols, taps, options));
    }
    short_convolution_adjoint(p.in(x), w(p.parameters), options, p.dout(y), p.din(x),
                              w(p.gradients), p.call());
  };
  return g.add({.output = y, .inputs = {x}, .read = {x}}, forward, adjoint);
}

/// A feature map of the heads.
/// \param weights  of the map
/// \param map      number of the map in a state
template <class T>
Value map_step(Graph<T>& g, Value x, Index heads, const std::string& name, ParameterSlice weights,
               std::size_t map) {
  const Index width = x.cols / heads;
  const Value y = g.value(heads * language_features(name, width));
  const std::size_t scratch = counted_bytes(
      [&](Arena& arena) { return arena.take<T>("", language_map_scratch(name, width)); });
  // Calls f with the map, whose scratch is at the beginning of the workspace.
  const auto with_map = [=](const Pass<T>& p, const auto& f) {
    if (p.decoding != nullptr) return std::visit(f, p.decoding->shared.maps[map]);
    std::visit(f, language_map<T>(name, width, weights.numbers(p.parameters),
                                  reinterpret_cast<T*>(p.rest.data())));
  };
  const auto forward = [=](const Pass<T>& p) {
    if (p.counting()) return p.needs(p.decoding == nullptr ? scratch : 0);
    with_map(p, [&](const auto& phi) { map_heads(p.in(x), phi, heads, p.out(y), p.executor); });
  };
  const auto adjoint = [=](const Pass<T>& p) {
    if (p.counting()) {
      return p.needs(scratch +
                     map_heads_adjoint_workspace_bytes<T>(p.rows(x), width, weights.cols));
    }
    const Call call{.workspace = p.rest.subspan(scratch), .executor = p.executor};
    with_map(p, [&](const auto& phi) {
      map_heads_adjoint(p.in(x), phi, heads, p.in(y), p.dout(y), p.din(x),
                        weights.numbers(p.gradients), call);
    });
  };
  return g.add({.output = y, .inputs = {x}, .read = {x, y}}, forward, adjoint);
}

/// \param table  of the most tokens of a sequence, once the graph is prepared
template <class T>
Value sequence_rotary_step(Graph<T>& g, Value x, std::shared_ptr<const RotaryTable<T>> table,
                           Index heads) {
  const Value y = g.value(x.cols);
  const auto angles = [=](const Pass<T>& p) {
    return table->rows(0, p.sizes.batch == 0 ? 0 : p.sizes.rows / p.sizes.batch);
  };
  const auto forward = [=](const Pass<T>& p) {
    if (p.counting()) return;
    const auto from = p.in(x);
    const auto to = p.out(y);
    if (p.decoding == nullptr) return rotary(from, angles(p), heads, to, p.executor);
    p.decoding->for_each_run([&](const SequenceRun& run) {
      rotary(run.of(from), table->rows(run.position, run.tokens), heads, run.of(to), p.executor);
    });
  };
  const auto adjoint = [=](const Pass<T>& p) {
    if (!p.counting()) rotary_adjoint(p.dout(y), angles(p), heads, p.din(x), p.executor);
  };
  return g.add({.output = y, .inputs = {x}}, forward, adjoint);
}

/// Causal MHLA. Query heads `group`, `group` + groups, ... read the key heads in turn.
template <class T>
Value causal_step(Graph<T>& g, Value q, Value k, Value v, const LanguageOptions& o,
                  const MixingTensor& mixing) {
  const LanguageSizes s(o);
  const Value y = g.value(s.heads * s.values);
  const ContiguousBlocks blocks{o.chunk};
  const auto op = language_operator(o);
  // Chunks that a pass mixes: a table makes matrices of no more than a sequence has.
  const auto chunks_of = [=, most = o.chunks, chunk = o.chunk](const Pass<T>& p) {
    if (!mixing.is_table()) return most;
    return std::max<Index>(1, ceil_div(p.sizes.rows / p.sizes.batch, chunk));
  };
  const char* const name = g.name();
  const auto heads = [=](const Pass<T>& p, const auto& rows, Index width, Index group, Index step) {
    return split_heads(rows, p.sizes.batch, s.key_heads, width / s.key_heads / step, group, step);
  };
  const auto inputs = [=](const Pass<T>& p, Index group) {
    return BatchInputs<T>{.q = heads(p, p.in(q), q.cols, group, s.groups()),
                          .k = heads(p, p.in(k), k.cols, 0, 1),
                          .v = heads(p, p.in(v), v.cols, 0, 1)};
  };
  const auto outputs = [=](const Pass<T>& p, const auto& rows, Index group) {
    return heads(p, rows, y.cols, group, s.groups());
  };
  // Matrices of the query heads of a group: one per key head, or one for all heads.
  const auto of_group = [=](const auto& matrices, Index group) {
    return matrices.of_heads(group, s.groups(), s.key_heads);
  };
  const auto call = [=](const Pass<T>& p, Workspace rest, Index group) {
    const std::size_t share = p.kept.size() / static_cast<std::size_t>(s.groups());
    return Call{rest, p.executor, p.kept.subspan(static_cast<std::size_t>(group) * share, share)};
  };
  const auto forward = [=](const Pass<T>& p) {
    const Decoding<T>* const d = p.decoding;
    if (p.counting_kept()) {
      return p.keeps(static_cast<std::size_t>(s.groups()) *
                     causal_kept_bytes(inputs(p, 0), blocks, op));
    }
    if (p.counting()) {
      return p.needs(d == nullptr ? MixingOfPass<T>::bytes(mixing, chunks_of(p), false) +
                                        causal_workspace_bytes(inputs(p, 0), blocks, op, p.executor)
                                  : append_workspace_bytes(d->shared.stream, p.executor));
    }
    if (d == nullptr) {
      const MixingOfPass<T> w(name, mixing, chunks_of(p), p, false);
      for (Index group = 0; group < s.groups(); ++group) {
        causal(inputs(p, group), blocks, of_group(w.matrices(), group), op,
               outputs(p, p.out(y), group), call(p, w.rest(), group));
      }
      return;
    }
    for (Index group = 0; group < s.groups(); ++group) {
      BatchInputs<T> in = inputs(p, group);
      const std::size_t count = d->heads.size() / static_cast<std::size_t>(s.groups());
      in.query_offsets = in.key_offsets = d->offsets;
      append(d->shared.stream, d->heads.subspan(static_cast<std::size_t>(group) * count, count), in,
             outputs(p, p.out(y), group), p.call());
    }
  };
  const auto adjoint = [=](const Pass<T>& p) {
    const Index chunks = chunks_of(p);
    if (p.counting()) {
      const MixingView<const T> absent(nullptr, mixing.pattern(chunks),
                                       o.mixing_per_head ? s.key_heads : 1, chunks * chunks);
      return p.needs(MixingOfPass<T>::bytes(mixing, chunks, true) +
                     causal_gradient_workspace_bytes(inputs(p, 0), blocks, absent, op, p.executor));
    }
    const MixingOfPass<T> w(name, mixing, chunks, p, true);
    for (Index group = 0; group < s.groups(); ++group) {
      causal_gradient(inputs(p, group), blocks, of_group(w.matrices(), group), op,
                      outputs(p, p.dout(y), group),
                      {.q = heads(p, p.din(q), q.cols, group, s.groups()),
                       .k = heads(p, p.din(k), k.cols, 0, 1),
                       .v = heads(p, p.din(v), v.cols, 0, 1)},
                      {.mixing = of_group(w.gradient(), group)}, call(p, w.rest(), group));
    }
    w.add_gradient();
  };
  return g.add({.output = y, .inputs = {q, k, v}, .read = {q, k, v}, .keeps = true}, forward,
               adjoint);
}

}  // namespace detail
}  // namespace MHLA_TARGET
}  // namespace mhla

#pragma once

/// \file
/// The backward part of the language layer (language_body.hpp).

#include <algorithm>
#include <span>
#include <utility>
#include <variant>

#include "mhla/core/arch.hpp"
#include "mhla/core/matrix.hpp"
#include "mhla/core/workspace.hpp"
#include "mhla/gradient/causal.hpp"
#include "mhla/layer/dense.hpp"
#include "mhla/layer/head_map.hpp"
#include "mhla/layer/language_body.hpp"
#include "mhla/layer/rms_norm.hpp"
#include "mhla/layer/rotary.hpp"
#include "mhla/layer/short_convolution.hpp"

namespace mhla {
inline namespace MHLA_TARGET {
namespace detail {

template <Accumulator T>
LanguageBody<T>::BackwardScratch::BackwardScratch(Arena& arena, const LanguageBody& body,
                                                  LayerRows rows, const ExecutorRef& executor)
    : Activations(arena, body, rows) {
  const LanguageSizes& s = body.sizes_;
  const LanguageOptions& o = body.options_;
  const Index widest = s.heads * std::max(s.width, s.values);
  const Index map_weights = layers_of_map(o.feature_map).count * s.width * (s.width + 1);
  std::size_t bytes =
      std::max({dense_adjoint_workspace_bytes<T>(rows.rows, s.heads * s.values, o.channels),
                map_heads_adjoint_workspace_bytes<T>(rows.rows, s.width, map_weights),
                rms_norm_adjoint_workspace_bytes<T>(rows.rows, s.values),
                gated_rms_norm_adjoint_workspace_bytes<T>(rows.rows, s.values),
                causal_gradient_workspace_bytes(
                    body.inputs(*this, 0), body.blocks(),
                    MixingView<const T>(nullptr, Pattern(o.chunks, o.chunks),
                                        o.mixing_per_head ? s.key_heads : 1, o.chunks * o.chunks),
                    body.op(), executor)});
  for (const Index outputs :
       {s.heads * s.width, s.key_heads * s.width, s.key_heads * s.values, s.heads * s.values}) {
    bytes = std::max(bytes, dense_adjoint_workspace_bytes<T>(rows.rows, o.channels, outputs));
  }
  if (o.short_convolution) {
    bytes = std::max(bytes, short_convolution_adjoint_workspace_bytes<T>(
                                rows.rows, widest, o.convolution_taps, {.batch = rows.batch}));
  }
  maps = body.take_maps(arena);
  rest = take_bytes(kName, arena, bytes);
}

template <Accumulator T>
void LanguageBody<T>::project_adjoint(MatrixView<const T> x, MatrixView<T> projected,
                                      MatrixView<T> dprojected, MatrixView<T> dconvolved,
                                      const DenseView<const T>& weights,
                                      const ConvolutionView<const T>& convolution, MatrixView<T> dx,
                                      const DenseView<T>& dweights,
                                      const ConvolutionView<T>& dconvolution, Index batch,
                                      const Call& call) const {
  if (options_.short_convolution) {
    clear(dprojected, call.executor);
    short_convolution_adjoint(projected, convolution, {.batch = batch}, dconvolved, dprojected,
                              dconvolution, call);
  }
  dense_adjoint(x, weights, dprojected, dx, dweights, call);
}

template <Accumulator T>
void LanguageBody<T>::path_adjoint(MatrixView<const T> x, const Path& path, const Path& gradient,
                                   Index heads, const DenseView<const T>& weights,
                                   const ConvolutionView<const T>& convolution,
                                   const LanguageMap<T>& map, MatrixView<T> dx,
                                   const DenseView<T>& dweights,
                                   const ConvolutionView<T>& dconvolution, std::span<T> dmap,
                                   Index batch, const Call& call) const {
  clear(gradient.features, call.executor);
  clear(gradient.convolved, call.executor);
  const Index n = batch == 0 ? 0 : x.rows / batch;
  rotary_adjoint(gradient.rotated, angles_.rows(0, n), heads, gradient.features, call.executor);
  std::visit(
      [&](const auto& phi) {
        map_heads_adjoint(path.convolved, phi, heads, path.features, gradient.features,
                          gradient.convolved, dmap, call);
      },
      map);
  project_adjoint(x, path.projected, gradient.projected, gradient.convolved, weights, convolution,
                  dx, dweights, dconvolution, batch, call);
}

template <Accumulator T>
void LanguageBody<T>::backward(std::span<const T> parameters, MatrixView<const T> x,
                               const Tape& tape, MatrixView<const T> dy, MatrixView<T> dx,
                               std::span<T> gradients, const BackwardScratch& scratch,
                               const ExecutorRef& executor) const {
  const Call call{.workspace = scratch.rest, .executor = executor};
  const auto p = views(parameters);
  const auto g = views(gradients);
  const Index batch = tape.sizes.batch;
  const MatrixView<T> added_to[] = {scratch.mixed, scratch.attention, scratch.gate,
                                    scratch.v,     scratch.q.rotated, scratch.k.rotated};
  for (const MatrixView<T>& sum : added_to) clear(sum, executor);
  dense_adjoint(tape.mixed, p.o, dy, scratch.mixed, g.o, call);
  if (options_.gate) {
    gated_rms_norm_adjoint(tape.attention, p.head_gain, options_.norm_eps, tape.gate, scratch.mixed,
                           scratch.attention, g.head_gain, scratch.gate, call);
    dense_adjoint(x, p.gate, scratch.gate, dx, g.gate, call);
  } else {
    rms_norm_adjoint(tape.attention, p.head_gain, options_.norm_eps, scratch.mixed,
                     scratch.attention, g.head_gain, call);
  }
  for (Index group = 0; group < sizes_.groups(); ++group) {
    const Index heads = sizes_.key_heads, groups = sizes_.groups();
    causal_gradient(
        inputs(tape, group), blocks(), p.mixing_of(group, sizes_), op(),
        outputs(scratch.attention, batch, group),
        {.q = split_heads(scratch.q.rotated, batch, heads, features_, group, groups),
         .k = split_heads(scratch.k.rotated, batch, heads, features_),
         .v = split_heads(scratch.v, batch, heads, sizes_.values)},
        {.mixing = g.mixing_of(group, sizes_)},
        {.workspace = scratch.rest, .executor = executor, .kept = summaries(tape, group)});
  }
  project_adjoint(x, tape.projected_v, scratch.projected_v, scratch.v, p.v, p.v_convolution, dx,
                  g.v, g.v_convolution, batch, call);
  const LanguageMaps<T> phi = maps(p, scratch.maps);
  path_adjoint(x, tape.q, scratch.q, sizes_.heads, p.q, p.q_convolution, phi.q, dx, g.q,
               g.q_convolution, g.q_map, batch, call);
  path_adjoint(x, tape.k, scratch.k, sizes_.key_heads, p.k, p.k_convolution, phi.k, dx, g.k,
               g.k_convolution, g.k_map, batch, call);
}

}  // namespace detail
}  // namespace MHLA_TARGET
}  // namespace mhla

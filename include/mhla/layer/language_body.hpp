#pragma once

/// \file
/// The body of the language layer (language_layer.hpp). language_backward.hpp defines the backward
/// part.

#include <algorithm>
#include <cmath>
#include <span>
#include <string>
#include <variant>

#include "mhla/attention/causal.hpp"
#include "mhla/core/arch.hpp"
#include "mhla/core/matrix.hpp"
#include "mhla/core/tensor.hpp"
#include "mhla/core/workspace.hpp"
#include "mhla/layer/dense.hpp"
#include "mhla/layer/head_map.hpp"
#include "mhla/layer/language_maps.hpp"
#include "mhla/layer/language_parameters.hpp"
#include "mhla/layer/layer.hpp"
#include "mhla/layer/rms_norm.hpp"
#include "mhla/layer/rotary.hpp"
#include "mhla/layer/short_convolution.hpp"

namespace mhla {
inline namespace MHLA_TARGET {
namespace detail {

template <Accumulator T>
class LanguageBody {
 public:
  using Scalar = T;
  using Options = LanguageOptions;
  using Op = Operator<Identity, Identity, NoNormalizer>;
  static constexpr const char* kName = "LanguageLayer";
  static constexpr const char* kBackwardName = "LanguageLayer::backward";
  static constexpr const char* kOutput = "o_proj.weight";

  /// Queries or keys between projection and attention.
  struct Path {
    MatrixView<T> projected;  // [rows, heads*D]
    MatrixView<T> convolved;  // projected if there is no short convolution
    MatrixView<T> features;   // [rows, heads*F]
    MatrixView<T> rotated;
  };
  /// Intermediate values of a forward pass, or their gradients.
  struct Activations {
    Path q, k;
    MatrixView<T> projected_v, v;    // [rows, Hk*E]
    MatrixView<T> gate;              // [rows, H*E]
    MatrixView<T> attention, mixed;  // [rows, H*E]
    LayerRows sizes;

    Activations(Arena& arena, const LanguageBody& body, LayerRows rows);
  };
  /// Values that backward reads.
  struct Tape : Activations {
    Workspace summaries;  // of each group of query heads

    Tape(Arena& arena, const LanguageBody& body, LayerRows rows);
  };
  struct ForwardScratch {
    T* maps;  // scratch of the feature maps
    Workspace rest;
    ForwardScratch(Arena& arena, const LanguageBody& body, LayerRows rows,
                   const ExecutorRef& executor);
  };
  struct BackwardScratch : Activations {
    T* maps;
    Workspace rest;
    BackwardScratch(Arena& arena, const LanguageBody& body, LayerRows rows,
                    const ExecutorRef& executor);
  };

  explicit LanguageBody(const LanguageOptions& options)
      : options_(checked_language_options(options)),
        sizes_(options),
        features_(language_features(options.feature_map, sizes_.width)),
        tensors_(table_, options) {}
  void prepare() {
    angles_ = RotaryTable<T>::sequence(most_tokens(), sizes_.width, {.base = options_.rotary_base});
  }

  const LanguageOptions& options() const { return options_; }
  const ParameterTable& table() const { return table_; }
  const LanguageSizes& sizes() const { return sizes_; }
  Index features() const { return features_; }
  Index tokens() const { return 0; }  ///< any number, up to the next
  Index most_tokens() const { return options_.chunk * options_.chunks; }
  const RotaryTable<T>& angles() const { return angles_; }
  /// Bytes of workspace of the short convolutions; 0 without them.
  std::size_t convolution_bytes() const {
    const Index widest = sizes_.heads * std::max(sizes_.width, sizes_.values);
    return options_.short_convolution
               ? short_convolution_workspace_bytes<T>(widest, options_.convolution_taps)
               : 0;
  }
  Op op() const { return {{}, {}, {}, 1 / std::sqrt(static_cast<double>(features_))}; }

  LanguageParameters<const T> views(std::span<const T> row) const { return {tensors_, row}; }
  LanguageParameters<T> views(std::span<T> row) const { return {tensors_, row}; }
  /// Returns the inputs of the query heads `group`, `group` + groups, ...: one per key head.
  BatchInputs<T> inputs(const Activations& t, Index group) const {
    const auto [rows, batch] = t.sizes;
    return {
        .q = split_heads(t.q.rotated, batch, sizes_.key_heads, features_, group, sizes_.groups()),
        .k = split_heads(t.k.rotated, batch, sizes_.key_heads, features_),
        .v = split_heads(t.v, batch, sizes_.key_heads, sizes_.values)};
  }
  TensorView<T> outputs(const MatrixView<T>& x, Index batch, Index group) const {
    return split_heads(x, batch, sizes_.key_heads, sizes_.values, group, sizes_.groups());
  }

  /// The inputs of attention.
  /// \param runs    runs(f) calls f for each SequenceRun of the rows
  /// \param tails   the last inputs of the convolutions, or absent at the start of sequences
  /// \param packed  packed projections, or null for the projections of p
  template <class Runs>
  void attention_inputs(const LanguageParameters<const T>& p, const LanguageMaps<T>& maps,
                        MatrixView<const T> x, const Activations& tape, const Runs& runs,
                        const LanguageTails<T>& tails, const PackedLanguage<T>* packed,
                        const Call& call) const;
  /// Norm and gate of the outputs of attention.
  void finish(const LanguageParameters<const T>& p, MatrixView<const T> x, const Activations& tape,
              const PackedLanguage<T>* packed, const Call& call) const;
  /// Computes everything up to `mixed`.
  void record(std::span<const T> parameters, MatrixView<const T> x, const Tape& tape,
              const ForwardScratch& scratch, const ExecutorRef& executor) const;
  void write(std::span<const T> parameters, const Tape& tape, MatrixView<T> y,
             const ForwardScratch& scratch, const ExecutorRef& executor) const {
    dense(tape.mixed, views(parameters).o, y, {.workspace = scratch.rest, .executor = executor});
  }
  void backward(std::span<const T> parameters, MatrixView<const T> x, const Tape& tape,
                MatrixView<const T> dy, MatrixView<T> dx, std::span<T> gradients,
                const BackwardScratch& scratch, const ExecutorRef& executor) const;

 private:
  ContiguousBlocks blocks() const { return {options_.chunk}; }
  T* take_maps(Arena& arena) const {
    return arena.take<T>(kName, {2, language_map_scratch(options_.feature_map, sizes_.width)});
  }
  LanguageMaps<T> maps(const LanguageParameters<const T>& p, T* scratch) const {
    return {options_, sizes_.width, p.q_map, p.k_map, scratch};
  }
  Path take_path(Arena& arena, Index rows, Index heads) const;
  static void project_to(MatrixView<const T> x, const DenseView<const T>& weights,
                         const PackedDense<T>* packed, MatrixView<T> y, const Call& call) {
    if (packed != nullptr) return dense(x, *packed, y, call.executor);
    dense(x, weights, y, call);
  }
  Workspace summaries(const Tape& tape, Index group) const {
    const std::size_t share = tape.summaries.size() / static_cast<std::size_t>(sizes_.groups());
    return tape.summaries.subspan(static_cast<std::size_t>(group) * share, share);
  }
  /// Adds the gradient of x and of parameters along one path.
  void path_adjoint(MatrixView<const T> x, const Path& path, const Path& gradient, Index heads,
                    const DenseView<const T>& weights, const ConvolutionView<const T>& convolution,
                    const LanguageMap<T>& map, MatrixView<T> dx, const DenseView<T>& dweights,
                    const ConvolutionView<T>& dconvolution, std::span<T> dmap, Index batch,
                    const Call& call) const;
  void project_adjoint(MatrixView<const T> x, MatrixView<T> projected, MatrixView<T> dprojected,
                       MatrixView<T> dconvolved, const DenseView<const T>& weights,
                       const ConvolutionView<const T>& convolution, MatrixView<T> dx,
                       const DenseView<T>& dweights, const ConvolutionView<T>& dconvolution,
                       Index batch, const Call& call) const;

  LanguageOptions options_;
  LanguageSizes sizes_;
  Index features_;  // F of a head
  ParameterTable table_;
  LanguageSlices tensors_;
  RotaryTable<T> angles_;  // of the most tokens
};

// ------------------------------------------------------------------------------------------------

template <Accumulator T>
typename LanguageBody<T>::Path LanguageBody<T>::take_path(Arena& arena, Index rows,
                                                          Index heads) const {
  Path path;
  path.projected = path.convolved = take_matrix<T>(kName, arena, rows, heads * sizes_.width);
  if (options_.short_convolution) {
    path.convolved = take_matrix<T>(kName, arena, rows, heads * sizes_.width);
  }
  path.features = take_matrix<T>(kName, arena, rows, heads * features_);
  path.rotated = take_matrix<T>(kName, arena, rows, heads * features_);
  return path;
}

template <Accumulator T>
LanguageBody<T>::Activations::Activations(Arena& arena, const LanguageBody& body, LayerRows rows)
    : sizes(rows) {
  const LanguageSizes& s = body.sizes_;
  q = body.take_path(arena, rows.rows, s.heads);
  k = body.take_path(arena, rows.rows, s.key_heads);
  projected_v = v = take_matrix<T>(kName, arena, rows.rows, s.key_heads * s.values);
  if (body.options_.short_convolution) {
    v = take_matrix<T>(kName, arena, rows.rows, s.key_heads * s.values);
  }
  const auto take = [&] { return take_matrix<T>(kName, arena, rows.rows, s.heads * s.values); };
  if (body.options_.gate) gate = take();
  attention = take(), mixed = take();
}

template <Accumulator T>
LanguageBody<T>::Tape::Tape(Arena& arena, const LanguageBody& body, LayerRows rows)
    : Activations(arena, body, rows) {
  const std::size_t share = causal_kept_bytes(body.inputs(*this, 0), body.blocks(), body.op());
  summaries = take_bytes(kName, arena, share, static_cast<std::size_t>(body.sizes_.groups()));
}

template <Accumulator T>
LanguageBody<T>::ForwardScratch::ForwardScratch(Arena& arena, const LanguageBody& body,
                                                LayerRows rows, const ExecutorRef& executor) {
  const LanguageSizes& s = body.sizes_;
  const Index c = body.options_.channels, widest = s.heads * std::max(s.width, s.values);
  Arena counting;
  const Tape tape(counting, body, rows);
  const std::size_t bytes = std::max(
      {dense_workspace_bytes<T>(c, widest), dense_workspace_bytes<T>(s.heads * s.values, c),
       causal_workspace_bytes(body.inputs(tape, 0), body.blocks(), body.op(), executor),
       body.convolution_bytes()});
  maps = body.take_maps(arena);
  rest = take_bytes(kName, arena, bytes);
}

template <Accumulator T>
template <class Runs>
void LanguageBody<T>::attention_inputs(const LanguageParameters<const T>& p,
                                       const LanguageMaps<T>& maps, MatrixView<const T> x,
                                       const Activations& tape, const Runs& runs,
                                       const LanguageTails<T>& tails,
                                       const PackedLanguage<T>* packed, const Call& call) const {
  const Index kept = options_.convolution_taps - 1;
  const auto project = [&](const DenseView<const T>& weights, const PackedDense<T>* packed_weights,
                           const ConvolutionView<const T>& convolution, MatrixView<T> projected,
                           MatrixView<T> convolved, MatrixView<T> tail) {
    project_to(x, weights, packed_weights, projected, call);
    if (!options_.short_convolution) return;
    runs([&](const SequenceRun& run) {
      const auto to = tail.absent() ? tail : tail.middle_rows(run.begin * kept, run.count * kept);
      short_convolution(run.of(projected), convolution, {.batch = run.count}, run.of(convolved), to,
                        call);
    });
  };
  const auto turn = [&](const Path& path, Index heads, const LanguageMap<T>& map) {
    const auto apply = [&](const auto& phi) {
      map_heads(path.convolved, phi, heads, path.features, call.executor);
    };
    std::visit(apply, map);
    runs([&](const SequenceRun& run) {
      rotary(run.of(path.features), angles_.rows(run.position, run.tokens), heads,
             run.of(path.rotated), call.executor);
    });
  };
  project(p.q, packed == nullptr ? nullptr : &packed->q, p.q_convolution, tape.q.projected,
          tape.q.convolved, tails.q);
  turn(tape.q, sizes_.heads, maps.q);
  project(p.k, packed == nullptr ? nullptr : &packed->k, p.k_convolution, tape.k.projected,
          tape.k.convolved, tails.k);
  turn(tape.k, sizes_.key_heads, maps.k);
  project(p.v, packed == nullptr ? nullptr : &packed->v, p.v_convolution, tape.projected_v, tape.v,
          tails.v);
}

template <Accumulator T>
void LanguageBody<T>::finish(const LanguageParameters<const T>& p, MatrixView<const T> x,
                             const Activations& tape, const PackedLanguage<T>* packed,
                             const Call& call) const {
  if (!options_.gate) {
    rms_norm(tape.attention, p.head_gain, options_.norm_eps, tape.mixed, call.executor);
    return;
  }
  project_to(x, p.gate, packed == nullptr ? nullptr : &*packed->gate, tape.gate, call);
  gated_rms_norm(tape.attention, p.head_gain, options_.norm_eps, tape.gate, tape.mixed,
                 call.executor);
}

template <Accumulator T>
void LanguageBody<T>::record(std::span<const T> parameters, MatrixView<const T> x, const Tape& tape,
                             const ForwardScratch& scratch, const ExecutorRef& executor) const {
  const Call call{.workspace = scratch.rest, .executor = executor};
  const auto p = views(parameters);
  const Index batch = tape.sizes.batch;
  const auto runs = [&](const auto& f) { f(SequenceRun{0, batch, 0, x.rows / batch, 0}); };
  attention_inputs(p, maps(p, scratch.maps), x, tape, runs, {}, nullptr, call);
  for (Index group = 0; group < sizes_.groups(); ++group) {
    causal(inputs(tape, group), blocks(), p.mixing_of(group, sizes_), op(),
           outputs(tape.attention, tape.sizes.batch, group),
           {.workspace = scratch.rest, .executor = executor, .kept = summaries(tape, group)});
  }
  finish(p, x, tape, nullptr, call);
}

}  // namespace detail
}  // namespace MHLA_TARGET
}  // namespace mhla

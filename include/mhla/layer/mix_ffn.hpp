#pragma once

/// \file
/// The feed-forward part that mixes neighbours of an image: a depthwise convolution of 3 x 3
/// between its two dense layers. For B images of N tokens and C channels, with a width H:
///
///     GatedMix:     e = silu(x W1^T + b1)                                          [B*N, 2H]
///                   u, g = convolution(e),   y = (u * silu(g)) W2^T                [B*N, C]
///     ResidualMix:  e = erf_gelu(x W1^T + b1)                                      [B*N, H]
///                   y = (e + convolution(e)) W2^T + b2                             [B*N, C]
///
/// GatedMix is SANA's (GLUMBConv), ResidualMix is RALA's. A mix can be used as a layer:
///
///     const MixFfn<float> ffn(file, "blocks.0.mlp.", {.tokens = {32, 32}});
///     ffn(x, y);
///
/// Parameters of SANA are {inverted,depth,point}_conv.conv.{weight,bias}, of RALA
/// {fc1,dwconv,fc2}.{weight,bias}. Dense weights are [O,I,1,1], and the point_conv of SANA has no
/// bias. Cost: 6*B*N*C*H + 36*B*N*H flops gated, 4*B*N*C*H + 18*B*N*H otherwise. Twice the width of
/// the convolution is kept per token. Sources: Xie et al., arXiv:2410.10629 (SANA); Fan et al.,
/// arXiv:2411.07635 (RALA).

#include <algorithm>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "mhla/core/arch.hpp"
#include "mhla/core/call.hpp"
#include "mhla/core/error.hpp"
#include "mhla/core/executor.hpp"
#include "mhla/core/matrix.hpp"
#include "mhla/core/workspace.hpp"
#include "mhla/layer/activation.hpp"
#include "mhla/layer/body.hpp"
#include "mhla/layer/dense.hpp"
#include "mhla/layer/depthwise_convolution.hpp"
#include "mhla/layer/gate.hpp"
#include "mhla/layer/gated_mlp.hpp"
#include "mhla/layer/layer.hpp"
#include "mhla/layer/parameters.hpp"
#include "mhla/layer/rows.hpp"
#include "mhla/policy/grid_partition.hpp"

namespace mhla {
inline namespace MHLA_TARGET {

/// Options of a mix of neighbours.
struct MixFfnOptions {
  GridShape tokens{1};          ///< of an image
  std::vector<Index> places{};  ///< rows of tokens in raster order; empty if that is their order
  Index channels = 0;           ///< C; 0 for that of a file
  Index hidden = 0;             ///< H; 0 for 5C/2, gated, or 3C
};

/// The mix of SANA.
struct GatedMix {
  using Activation = detail::Silu;
  static constexpr bool kGated = true;
  static constexpr const char *kFirst = "inverted_conv.conv", *kConvolution = "depth_conv.conv",
                              *kSecond = "point_conv.conv";
  static constexpr const char* kOutput = "point_conv.conv.weight";
  static constexpr Index hidden(Index channels) { return channels * 5 / 2; }
};
/// The mix of RALA.
struct ResidualMix {
  using Activation = ErfGelu;
  static constexpr bool kGated = false;
  static constexpr const char *kFirst = "fc1", *kConvolution = "dwconv", *kSecond = "fc2";
  static constexpr const char* kOutput = "fc2.weight";
  static constexpr Index hidden(Index channels) { return 3 * channels; }
};

// ------------------------------------------------------------------------------------------------

namespace detail {

/// \tparam Mix  GatedMix or ResidualMix
template <Accumulator T, class Mix>
class MixFfnBody {
  using G = typename Mix::Activation;
  static constexpr Index kSide = 3;

 public:
  using Scalar = T;
  using Options = MixFfnOptions;
  static constexpr const char* kName = "MixFfn";
  static constexpr const char* kBackwardName = "MixFfn::backward";
  static constexpr const char* kOutput = Mix::kOutput;

  struct Tape {
    MatrixView<T> pre, mixed;  // before the activation, after the convolution [rows, W]
    Tape(Arena& arena, const MixFfnBody& body, LayerRows sizes)
        : pre(body.take(arena, sizes)), mixed(body.take(arena, sizes)) {}
  };
  struct ForwardScratch {
    MatrixView<T> expanded;  // e [rows, W]
    MatrixView<T> hidden;    // u * silu(g), if there is a gate [rows, H]
    Workspace rest;
    ForwardScratch(Arena& arena, const MixFfnBody& body, LayerRows sizes, const ExecutorRef&)
        : expanded(body.take(arena, sizes)), hidden(body.take_hidden(arena, sizes)) {
      const Index c = body.options_.channels, h = body.options_.hidden;
      rest = take_bytes(
          kName, arena,
          std::max({dense_workspace_bytes<T>(c, body.width()), dense_workspace_bytes<T>(h, c),
                    depthwise_convolution_workspace_bytes<T>(body.width(), body.kernel())}));
    }
  };
  struct BackwardScratch {
    MatrixView<T> expanded, hidden;
    MatrixView<T> dmixed, dexpanded;  // [rows, W]
    Workspace rest;
    BackwardScratch(Arena& arena, const MixFfnBody& body, LayerRows sizes, const ExecutorRef&)
        : expanded(body.take(arena, sizes)),
          hidden(body.take_hidden(arena, sizes)),
          dmixed(body.take(arena, sizes)),
          dexpanded(body.take(arena, sizes)) {
      const Index c = body.options_.channels, h = body.options_.hidden, w = body.width();
      rest = take_bytes(kName, arena,
                        std::max({dense_adjoint_workspace_bytes<T>(sizes.rows, c, w),
                                  dense_adjoint_workspace_bytes<T>(sizes.rows, h, c),
                                  depthwise_convolution_adjoint_workspace_bytes<T>(
                                      sizes.rows, w, body.kernel())}));
    }
  };

  explicit MixFfnBody(MixFfnOptions options);

  const MixFfnOptions& options() const { return options_; }
  const ParameterTable& table() const { return table_; }
  Index tokens() const { return volume(options_.tokens); }  ///< N

  void record(std::span<const T> parameters, MatrixView<const T> x, const Tape& tape,
              const ForwardScratch& scratch, const ExecutorRef& executor) const;
  void write(std::span<const T> parameters, const Tape& tape, MatrixView<T> y,
             const ForwardScratch& scratch, const ExecutorRef& executor) const {
    dense(gated(tape, scratch.hidden, executor), views(parameters).second, y,
          {.workspace = scratch.rest, .executor = executor});
  }
  void backward(std::span<const T> parameters, MatrixView<const T> x, const Tape& tape,
                MatrixView<const T> dy, MatrixView<T> dx, std::span<T> gradients,
                const BackwardScratch& scratch, const ExecutorRef& executor) const;

 private:
  template <class U>
  struct Views {
    DenseView<U> first, second;      // [W,C], [C,H]
    ConvolutionView<U> convolution;  // [W,9]
  };
  template <class U>
  Views<U> views(std::span<U> row) const {
    return {first_(row), second_(row), convolution_(row)};
  }
  Index width() const { return (Mix::kGated ? 2 : 1) * options_.hidden; }  // W
  GridShape kernel() const { return {kSide, kSide}; }
  DepthwiseGrid grid() const {
    return {.tokens = options_.tokens, .kernel = kernel(), .places = options_.places};
  }
  MatrixView<T> take(Arena& arena, LayerRows sizes) const {
    return take_matrix<T>(kName, arena, sizes.rows, width());
  }
  MatrixView<T> take_hidden(Arena& arena, LayerRows sizes) const {
    return Mix::kGated ? take_matrix<T>(kName, arena, sizes.rows, options_.hidden)
                       : MatrixView<T>();
  }
  /// Returns the input of the second layer: the mixed rows, or u * silu(g) in `hidden`.
  MatrixView<const T> gated(const Tape& tape, const MatrixView<T>& hidden,
                            const ExecutorRef& executor) const;

  MixFfnOptions options_;
  ParameterTable table_;
  WeightSlices<DenseView> first_, second_;
  WeightSlices<ConvolutionView> convolution_;
};

}  // namespace detail

/// The part as a layer: layer.hpp documents it.
template <Accumulator A, class Mix = GatedMix>
using MixFfn = Layer<detail::MixFfnBody<A, Mix>>;

// ------------------------------------------------------------------------------------------------

namespace detail {

template <Accumulator T, class Mix>
MixFfnBody<T, Mix>::MixFfnBody(MixFfnOptions options) : options_(std::move(options)) {
  const Index c = options_.channels;
  expect_grid(kName, "tokens", options_.tokens);
  expect_places(kName, options_.places, tokens());
  expect_channels(kName, c);
  if (options_.hidden < 0) {
    fail_option(kName, "hidden", "is " + std::to_string(options_.hidden),
                "0 for " + std::to_string(Mix::hidden(c)) + ", or more");
  }
  if (options_.hidden == 0) options_.hidden = Mix::hidden(c);
  checked_product(kName, "hidden", {2, options_.hidden});
  first_ = {table_, Mix::kFirst, {width(), c, 1, 1}};
  convolution_ = {table_, Mix::kConvolution, {width(), 1, kSide, kSide}};
  second_ = {table_, Mix::kSecond, {c, options_.hidden, 1, 1}, !Mix::kGated};
}

template <Accumulator T, class Mix>
MatrixView<const T> MixFfnBody<T, Mix>::gated(const Tape& tape, const MatrixView<T>& hidden,
                                              const ExecutorRef& executor) const {
  if (!Mix::kGated) return tape.mixed;
  const MatrixView<T> u = columns_of(tape.mixed, 0, 2), g = columns_of(tape.mixed, 1, 2);
  gate(u, g, hidden, GateFunction::kSilu, executor);
  return hidden;
}

template <Accumulator T, class Mix>
void MixFfnBody<T, Mix>::record(std::span<const T> parameters, MatrixView<const T> x,
                                const Tape& tape, const ForwardScratch& scratch,
                                const ExecutorRef& executor) const {
  const Call call{.workspace = scratch.rest, .executor = executor};
  const auto p = views(parameters);
  dense(x, p.first, tape.pre, call);
  activate<G, T>(kName, tape.pre, scratch.expanded, executor);
  depthwise_convolution(scratch.expanded, p.convolution, grid(), tape.mixed, call);
  if (!Mix::kGated) add<T>(scratch.expanded, tape.mixed, executor);
}

template <Accumulator T, class Mix>
void MixFfnBody<T, Mix>::backward(std::span<const T> parameters, MatrixView<const T> x,
                                  const Tape& tape, MatrixView<const T> dy, MatrixView<T> dx,
                                  std::span<T> gradients, const BackwardScratch& scratch,
                                  const ExecutorRef& executor) const {
  const Call call{.workspace = scratch.rest, .executor = executor};
  const auto p = views(parameters);
  const auto g = views(gradients);
  clear(scratch.dmixed, executor);
  clear(scratch.dexpanded, executor);
  const MatrixView<T> dhidden = Mix::kGated ? columns_of(scratch.dmixed, 0, 2) : scratch.dmixed;
  dense_adjoint(gated(tape, scratch.hidden, executor), p.second, dy, dhidden, g.second, call);
  if (Mix::kGated) {
    const Index h = options_.hidden;  // columns of u and of its gradient, followed by those of g
    for_each_layer_strip(x.rows, executor, [&](Index begin, Index count) {
      for (Index r = begin; r < begin + count; ++r) {
        T *const mixed = tape.mixed.row(r), *const dmixed = scratch.dmixed.row(r);
        multiply_gate_adjoint<T>(mixed + h, mixed, dmixed + h, dmixed, scratch.hidden.row(r), h);
      }
    });
  } else {
    add<T>(scratch.dmixed, scratch.dexpanded, executor);
  }
  activate<G, T>(kName, tape.pre, scratch.expanded, executor);
  depthwise_convolution_adjoint(scratch.expanded, p.convolution, grid(), scratch.dmixed,
                                scratch.dexpanded, g.convolution, call);
  const MatrixView<T>& dpre = scratch.dmixed;  // which has been read
  clear(dpre, executor);
  activate_adjoint<G, T>(kName, tape.pre, scratch.dexpanded, dpre, executor);
  dense_adjoint(x, p.first, dpre, dx, g.first, call);
}

}  // namespace detail
}  // namespace MHLA_TARGET
}  // namespace mhla

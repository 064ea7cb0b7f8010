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

#include <string>
#include <vector>

#include "mhla/core/arch.hpp"
#include "mhla/core/error.hpp"
#include "mhla/layer/activation.hpp"
#include "mhla/layer/block.hpp"
#include "mhla/layer/depthwise_convolution.hpp"
#include "mhla/layer/gated_mlp.hpp"
#include "mhla/layer/graph.hpp"
#include "mhla/layer/layer.hpp"
#include "mhla/layer/rows.hpp"
#include "mhla/layer/steps.hpp"
#include "mhla/layer/vision_layer.hpp"
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

/// hidden = u * silu(g) of the columns u and g of a value. The gradient of hidden lies in that of
/// u, where the adjoint puts that of u.
template <class T>
Value gated_halves_step(Graph<T>& g, Value halves) {
  const Value u = halves.part(0, 2), gates = halves.part(1, 2), hidden = g.value(u.cols);
  g.share_gradient(hidden, u);
  const auto adjoint = [=](const Pass<T>& p) {
    if (p.counting()) return;
    const auto from_u = p.in(u), from_g = p.in(gates);
    const auto du = p.din(u), dg = p.din(gates), scratch = p.out(hidden);
    for_each_layer_strip(from_u.rows, p.executor, [&](Index begin, Index count) {
      for (Index r = begin; r < begin + count; ++r) {
        multiply_gate_adjoint<T>(from_g.row(r), from_u.row(r), dg.row(r), du.row(r), scratch.row(r),
                                 hidden.cols);
      }
    });
  };
  return g.add({.output = hidden, .inputs = {halves}, .read = {halves, hidden}},
               GateForward<T>{u, gates, hidden}, adjoint);
}

/// \tparam Mix  GatedMix or ResidualMix
template <Accumulator T, class Mix>
struct MixFamily {
  using Scalar = T;
  using Options = MixFfnOptions;
  static constexpr const char* kName = "MixFfn";
  static constexpr const char* kOutput = Mix::kOutput;

  static MixFfnOptions checked(MixFfnOptions o) {
    expect_grid(kName, "tokens", o.tokens);
    expect_places(kName, o.places, tokens(o));
    expect_channels(kName, o.channels);
    if (o.hidden < 0) {
      fail_option(kName, "hidden", "is " + std::to_string(o.hidden),
                  "0 for " + std::to_string(Mix::hidden(o.channels)) + ", or more");
    }
    if (o.hidden == 0) o.hidden = Mix::hidden(o.channels);
    checked_product(kName, "hidden", {2, o.hidden});
    return o;
  }
  static Index tokens(const MixFfnOptions& o) { return volume(o.tokens); }
  static MHLA_COLD Value build(Graph<T>& g, Value x, const MixFfnOptions& o) {
    const Index c = o.channels, width = (Mix::kGated ? 2 : 1) * o.hidden;
    const auto first = g.dense(Mix::kFirst, {width, c, 1, 1});
    const auto taps = g.template weights<ConvolutionView>(Mix::kConvolution, {width, 1, 3, 3});
    const auto second = g.dense(Mix::kSecond, {c, o.hidden, 1, 1}, !Mix::kGated);
    const Value pre = dense_step(g, x, first);
    const Value e = g.remade(activation_step<typename Mix::Activation>(g, pre));
    const Value mixed = convolution_step(g, e, taps, o.tokens, {3, 3}, o.places);
    if (!Mix::kGated) return dense_step(g, residual_step(g, mixed, e), second);
    return dense_step(g, g.remade(gated_halves_step(g, mixed)), second);
  }
};

/// Adds the steps of the mix of a block's image.
template <class Mix, class T, class Options>
Value mix_of_image(Graph<T>& g, Value x, const Options& o) {
  using Family = MixFamily<T, Mix>;
  return Family::build(g, x,
                       Family::checked({.tokens = o.attention.tokens,
                                        .places = vision_places(o.attention),
                                        .channels = o.channels,
                                        .hidden = o.hidden}));
}

}  // namespace detail

/// The part as a layer: layer.hpp documents it.
template <Accumulator A, class Mix = GatedMix>
using MixFfn = Layer<detail::MixFamily<A, Mix>>;

}  // namespace MHLA_TARGET
}  // namespace mhla

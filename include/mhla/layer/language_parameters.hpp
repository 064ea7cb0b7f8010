#pragma once

/// \file
/// Options and parameters of the language layer (language_layer.hpp), under the authors' names:
/// {q,k,v,g,o}_proj.weight, {q,k,v}_conv1d.{weight,bias}, feature_map_{q,k}.layer{,1,2}.{weight,
/// bias}, mixing_matrix, and g_norm_swish_gate.weight, or g_norm.weight without a gate.

#include <cmath>
#include <string>
#include <string_view>

#include "mhla/core/arch.hpp"
#include "mhla/core/error.hpp"
#include "mhla/layer/body.hpp"
#include "mhla/layer/convolution_taps.hpp"
#include "mhla/layer/dense.hpp"
#include "mhla/layer/graph.hpp"
#include "mhla/layer/initial.hpp"
#include "mhla/layer/mixing_tensor.hpp"
#include "mhla/layer/parameters.hpp"
#include "mhla/layer/rows.hpp"

namespace mhla {
inline namespace MHLA_TARGET {

/// Options of a language layer.
struct LanguageOptions {
  Index heads = 4;
  Index key_heads = 0;               ///< heads of keys and values, a divisor of heads; 0: as many
  Index channels = 0;                ///< C; 0 for that of a file
  double expand_k = 0.5;             ///< H*D is C times this
  double expand_v = 1;               ///< H*E is C times this
  std::string feature_map = "relu";  ///< elu, identity, hedgehog, t2r, dpfp, elementwise_product
  Index chunk = 64;                  ///< tokens of a block
  Index chunks = 32;                 ///< rows of the mixing matrix: most blocks of a sequence
  bool mixing_per_head = false;      ///< the mixing matrix is [H,L,L], one per head
  bool short_convolution = false;    ///< of q, k and v, with silu
  bool convolution_bias = false;
  Index convolution_taps = 4;
  bool gate = true;  ///< of the outputs, with silu
  double norm_eps = 1e-5;
  double rotary_base = 10000;
  Index offsets = 0;  ///< of a table of coefficients by offset in place of the matrix; 0 for none

  bool operator==(const LanguageOptions&) const = default;
};

namespace detail {

/// Sizes that follow from the options.
struct LanguageSizes {
  Index heads, key_heads, width, values;  // H, Hk, D, E

  explicit LanguageSizes(const LanguageOptions& o)
      : heads(o.heads),
        key_heads(o.key_heads == 0 ? o.heads : o.key_heads),
        width(static_cast<Index>(static_cast<double>(o.channels) * o.expand_k) / o.heads),
        values(static_cast<Index>(static_cast<double>(o.channels) * o.expand_v) / o.heads) {}
  Index groups() const { return heads / key_heads; }  // query heads of a key head
};

/// Returns the options after checking that they fit each other.
inline const LanguageOptions& checked_language_options(const LanguageOptions& o) {
  constexpr const char* kName = "LanguageLayer";
  expect_positive(kName, "heads", o.heads);
  expect_channels(kName, o.channels);
  constexpr double kMost = 1 << 20;  // so that widths fit Index
  if (!(std::abs(o.expand_k) <= kMost && std::abs(o.expand_v) <= kMost)) {
    fail_option(kName, "expand_k, expand_v",
                "are " + std::to_string(o.expand_k) + ", " + std::to_string(o.expand_v),
                "at most " + std::to_string(1 << 20));
  }
  const LanguageSizes s(o);
  if (s.key_heads < 1 || s.heads % s.key_heads != 0) {
    fail_option(kName, "key_heads", "is " + std::to_string(o.key_heads),
                "a divisor of the " + std::to_string(o.heads) + " heads");
  }
  const auto exact = [&](Index width, double expand) {
    return static_cast<double>(width * o.heads) == static_cast<double>(o.channels) * expand;
  };
  if (s.width < 2 || s.width % 2 != 0 || !exact(s.width, o.expand_k)) {
    fail_option(kName, "expand_k", "is " + std::to_string(o.expand_k),
                "an even width for each of the " + std::to_string(o.heads) + " heads");
  }
  if (s.values < 1 || !exact(s.values, o.expand_v)) {
    fail_option(kName, "expand_v", "is " + std::to_string(o.expand_v),
                "whole values for each of the " + std::to_string(o.heads) + " heads");
  }
  if (o.chunk < 1 || o.chunks < 1 || o.convolution_taps < 1) {
    fail_option(kName, "chunk, chunks, convolution_taps",
                "are " + std::to_string(o.chunk) + ", " + std::to_string(o.chunks) + ", " +
                    std::to_string(o.convolution_taps),
                "at least 1 each");
  }
  checked_product(kName, "chunk, chunks", {o.chunk, o.chunks});
  expect_layer_offsets(kName, o.offsets);
  expect_not_negative(kName, "norm_eps", o.norm_eps);
  expect_above_zero(kName, "rotary_base", o.rotary_base);
  return o;
}

/// Name of the tensor that holds the mixing matrix, or the table in its place.
inline const char* language_mixing_name(const LanguageOptions& o) {
  return o.offsets == 0 ? "mixing_matrix" : "mixing_offsets";
}
inline MixingTensor language_mixing(const ParameterSlice& place, const LanguageOptions& o) {
  return {place, o.chunks, o.offsets, true};
}

/// The dense layers of a feature map.
struct MapLayers {
  int count = 0;
  bool bias = false;
  Initial initial = Initial::uniform();  // of their weights
};
/// \throws option_error for an unknown name.
inline MapLayers layers_of_map(std::string_view map) {
  if (map == "hedgehog") return {1, true, Initial::identity()};
  if (map == "t2r") return {1, false};
  if (map == "elementwise_product") return {2, true};
  for (const char* name : {"relu", "elu", "identity", "dpfp"}) {
    if (map == name) return {};
  }
  fail_option("LanguageLayer", "feature_map", "is \"" + std::string(map) + "\"",
              "relu, elu, identity, hedgehog, t2r, dpfp or elementwise_product");
}

/// Returns all tensors of a map, which lie side by side.
/// \param name  of its first tensor, without a number and without "weight"
inline ParameterSlice language_map_slice(const ParameterTable& table, const std::string& name,
                                         const LanguageOptions& o) {
  const MapLayers layers = layers_of_map(o.feature_map);
  const Index width = LanguageSizes(o).width, numbers = width * (width + (layers.bias ? 1 : 0));
  const Index begin = table.place(name + (layers.count == 2 ? "1" : "") + ".weight").begin;
  return {begin, layers.count > 0 ? 1 : 0, layers.count * numbers};
}

/// Where the tensors lie in a row of parameters.
struct LanguageSlices {
  MixingTensor mixing;
  WeightSlices<DenseView> q, k, v, gate, o;
  WeightSlices<ConvolutionView> q_convolution, k_convolution, v_convolution;
  ParameterSlice q_map, k_map;  // all tensors of a map
  ParameterSlice head_gain;

  /// Adds the tensors to a graph.
  template <class T>
  LanguageSlices(Graph<T>& g, const LanguageOptions& options) {
    const LanguageSizes s(options);
    const Index c = options.channels, l = options.chunks, taps = options.convolution_taps;
    const Index queries = s.heads * s.width, keys = s.key_heads * s.width;
    const Index values = s.key_heads * s.values, outputs = s.heads * s.values;
    const bool table = options.offsets != 0;
    const Index mixing_heads = options.mixing_per_head ? s.heads : 0;
    const auto matrix = g.tensor("mixing_matrix", mixing_shape(l, 6, mixing_heads > 0, s.heads),
                                 Initial::uniform_causal(), {!table, "offsets = 0"});
    const auto by_offset = g.tensor("mixing_offsets", table_shape(options.offsets, mixing_heads),
                                    Initial::ones(), {table, "offsets"});
    mixing = language_mixing(table ? by_offset : matrix, options);
    q = g.dense("q_proj", {queries, c}, false);
    k = g.dense("k_proj", {keys, c}, false);
    v = g.dense("v_proj", {values, c}, false);
    gate = g.dense("g_proj", {outputs, c}, false, {options.gate, "gate"});
    const auto convolution = [&](const char* name, Index channels) {
      return g.template weights<ConvolutionView>(name, {channels, 1, taps},
                                                 {options.convolution_bias, "convolution_bias"},
                                                 {options.short_convolution, "short_convolution"});
    };
    q_convolution = convolution("q_conv1d", queries);
    k_convolution = convolution("k_conv1d", keys);
    v_convolution = convolution("v_conv1d", values);
    q_map = map(g, "feature_map_q.layer", options);
    k_map = map(g, "feature_map_k.layer", options);
    const char* const norm = options.gate ? "g_norm_swish_gate.weight" : "g_norm.weight";
    head_gain =
        g.tensor(norm, {s.values}, Initial::ones(), {true, options.gate ? "gate" : "gate = false"});
    o = g.dense("o_proj", {c, outputs}, false);
  }

 private:
  /// Adds the tensors of a map side by side. Returns all of them.
  template <class T>
  static ParameterSlice map(Graph<T>& g, const std::string& name, const LanguageOptions& o) {
    const MapLayers layers = layers_of_map(o.feature_map);
    const Index begin = g.table().size(), width = LanguageSizes(o).width;
    for (int i = 1; i <= layers.count; ++i) {
      const std::string number = layers.count == 1 ? "" : std::to_string(i);
      g.template weights<DenseView>(name + number, {width, width}, layers.bias,
                                    {true, "feature_map"}, layers.initial);
    }
    return {begin, layers.count > 0 ? 1 : 0, g.table().size() - begin};
  }
};

}  // namespace detail
}  // namespace MHLA_TARGET
}  // namespace mhla

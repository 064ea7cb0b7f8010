#pragma once

/// \file
/// Options and parameters of the language layer (language_layer.hpp), under the authors' names:
/// {q,k,v,g,o}_proj.weight, {q,k,v}_conv1d.{weight,bias}, feature_map_{q,k}.layer{,1,2}.{weight,
/// bias}, mixing_matrix, and g_norm_swish_gate.weight, or g_norm.weight without a gate.

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "mhla/core/arch.hpp"
#include "mhla/core/error.hpp"
#include "mhla/layer/convolution_taps.hpp"
#include "mhla/layer/dense.hpp"
#include "mhla/layer/parameters.hpp"
#include "mhla/policy/feature_map.hpp"
#include "mhla/policy/learned_feature_map.hpp"
#include "mhla/policy/mixing_view.hpp"

namespace mhla {
inline namespace MHLA_TARGET {

/// What a language layer is made with.
struct LanguageOptions {
  Index heads = 4;
  Index key_heads = 0;               ///< heads of keys and values, a divisor of heads; 0: as many
  Index channels = 0;                ///< C; 0 for that of a file
  double expand_k = 0.5;             ///< H*D is C times this
  double expand_v = 1;               ///< H*E is C times this
  std::string feature_map = "relu";  ///< elu, identity, hedgehog, t2r, dpfp, elementwise_product
  Index chunk = 64;                  ///< tokens of a block
  Index chunks = 32;                 ///< rows of the mixing matrix: most blocks of a sequence
  bool short_convolution = false;    ///< of q, k and v, with silu
  bool convolution_bias = false;
  Index convolution_taps = 4;
  bool gate = true;  ///< of the outputs, with silu
  double norm_eps = 1e-5;
  double rotary_base = 10000;
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

/// The options, if they fit each other.
inline const LanguageOptions& checked_language_options(const LanguageOptions& o) {
  constexpr const char* kName = "LanguageLayer";
  if (o.heads < 1 || o.channels < 1) {
    fail_option(kName, "channels", "is " + std::to_string(o.channels),
                "at least 1, and heads " + std::to_string(o.heads) + " too");
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
  return o;
}

/// The dense layers of a feature map.
struct MapLayers {
  int count = 0;
  bool bias = false;
};
/// \throws option_error for the name of no map.
inline MapLayers layers_of_map(std::string_view map) {
  if (map == "hedgehog") return {1, true};
  if (map == "t2r") return {1, false};
  if (map == "elementwise_product") return {2, true};
  for (const char* name : {"relu", "elu", "identity", "dpfp"}) {
    if (map == name) return {};
  }
  fail_option("LanguageLayer", "feature_map", "is \"" + std::string(map) + "\"",
              "relu, elu, identity, hedgehog, t2r, dpfp or elementwise_product");
}

/// "feature_map_q.layer2": the prefix of layer i of a feature map.
inline std::string map_layer_name(const std::string& side, int i, int count) {
  return "feature_map_" + side + ".layer" + (count == 1 ? "" : std::to_string(i + 1));
}

inline ParameterTable language_table(const LanguageOptions& o) {
  const LanguageSizes s(o);
  const Index c = o.channels, l = o.chunks, taps = o.convolution_taps;
  const Index q = s.heads * s.width, k = s.key_heads * s.width, v = s.key_heads * s.values;
  ParameterTable table;
  table.add("mixing_matrix", {l, l, 1, 1, 1, 1});
  table.add("q_proj.weight", {q, c});
  table.add("k_proj.weight", {k, c});
  table.add("v_proj.weight", {v, c});
  if (o.gate) table.add("g_proj.weight", {s.heads * s.values, c});
  if (o.short_convolution) {
    const auto add = [&](const std::string& name, Index channels) {
      table.add(name + ".weight", {channels, 1, taps});
      if (o.convolution_bias) table.add(name + ".bias", {channels});
    };
    add("q_conv1d", q), add("k_conv1d", k), add("v_conv1d", v);
  }
  const MapLayers layers = layers_of_map(o.feature_map);
  for (const char* side : {"q", "k"}) {
    for (int i = 0; i < layers.count; ++i) {
      const std::string name = map_layer_name(side, i, layers.count);
      table.add(name + ".weight", {s.width, s.width});
      if (layers.bias) table.add(name + ".bias", {s.width});
    }
  }
  table.add(o.gate ? "g_norm_swish_gate.weight" : "g_norm.weight", {s.values});
  table.add("o_proj.weight", {c, s.heads * s.values});
  return table;
}

/// The tensors of a row of parameters (T const) or of their gradients; all absent if it is empty.
template <class T>
struct LanguageParameters {
  MixingView<T> mixing;           // [L,L]
  DenseView<T> q, k, v, gate, o;  // without biases
  ConvolutionView<T> q_convolution, k_convolution, v_convolution;
  std::span<T> q_map, k_map;  // weights of the feature maps, as these order them
  std::span<T> head_gain;     // [E]

  LanguageParameters(const ParameterTable& table, std::span<T> row, const LanguageOptions& options)
      : q{table.matrix(row, "q_proj.weight"), {}},
        k{table.matrix(row, "k_proj.weight"), {}},
        v{table.matrix(row, "v_proj.weight"), {}},
        gate{table.matrix(row, "g_proj.weight"), {}},
        o{table.matrix(row, "o_proj.weight"), {}},
        q_convolution(convolution(table, row, "q_conv1d")),
        k_convolution(convolution(table, row, "k_conv1d")),
        v_convolution(convolution(table, row, "v_conv1d")),
        q_map(map(table, row, "q", options)),
        k_map(map(table, row, "k", options)),
        head_gain(table.numbers(row, options.gate ? "g_norm_swish_gate.weight" : "g_norm.weight")) {
    const MatrixView<T> m = table.matrix(row, "mixing_matrix");
    if (!m.absent()) mixing = {m.data, Band(m.rows, m.cols)};
  }

 private:
  static ConvolutionView<T> convolution(const ParameterTable& table, std::span<T> row,
                                        const std::string& name) {
    return {table.matrix(row, name + ".weight"), table.numbers(row, name + ".bias")};
  }
  /// The tensors of a map lie side by side, in its order.
  static std::span<T> map(const ParameterTable& table, std::span<T> row, const std::string& side,
                          const LanguageOptions& options) {
    const MapLayers layers = layers_of_map(options.feature_map);
    if (row.empty() || layers.count == 0) return {};
    const std::string first = map_layer_name(side, 0, layers.count),
                      last = map_layer_name(side, layers.count - 1, layers.count);
    const Parameter& begin = *table.find(first + ".weight");
    const Parameter& end = *table.find(last + (layers.bias ? ".bias" : ".weight"));
    return row.subspan(static_cast<std::size_t>(begin.begin),
                       static_cast<std::size_t>(end.begin + end.size - begin.begin));
  }
};

/// The projections, packed once for many calls of few tokens. Not copied: it holds its own memory.
template <Accumulator T>
struct PackedLanguage {
  PackedStore<T> store;
  PackedDense<T> q, k, v, o;
  std::optional<PackedDense<T>> gate;

  explicit PackedLanguage(const LanguageParameters<const T>& p)
      : store({p.q, p.k, p.v, p.gate, p.o}),
        q(store.pack(p.q)),
        k(store.pack(p.k)),
        v(store.pack(p.v)),
        o(store.pack(p.o)) {
    if (!p.gate.weight.absent()) gate.emplace(store.pack(p.gate));
  }
};

/// One of the language layer's feature maps.
template <Accumulator A>
using LanguageMap =
    std::variant<Relu, EluPlusOne, Identity, Dpfp, Hedgehog<A>, T2R<A>, ElementwiseProduct<A>>;

/// \param numbers  weights of the map, as it orders them; copied
template <Accumulator A>
LanguageMap<A> language_map(const std::string& name, Index width, std::span<const A> numbers) {
  const A* next = numbers.data();
  const auto dense = [&](bool bias) {
    DenseWeights<A> layer;
    layer.weight = Eigen::Map<const Matrix<A>>(next, width, width);
    next += width * width;
    if (bias) {
      layer.bias = Eigen::Map<const Matrix<A>>(next, 1, width);
      next += width;
    }
    return layer;
  };
  if (name == "elu") return EluPlusOne{};
  if (name == "identity") return Identity{};
  if (name == "dpfp") return Dpfp{};
  if (name == "hedgehog") return Hedgehog<A>(dense(true));
  if (name == "t2r") return T2R<A>(dense(false).weight);
  if (name == "elementwise_product") {
    DenseWeights<A> first = dense(true), second = dense(true);
    return ElementwiseProduct<A>(std::move(first), std::move(second));
  }
  return Relu{0};
}

inline Index language_features(const std::string& name, Index width) {
  return name == "hedgehog" ? 2 * width : name == "dpfp" ? Dpfp{}.features(width) : width;
}

}  // namespace detail
}  // namespace MHLA_TARGET
}  // namespace mhla

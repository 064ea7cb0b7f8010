#pragma once

/// \file
/// The feature maps of the language layer, as views of weights. Parts of its decoding: runs of
/// sequences, and data that a stream of few tokens packs once (language_layer.hpp).

#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "mhla/core/arch.hpp"
#include "mhla/core/matrix.hpp"
#include "mhla/layer/language_parameters.hpp"
#include "mhla/layer/packed_dense.hpp"
#include "mhla/policy/feature_map.hpp"
#include "mhla/policy/learned_feature_map.hpp"

namespace mhla {
inline namespace MHLA_TARGET {
namespace detail {

/// A feature map of the language layer.
template <Accumulator A>
using LanguageMap =
    std::variant<Relu, EluPlusOne, Identity, Dpfp, Hedgehog<A>, T2R<A>, ElementwiseProduct<A>>;

/// The last inputs of the short convolutions of a batch [B*(K-1), channels], or none.
template <class T>
struct LanguageTails {
  MatrixView<T> q{}, k{}, v{};
};

/// Consecutive sequences of one length whose first tokens have the same position.
struct SequenceRun {
  Index begin, count;  // sequences
  Index row;           // of the first token of the first sequence
  Index tokens;        // of each sequence
  Index position;

  template <class T>
  MatrixView<T> of(const MatrixView<T>& x) const {
    return x.middle_rows(row, count * tokens);
  }
};

/// Numbers of scratch that a map wants.
inline Index language_map_scratch(const std::string& name, Index width) {
  return layers_of_map(name).count * width * width;
}

/// \param weights  of the map, as it orders them; must outlive it, as `scratch` must
template <Accumulator A>
LanguageMap<A> language_map(const std::string& name, Index width, std::span<const A> weights,
                            A* scratch) {
  const A* next = weights.data();
  const auto layer = [&](bool bias) {
    const A* const weight = next;
    next += width * width;
    const A* const shift = bias ? next : nullptr;
    if (bias) next += width;
    MapLayer<A> made(width, weight, shift, scratch);
    scratch += width * width;
    return made;
  };
  if (name == "elu") return EluPlusOne{};
  if (name == "identity") return Identity{};
  if (name == "dpfp") return Dpfp{};
  if (name == "hedgehog") return Hedgehog<A>(layer(true));
  if (name == "t2r") return T2R<A>(layer(false));
  if (name == "elementwise_product") {
    const MapLayer<A> first = layer(true), second = layer(true);
    return ElementwiseProduct<A>(first, second);
  }
  return Relu{0};
}

inline Index language_features(const std::string& name, Index width) {
  return name == "hedgehog" ? 2 * width : name == "dpfp" ? Dpfp{}.features(width) : width;
}

/// The maps of queries and keys.
template <Accumulator A>
struct LanguageMaps {
  LanguageMap<A> q, k;

  /// \param scratch  2 * language_map_scratch numbers
  LanguageMaps(const LanguageOptions& o, Index width, std::span<const A> q_weights,
               std::span<const A> k_weights, A* scratch)
      : q(language_map(o.feature_map, width, q_weights, scratch)),
        k(language_map(o.feature_map, width, k_weights,
                       scratch + language_map_scratch(o.feature_map, width))) {}
};

/// The weights of the maps of queries and keys and the scratch of both, in memory of its own.
template <Accumulator T>
std::vector<T> copied_maps(const LanguageOptions& options, Index width,
                           const LanguageParameters<const T>& p) {
  std::vector<T> numbers(p.q_map.begin(), p.q_map.end());
  numbers.insert(numbers.end(), p.k_map.begin(), p.k_map.end());
  const Index scratch = 2 * language_map_scratch(options.feature_map, width);
  numbers.resize(numbers.size() + static_cast<std::size_t>(scratch));
  return numbers;
}

/// The projections and the maps, packed once for many calls of few tokens. It owns its memory and
/// cannot be copied.
template <Accumulator T>
struct PackedLanguage {
  PackedStore<T> store;
  std::vector<T> map_numbers;
  PackedDense<T> q, k, v, o;
  std::optional<PackedDense<T>> gate;
  LanguageMaps<T> maps;

  PackedLanguage(const LanguageOptions& options, Index width, const LanguageParameters<const T>& p)
      : store({p.q, p.k, p.v, p.gate, p.o}),
        map_numbers(copied_maps(options, width, p)),
        q(store.pack(p.q)),
        k(store.pack(p.k)),
        v(store.pack(p.v)),
        o(store.pack(p.o)),
        maps(options, width, {map_numbers.data(), p.q_map.size()},
             {map_numbers.data() + p.q_map.size(), p.k_map.size()},
             map_numbers.data() + p.q_map.size() + p.k_map.size()) {
    if (!p.gate.weight.absent()) gate.emplace(store.pack(p.gate));
  }
};

}  // namespace detail
}  // namespace MHLA_TARGET
}  // namespace mhla

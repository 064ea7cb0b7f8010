#pragma once

/// \file
/// The feature maps of the language layer (language_layer.hpp), as views of weights.

#include <cmath>
#include <span>
#include <string>
#include <variant>

#include "mhla/attention/operator.hpp"
#include "mhla/core/arch.hpp"
#include "mhla/core/matrix.hpp"
#include "mhla/layer/language_parameters.hpp"
#include "mhla/policy/feature_map.hpp"
#include "mhla/policy/learned_feature_map.hpp"

namespace mhla {
inline namespace MHLA_TARGET {
namespace detail {

/// A feature map of the language layer.
template <Accumulator A>
using LanguageMap =
    std::variant<Relu, EluPlusOne, Identity, Dpfp, Hedgehog<A>, T2R<A>, ElementwiseProduct<A>>;

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

/// The operator of the language layer.
inline auto language_operator(const LanguageOptions& o) {
  const Index features = language_features(o.feature_map, LanguageSizes(o).width);
  return Operator<Identity, Identity, NoNormalizer>{
      {}, {}, {}, 1 / std::sqrt(static_cast<double>(features))};
}

}  // namespace detail
}  // namespace MHLA_TARGET
}  // namespace mhla

#pragma once

/// \file
/// The operator that the options name, including feature maps with weights.

#include <mhla/policy/by_name.hpp>
#include <mhla/policy/learned_feature_map.hpp>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "arguments.hpp"

namespace mhla_torch {

/// A feature map with weights, chosen at run time.
template <class A>
class LearnedMap {
 public:
  using Map = std::variant<mhla::Hedgehog<A>, mhla::T2R<A>, mhla::ElementwiseProduct<A>>;

  LearnedMap(Map map) : map_(std::move(map)) {}  // NOLINT(google-explicit-constructor)

  Index features(Index d) const {
    return std::visit([d](const auto& map) { return map.features(d); }, map_);
  }
  Index weights() const {
    return std::visit([](const auto& map) { return map.weights(); }, map_);
  }
  void operator()(const A* x, A* y, Index d) const {
    std::visit([&](const auto& map) { map(x, y, d); }, map_);
  }
  void adjoint(const A* x, const A* y, const A* dy, A* dx, Index d, A* dweights) const {
    std::visit([&](const auto& map) { map.adjoint(x, y, dy, dx, d, dweights); }, map_);
  }
  void strip(mhla::MatrixView<const A> x, mhla::MatrixView<A> y) const {
    std::visit([&](const auto& map) { map.strip(x, y); }, map_);
  }
  void strip_adjoint(mhla::MatrixView<const A> x, mhla::MatrixView<const A> y,
                     mhla::MatrixView<const A> dy, mhla::MatrixView<A> dx, A* dweights) const {
    std::visit([&](const auto& map) { map.strip_adjoint(x, y, dy, dx, dweights); }, map_);
  }

 private:
  Map map_;
};
static_assert(mhla::DifferentiableStripFeatureMap<LearnedMap<float>, float>);

/// Number of layers of a map with weights; 0 for a map without weights.
inline Index layers_of(const std::string& feature_map) {
  if (feature_map == "elementwise_product") return 2;
  return feature_map == "hedgehog" || feature_map == "t2r" ? 1 : 0;
}

/// Constructs a map on rows of `width` that reads its weights in place from a tensor.
/// \param weights  Layers one after another: the weight [D,D] of each, followed by its bias [D] or
///                 by nothing (t2r has no biases).
/// \param scratch  Resized for the transposed weights; it must outlive the map, as the tensor must
template <class A>
LearnedMap<A> learned_map(const char* function, const char* argument, const std::string& name,
                          const Tensor& weights, Index width, std::vector<A>& scratch) {
  expect_tensor(function, argument, weights, scalar_type_of<A>(), 1);
  const Index layers = layers_of(name), square = width * width, count = weights.size(0);
  const bool bias = name != "t2r" && count == layers * (square + width);
  if (!bias && count != layers * square) {
    fail<mhla::shape_error>(
        function, argument, "has " + std::to_string(count) + " weights",
        std::to_string(layers * square) +
            (name == "t2r" ? ""
                           : " or, with biases, " + std::to_string(layers * (square + width))) +
            ": those of " + name + " of width " + std::to_string(width));
  }
  scratch.resize(static_cast<std::size_t>(layers * square));
  const auto layer = [&](Index i) {
    const A* const first = static_cast<const A*>(weights.const_data_ptr()) + i * (count / layers);
    return mhla::detail::MapLayer<A>(width, first, bias ? first + square : nullptr,
                                     scratch.data() + i * square);
  };
  if (name == "hedgehog") return {mhla::Hedgehog<A>(layer(0))};
  if (name == "t2r") return {mhla::T2R<A>(layer(0))};
  return {mhla::ElementwiseProduct<A>(layer(0), layer(1))};
}

/// Calls f with the operator of the options, for queries and keys of `width`, with sums of type A.
template <class A, class F>
void with_operator(const char* function, const Options& o, Index width, F&& f) {
  const bool learned = layers_of(o.feature_map) > 0;
  for (const auto& [argument, weights] :
       {std::pair{"query_map", &o.query_map}, std::pair{"key_map", &o.key_map}}) {
    if (weights->has_value() != learned) {
      fail<mhla::option_error>(
          function, argument, learned ? "is absent" : "is set",
          (learned ? "the weights of " : "none: there are no weights in ") + o.feature_map);
    }
  }
  const mhla::AnyNormalizer normalizer = mhla::normalizer(o.normalizer, o.eps);
  if (!learned) {
    const mhla::AnyFeatureMap map = o.feature_map == "relu"
                                        ? mhla::AnyFeatureMap(mhla::Relu{o.relu_eps})
                                        : mhla::feature_map(o.feature_map);
    return f(mhla::Operator<mhla::AnyFeatureMap, mhla::AnyFeatureMap, mhla::AnyNormalizer>{
        map, map, normalizer, o.scale});
  }
  const Tensor q = dense(*o.query_map), k = dense(*o.key_map);
  std::vector<A> scratch[2];
  f(mhla::Operator<LearnedMap<A>, LearnedMap<A>, mhla::AnyNormalizer>{
      learned_map(function, "query_map", o.feature_map, q, width, scratch[0]),
      learned_map(function, "key_map", o.feature_map, k, width, scratch[1]), normalizer, o.scale});
}

}  // namespace mhla_torch

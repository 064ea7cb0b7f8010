#pragma once

/// \file
/// Feature maps and normalisers chosen at run time, from the names that configurations use:
///
///     const Operator op{feature_map("elu_plus_one"), feature_map("relu"), normalizer("none")};
///
/// One operator type then serves all of them, at the cost of one branch per token.

#include <concepts>
#include <string>
#include <string_view>
#include <type_traits>
#include <variant>

#include "mhla/core/arch.hpp"
#include "mhla/core/error.hpp"
#include "mhla/policy/feature_map.hpp"
#include "mhla/policy/normalizer.hpp"

namespace mhla {
inline namespace MHLA_TARGET {

/// A feature map chosen at run time: any map without weights that keeps the width.
class AnyFeatureMap {
 public:
  using Map = std::variant<Relu, EluPlusOne, Identity, Exp>;
  static constexpr bool kElementwise = true;

  AnyFeatureMap(Map map = Relu{}) : map_(map) {}  // NOLINT(google-explicit-constructor)

  Index features(Index d) const { return d; }
  Index weights() const { return 0; }
  template <Accumulator A>
  void operator()(const A* x, A* y, Index d) const {
    std::visit([&](const auto& map) { map(x, y, d); }, map_);
  }
  template <Accumulator A>
  void adjoint(const A* x, const A* y, const A* dy, A* dx, Index d,
               std::type_identity_t<A>* dweights = nullptr) const {
    std::visit([&](const auto& map) { map.adjoint(x, y, dy, dx, d, dweights); }, map_);
  }

 private:
  Map map_;
};

/// A normaliser chosen at run time. Causal forms throw for "cross_query".
class AnyNormalizer {
 public:
  using Choice = std::variant<NoNormalizer, KeySum, CrossQuery>;

  AnyNormalizer() : choice_(KeySum{}) {}
  template <class Z>
  requires std::constructible_from<Choice, Z> AnyNormalizer(Z choice)
      : choice_(choice) {}  // NOLINT(google-explicit-constructor)

  WeightSums sums() const {
    return std::visit([](const auto& z) { return z.sums(); }, choice_);
  }
  template <class A>
  void denominators(const A* r, Index count, A* den) const {
    std::visit([&](const auto& z) { z.denominators(r, count, den); }, choice_);
  }
  template <class A>
  void slopes(const A* r, Index count, A* slope) const {
    std::visit([&](const auto& z) { z.slopes(r, count, slope); }, choice_);
  }

 private:
  Choice choice_;
};

static_assert(TangentFeatureMap<AnyFeatureMap, float>);
static_assert(DifferentiableNormalizer<AnyNormalizer> && CausalNormalizer<AnyNormalizer>);

/// Returns the map "relu" (max(x, 0) + 1e-6), "elu_plus_one", "identity" or "exp".
/// \throws option_error for any other name.
inline AnyFeatureMap feature_map(std::string_view name) {
  if (name == "relu") return {Relu{}};
  if (name == "elu_plus_one") return {EluPlusOne{}};
  if (name == "identity") return {Identity{}};
  if (name == "exp") return {Exp{}};
  detail::fail_option("feature_map", "name", "is \"" + std::string(name) + "\"",
                      "relu, elu_plus_one, identity or exp");
}

/// Returns the normaliser "none", "key_sum" or "cross_query", with eps added to the sums.
/// \throws option_error for any other name.
inline AnyNormalizer normalizer(std::string_view name, double eps = 0) {
  if (name == "none") return {NoNormalizer{}};
  if (name == "key_sum") return {KeySum{eps}};
  if (name == "cross_query") return {CrossQuery{eps}};
  detail::fail_option("normalizer", "name", "is \"" + std::string(name) + "\"",
                      "none, key_sum or cross_query");
}

}  // namespace MHLA_TARGET
}  // namespace mhla

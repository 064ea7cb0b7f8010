#pragma once

/// \file
/// The arguments that all forms share: Operator and Inputs.

#include <algorithm>
#include <concepts>
#include <string>
#include <type_traits>
#include <utility>

#include "mhla/core/arch.hpp"
#include "mhla/core/error.hpp"
#include "mhla/core/matrix.hpp"
#include "mhla/core/refused.hpp"
#include "mhla/core/tensor.hpp"
#include "mhla/policy/feature_map.hpp"
#include "mhla/policy/normalizer.hpp"
#include "mhla/tokens/gather.hpp"

namespace mhla {
inline namespace MHLA_TARGET {

namespace detail {
/// Default map of the keys: the queries' map if it has that type.
template <class KeyMap, class QueryMap>
constexpr KeyMap default_key_map(const QueryMap& query_map) {
  if constexpr (std::is_same_v<KeyMap, QueryMap>) {
    return query_map;
  } else {
    return KeyMap{};
  }
}
}  // namespace detail

/// The choices that make one member of the family: feature maps, normaliser, scale of the queries.
///
/// | trained model              | Operator                                                     |
/// |----------------------------|--------------------------------------------------------------|
/// | the paper (default)        | Operator{}                                                   |
/// | released DiT and DeiT      | Operator{Relu{1e-6}, Relu{1e-6}, CrossQuery{1e-6}}           |
/// | released video             | Operator{Identity{}, Identity{}, NoNormalizer{}}, maps and   |
/// |                            | rotary embedding applied beforehand                          |
/// | released language, 340M    | Operator{Identity{}, Identity{}, NoNormalizer{}, 1/sqrt(D)}, |
/// |                            | maps and rotary embedding applied beforehand                 |
template <class QueryMap = Relu, class KeyMap = QueryMap, Normalizer Z = KeySum>
struct Operator {
  static_assert(!Normalizer<QueryMap> && !Normalizer<KeyMap>,
                "mhla: an Operator has the map of the queries, the map of the keys, then the "
                "normaliser: Operator{Relu{}, Relu{}, KeySum{}}");

  QueryMap query_map{};
  KeyMap key_map = detail::default_key_map<KeyMap>(query_map);
  Z normalizer{};
  double scale = 1;  ///< multiplies phi(q), in numerator and denominator
};

template <class QueryMap>
Operator(QueryMap) -> Operator<QueryMap, QueryMap, KeySum>;
template <class QueryMap, class KeyMap>
Operator(QueryMap, KeyMap) -> Operator<QueryMap, KeyMap, KeySum>;
template <class QueryMap, class KeyMap, class Z>
Operator(QueryMap, KeyMap, Z) -> Operator<QueryMap, KeyMap, Z>;
template <class QueryMap, class KeyMap, class Z>
Operator(QueryMap, KeyMap, Z, double) -> Operator<QueryMap, KeyMap, Z>;

namespace detail {
template <class Op>
using query_map_t = std::remove_cvref_t<decltype(std::declval<const Op&>().query_map)>;
template <class Op>
using key_map_t = std::remove_cvref_t<decltype(std::declval<const Op&>().key_map)>;
template <class Op>
using normalizer_t = std::remove_cvref_t<decltype(std::declval<const Op&>().normalizer)>;
}  // namespace detail

/// An Operator for tensors of T: its feature maps take rows of T's accumulator.
template <class Op, class T>
concept OperatorOn = Scalar<T> && FeatureMap<detail::query_map_t<Op>, accumulator_t<T>> &&
    FeatureMap<detail::key_map_t<Op>, accumulator_t<T>> && Normalizer<detail::normalizer_t<Op>>;

/// An operator whose outputs read no later token.
template <class Op>
concept CausalOperator = CausalNormalizer<detail::normalizer_t<Op>>;
template <class Op, class T>
concept CausalOperatorOn = OperatorOn<Op, T> && CausalOperator<Op>;

/// The tensors of one head. Queries and keys may differ in number (cross-attention); their widths
/// after the feature maps must agree. These are views: {.q = f()} of a matrix that f returns
/// dangles, of which clang++ warns and g++ does not; inputs(f(), k, v) does not compile.
template <Scalar T>
struct Inputs {
  MatrixView<const T> q;  ///< [Nq, width of q]
  MatrixView<const T> k;  ///< [Nk, width of k]
  MatrixView<const T> v;  ///< [Nk, E]
  /// Queries and keys of the denominator where they are not the numerator's (a rotary embedding in
  /// the numerator only); both or none. The same feature maps are applied to them, and make at
  /// least one feature if the normaliser sums weights.
  MatrixView<const T> normalizer_q{};
  MatrixView<const T> normalizer_k{};
  /// Tokens that take part. A masked key is never read; a masked query is never read and gets an
  /// output row of zeros. Self-attention over padded sequences passes one mask as both.
  Mask query_mask{};
  Mask key_mask{};
};

namespace detail {
/// Tensors of T, U and W can be inputs of one call.
template <class T, class U, class W>
inline constexpr bool kOneScalar = (Scalar<T> && std::same_as<T, U> && std::same_as<T, W>);
}  // namespace detail

/// The inputs of one head, from Eigen matrices q [Nq,width], k [Nk,width] and v [Nk,E].
template <EigenDense Q, EigenDense K, EigenDense V>
requires detail::kOneScalar<typename Q::Scalar, typename K::Scalar, typename V::Scalar>
    Inputs<typename Q::Scalar> inputs(const Q& q, const K& k, const V& v) {
  return {.q = q, .k = k, .v = v};
}
/// Refuses, in a sentence, a shape for what has one.
template <class Q, class K, class V>
requires(std::is_class_v<Q> || std::is_class_v<K> ||
         std::is_class_v<V>) detail::Refused<detail::Mistake::kShape, Q, K, V> inputs(const Q&,
                                                                                      const K&,
                                                                                      const V&,
                                                                                      const Shape&,
                                                                                      Index = 0);
/// Inputs are views: of a temporary matrix or tensor they would dangle.
template <class Q, class K, class V>
requires(detail::OwningTemporary<Q> || detail::OwningTemporary<K> || detail::OwningTemporary<V>)
    detail::Refused<detail::Mistake::kTemporary, Q, K, V> inputs(Q&&, K&&, V&&);

namespace detail {

/// Sizes of one head's problem, after the feature maps.
struct HeadSizes {
  Index queries;              // Nq
  Index keys;                 // Nk
  Index features;             // D
  Index values;               // E
  WeightSums sums;            // that the normaliser reads
  Index normalizer_features;  // features of the denominator's own queries and keys, 0 for none

  /// The denominator has queries and keys of its own.
  bool separate_normalizer() const { return normalizer_features > 0; }
  /// Features of key sums, 0 where none are read.
  Index sum_features() const {
    return sums == WeightSums::kNone ? 0 : separate_normalizer() ? normalizer_features : features;
  }
  Index widest() const { return std::max(features, normalizer_features); }
};

template <Scalar T, class Op>
HeadSizes head_sizes(const Inputs<T>& in, const Op& op) {
  const WeightSums sums = op.normalizer.sums();
  const bool separate = !in.normalizer_q.absent() && sums != WeightSums::kNone;
  return {in.q.rows, in.k.rows, op.query_map.features(in.q.cols),
          in.v.cols, sums,      separate ? op.query_map.features(in.normalizer_q.cols) : 0};
}

/// Size of the scratch rows that the feature maps read (raw_size).
template <Scalar T, class Op>
Index query_raw_size(const Inputs<T>& in, const Op& /*op*/) {
  return raw_size<accumulator_t<T>, query_map_t<Op>>(std::max(in.q.cols, in.normalizer_q.cols));
}
template <Scalar T, class Op>
Index key_raw_size(const Inputs<T>& in, const Op& /*op*/) {
  return raw_size<accumulator_t<T>, key_map_t<Op>>(std::max(in.k.cols, in.normalizer_k.cols));
}

/// Tokens [begin, begin + count) of the tensors and masks of self-attention.
template <Scalar T>
Inputs<T> middle_tokens(const Inputs<T>& in, Index begin, Index count) {
  const auto rows = [&](const MatrixView<const T>& m) {
    return m.absent() ? m : m.middle_rows(begin, count);
  };
  const auto entries = [&](const Mask& m) {
    return m.all() ? m : Mask{m.keep + begin * m.stride, count, m.stride};
  };
  return {.q = rows(in.q),
          .k = rows(in.k),
          .v = rows(in.v),
          .normalizer_q = rows(in.normalizer_q),
          .normalizer_k = rows(in.normalizer_k),
          .query_mask = entries(in.query_mask),
          .key_mask = entries(in.key_mask)};
}

/// Throws unless the tensors of `in` and `out` agree in tokens and values, and the masks in tokens.
/// \param argument  the name of `out`, which may be the gradient of an output
template <Scalar T>
void expect_tokens(const char* function, const Inputs<T>& in,
                   std::type_identity_t<MatrixView<const T>> out, const char* argument = "out") {
  expect_shape(function, "q", in.q, -1, -1);
  expect_shape(function, "k", in.k, -1, -1);
  expect_shape(function, "v", in.v, in.k.rows, -1, " (a row for each of k)");
  expect_shape(function, argument, out, in.q.rows, in.v.cols);
  expect_mask(function, "query_mask", in.query_mask, in.q.rows);
  expect_mask(function, "key_mask", in.key_mask, in.k.rows);
}

/// Throws if a normaliser that sums weights has queries of its own without a feature.
template <Scalar T, class Op>
void expect_normalizer_features(const char* function, const Inputs<T>& in, const Op& op) {
  const MatrixView<const T>& q = in.normalizer_q;
  if (q.absent() || op.normalizer.sums() == WeightSums::kNone) return;
  if (op.query_map.features(q.cols) == 0) {
    fail_shape(function, "normalizer_q", "has shape " + shape_text({q.rows, q.cols}),
               "at least 1 feature, or none of normalizer_q and normalizer_k");
  }
}

/// Throws unless all shapes of `in` agree with each other after the feature maps, and with `out`.
template <Scalar T, class Op>
void expect_inputs(const char* function, const Inputs<T>& in, const Op& op,
                   std::type_identity_t<MatrixView<const T>> out, const char* argument = "out") {
  const auto expect_features = [&](const char* name, const auto& k, const auto& q) {
    const Index features = op.key_map.features(k.cols);
    const Index expected = op.query_map.features(q.cols);
    if (features != expected) {
      fail_shape(
          function, name,
          "has width " + std::to_string(k.cols) + ", " + std::to_string(features) +
              " after the feature map",
          std::to_string(expected) + " features (those of q " + shape_text({q.rows, q.cols}) + ")");
    }
  };
  expect_tokens(function, in, out, argument);
  expect_features("k", in.k, in.q);
  if (in.normalizer_q.absent() != in.normalizer_k.absent()) {
    fail_option(function, in.normalizer_q.absent() ? "normalizer_q" : "normalizer_k", "is absent",
                "both normalizer_q and normalizer_k, or none");
  }
  if (!in.normalizer_q.absent()) {
    expect_shape(function, "normalizer_q", in.normalizer_q, in.q.rows, -1);
    expect_shape(function, "normalizer_k", in.normalizer_k, in.k.rows, -1);
    expect_features("normalizer_k", in.normalizer_k, in.normalizer_q);
    expect_normalizer_features(function, in, op);
  }
}

/// Throws if a normaliser chosen at run time is not causal.
template <class Op>
void expect_causal_normalizer(const char* function, const Op& op) {
  if (op.normalizer.sums() == WeightSums::kCrossQuery) {
    fail_option(function, "normalizer", "is CrossQuery, which reads later queries",
                "a normaliser of the token's own weights, or none");
  }
}

}  // namespace detail
}  // namespace MHLA_TARGET
}  // namespace mhla

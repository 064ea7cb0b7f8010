#pragma once

/// \file
/// The first mistake of a call that no form can take, for the overloads that refuse it.

#include <concepts>
#include <type_traits>

#include "mhla/attention/batch.hpp"
#include "mhla/attention/heads.hpp"
#include "mhla/attention/operator.hpp"
#include "mhla/core/arch.hpp"
#include "mhla/core/call.hpp"
#include "mhla/core/refused.hpp"
#include "mhla/core/tensor.hpp"
#include "mhla/policy/decay_mixing.hpp"

namespace mhla {
inline namespace MHLA_TARGET {
namespace detail {

/// The mistake in q, k and v of `inputs`.
template <class Q, class K, class V>
inline constexpr Mistake kInputsMistake = Mistake::kTensors;
template <EigenDense Q, EigenDense K, EigenDense V>
inline constexpr Mistake kInputsMistake<Q, K, V> =
    kOneScalar<typename Q::Scalar, typename K::Scalar, typename V::Scalar> ? Mistake::kNone
                                                                           : Mistake::kElements;
template <class Q, class K, class V>
inline constexpr Mistake kInputsMistake<Tensor<Q>, Tensor<K>, Tensor<V>> =
    kOneScalar<Q, K, V> ? Mistake::kNone : Mistake::kElements;
template <class Q, class K, class V>
inline constexpr Mistake kInputsMistake<TensorView<Q>, TensorView<K>, TensorView<V>> =
    kOneScalar<std::remove_const_t<Q>, std::remove_const_t<K>, std::remove_const_t<V>>
        ? Mistake::kNone
        : Mistake::kElements;

/// A partition, or what returns one, also if it lacks a member: which, the compiler says best.
template <class B>
concept LikeBlocks = AttentionBlocks<B> || requires(const typename PartitionOf<B>::type& blocks) {
  blocks.tokens();
};

/// A mixing matrix, or decaying terms.
template <class M, class A>
concept LikeMixing =
    std::convertible_to<M, MixingView<const A>> || std::convertible_to<M, DecayView<const A>>;

/// An operator, an output or a Call.
template <class X, class T>
concept LikeOption = std::convertible_to<X&, MatrixView<T>> ||
    std::convertible_to<X&, TensorView<T>> || std::convertible_to<X&, Call> ||
    requires(const X& op) {
  op.normalizer;
};

/// The mistake in the arguments after tensors of T.
template <class T, class... X>
inline constexpr Mistake kMistakeBehind = Mistake::kBlocks;
template <class T, LikeBlocks B, class... X>
inline constexpr Mistake kMistakeBehind<T, B, X...> = Mistake::kMixing;
template <class T, LikeBlocks B, LikeMixing<accumulator_t<T>> M, class... X>
inline constexpr Mistake kMistakeBehind<T, B, M, X...> = (LikeOption<X, T> && ...)
                                                             ? Mistake::kNone
                                                             : Mistake::kOptions;

/// The mistake in a call of a form.
template <class... X>
inline constexpr Mistake kMistake = Mistake::kTensors;
template <AttentionInputs In, class... X>
inline constexpr Mistake kMistake<In, X...> = kMistakeBehind<scalar_of<In>, X...>;
template <EigenDense Q, EigenDense K, EigenDense V, class... X>
inline constexpr Mistake kMistake<Q, K, V, X...> =
    kInputsMistake<Q, K, V> != Mistake::kNone ? kInputsMistake<Q, K, V>
                                              : kMistakeBehind<typename Q::Scalar, X...>;

}  // namespace detail

/// Refuses, in a sentence, what has no inputs.
template <class Q, class K, class V>
requires(detail::kInputsMistake<Q, K, V> != detail::Mistake::kNone)
    detail::Refused<detail::kInputsMistake<Q, K, V>, Q, K, V> inputs(const Q&, const K&, const V&);

}  // namespace MHLA_TARGET
}  // namespace mhla

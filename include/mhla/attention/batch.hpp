#pragma once

/// \file
/// Batches of sequences, each with H heads: B sequences of N tokens, or (`offsets`) sequences of
/// any length packed into a single item, sequence s being tokens [offsets[s], offsets[s + 1]).
/// Every (sequence, head) is computed in the same order as alone: results do not depend on the
/// batch.
///
/// A partition serves all sequences, or is a function of the length (ContiguousBlocks{64}). In the
/// second case M blocks use the leading [M,M] part of the mixing matrix, as in the authors'
/// language layer.

#include <algorithm>
#include <concepts>
#include <ranges>
#include <span>
#include <string>

#include "mhla/attention/operator.hpp"
#include "mhla/core/arch.hpp"
#include "mhla/core/refused.hpp"
#include "mhla/core/tensor.hpp"
#include "mhla/policy/mixing_matrix.hpp"
#include "mhla/policy/partition.hpp"

namespace mhla {
inline namespace MHLA_TARGET {

namespace detail {
/// Where integers of another type stand, such as the int of cu_seqlens.
template <class R>
concept OtherIntegers =
    std::ranges::contiguous_range<R> && std::integral<std::ranges::range_value_t<R>> &&
    !std::same_as<std::ranges::range_value_t<R>, Index>;
}  // namespace detail

/// Offsets of packed sequences: S + 1 nondecreasing numbers, from 0 to the number of tokens. Owns
/// nothing.
struct Offsets : std::span<const Index> {
  constexpr Offsets() = default;
  template <std::convertible_to<std::span<const Index>> R>
  constexpr Offsets(const R& offsets) : span(offsets) {}  // NOLINT(google-explicit-constructor)
  template <class R>
  requires(!std::ranges::borrowed_range<R>)
      Offsets(const R&&, detail::Refused<detail::Mistake::kTemporary, R> = {});
  template <detail::OtherIntegers R>
  Offsets(const R&, detail::Refused<detail::Mistake::kOffsets, R> = {});
};

/// The tensors of a batch; meanings as in Inputs, every tensor with a batch and a head axis.
template <Scalar T>
struct BatchInputs {
  TensorView<const T> q;  ///< [B, Nq, H, width]
  TensorView<const T> k;  ///< [B, Nk, H, width]
  TensorView<const T> v;  ///< [B, Nk, H, E]
  TensorView<const T> normalizer_q{};
  TensorView<const T> normalizer_k{};
  BatchMask query_mask{};   ///< [B, Nq], absent: all
  BatchMask key_mask{};     ///< [B, Nk], absent: all
  Offsets query_offsets{};  ///< of packed sequences (B = 1), both or none
  Offsets key_offsets{};
};

/// The inputs of a batch, from tensors or views of them.
template <class T>
BatchInputs<std::remove_const_t<T>> inputs(TensorView<T> q, TensorView<T> k, TensorView<T> v) {
  return {.q = q, .k = k, .v = v};
}
template <Scalar T>
BatchInputs<T> inputs(const Tensor<T>& q, const Tensor<T>& k, const Tensor<T>& v) {
  return {.q = q, .k = k, .v = v};
}
/// Inputs of dense [B,N,H,D] arrays and values [B,N,H,E]; `values` = 0 means E = D.
template <Scalar T>
BatchInputs<T> inputs(const T* q, const T* k, const T* v, const Shape& shape, Index values = 0) {
  Shape value_shape = shape;
  if (values > 0) value_shape[3] = values;
  return {.q = bnhd(q, shape), .k = bnhd(k, shape), .v = bnhd(v, value_shape)};
}

/// Blocks of W consecutive tokens for a sequence of any length.
struct ContiguousBlocks {
  Index block_length;
  Contiguous operator()(Index tokens) const { return {tokens, block_length}; }
};

namespace detail {
template <class In>
inline constexpr bool kIsInputs = false;
template <class T>
inline constexpr bool kIsInputs<Inputs<T>> = true;
template <class T>
inline constexpr bool kIsInputs<BatchInputs<T>> = true;
}  // namespace detail

/// The inputs of a form: Inputs<T> of one head, or BatchInputs<T>.
template <class In>
concept AttentionInputs = detail::kIsInputs<In>;

namespace detail {
/// P itself, or what it returns for a number of tokens. One requirement in place of two
/// alternatives, so that compilers name the missing member.
template <class P>
struct PartitionOf {
  using type = P;
};
template <class P>
requires std::invocable<const P&, Index>
struct PartitionOf<P> {
  using type = std::remove_cvref_t<std::invoke_result_t<const P&, Index>>;
};
}  // namespace detail

/// A partition, or a function from a number of tokens to a partition.
template <class P>
concept BlocksOf = Partition<typename detail::PartitionOf<P>::type>;

/// The blocks of cross-attention: one partition of the queries and one of the keys.
template <BlocksOf Q, BlocksOf K>
struct CrossBlocks {
  Q queries;
  K keys;
};
template <class Q, class K>
CrossBlocks(Q, K) -> CrossBlocks<Q, K>;

namespace detail {
template <class B>
inline constexpr bool kIsCross = false;
template <class Q, class K>
inline constexpr bool kIsCross<CrossBlocks<Q, K>> = true;

template <class B>
struct QueryBlocksOf {
  using type = B;
};
template <class Q, class K>
struct QueryBlocksOf<CrossBlocks<Q, K>> {
  using type = Q;
};
}  // namespace detail

/// Blocks of queries and keys alike, or CrossBlocks.
template <class B>
concept AttentionBlocks = BlocksOf<typename detail::QueryBlocksOf<B>::type>;

}  // namespace MHLA_TARGET
}  // namespace mhla

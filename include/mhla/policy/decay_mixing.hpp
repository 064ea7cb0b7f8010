#pragma once

/// \file
/// Stage 4 of 5: a causal mixing matrix that depends on the block distance alone, as a sum of R
/// decaying terms:
///
///     m_ib = sum_r a_r lambda_r^(i-b)          b <= i,   0 <= lambda_r <= 1
///
/// Row i reads the earlier blocks through R running states (stage/decay.hpp). Mixing costs
/// O(M R D E) instead of O(M^2 D E), and a stream has no length limit. One term with lambda = 1 is
/// causal linear attention. Learned matrices of language models are close to such sums.
/// Source of the idea: retention's decay, arXiv:2307.08621, here between blocks.

#include <cmath>
#include <concepts>
#include <initializer_list>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "mhla/core/arch.hpp"
#include "mhla/core/error.hpp"
#include "mhla/policy/mixing_matrix.hpp"

namespace mhla {
inline namespace MHLA_TARGET {

/// A non-owning view of the terms of a decaying mixing matrix, or of their gradients: R weights a,
/// followed by R decays lambda.
template <class A>
class DecayView {
 public:
  /// An absent view, for an optional gradient left out.
  constexpr DecayView() = default;
  /// \param data  2 R numbers
  constexpr DecayView(A* data, Index terms) : data_(data), terms_(terms) {}
  template <std::same_as<const A> C>
  requires(!std::is_const_v<A>) operator DecayView<C>() const {  // NOLINT
    return {data_, terms_};
  }

  Index terms() const { return terms_; }  ///< R
  /// All sequences and heads share the terms.
  Index sequences() const { return 1; }
  Index heads() const { return 1; }
  DecayView of_sequence(Index /*s*/) const { return *this; }
  DecayView of_head(Index /*h*/) const { return *this; }
  std::span<A> weights() const { return {data_, static_cast<std::size_t>(terms_)}; }
  std::span<A> decays() const { return {data_ + terms_, static_cast<std::size_t>(terms_)}; }
  /// All numbers in memory, for optimisers and files.
  std::span<A> storage() const { return {data_, static_cast<std::size_t>(2 * terms_)}; }
  /// The storage as a matrix [2,R]: ParameterGradients::mixing of a decaying matrix.
  MixingView<A> matrix() const { return {data_, Pattern(2, terms_)}; }

 private:
  A* data_ = nullptr;
  Index terms_ = 0;
};

/// A decaying mixing matrix that owns its terms. Converts implicitly to a DecayView.
template <Accumulator A>
class DecayMixing {
 public:
  /// \throws shape_error unless there are as many weights as decays.
  /// \throws option_error if there is no term or a decay is outside [0, 1].
  DecayMixing(std::span<const A> weights, std::span<const A> decays);
  DecayMixing(std::initializer_list<A> weights, std::initializer_list<A> decays)
      : DecayMixing(std::span<const A>(weights.begin(), weights.size()),
                    std::span<const A>(decays.begin(), decays.size())) {}

  DecayView<A> view() { return {terms_.data(), static_cast<Index>(terms_.size()) / 2}; }
  DecayView<const A> view() const { return {terms_.data(), static_cast<Index>(terms_.size()) / 2}; }
  /// All heads share the terms.
  Index heads() const { return 1; }
  DecayView<const A> of_head(Index /*h*/) const { return view(); }
  operator DecayView<A>() MHLA_LIFETIMEBOUND { return view(); }              // NOLINT
  operator DecayView<const A>() const MHLA_LIFETIMEBOUND { return view(); }  // NOLINT

 private:
  std::vector<A> terms_;  // [2,R]
};

/// Returns the matrix [blocks,blocks] of coefficients m_ib, 0 above the diagonal.
/// \throws option_error unless blocks >= 1.
template <class A>
MixingMatrix<std::remove_const_t<A>> decay_matrix(const DecayView<A>& m, Index blocks);
template <Accumulator A>
MixingMatrix<A> decay_matrix(const DecayMixing<A>& m, Index blocks) {
  return decay_matrix(m.view(), blocks);
}

// ------------------------------------------------------------------------------------------------

namespace detail {

/// Throws unless a view has terms and every decay is in [0, 1].
template <class A>
void expect_decay(const char* function, const DecayView<A>& m) {
  if (m.terms() < 1) fail_option(function, "mixing", "has no term", "at least one");
  for (const A decay : m.decays()) {
    if (!(decay >= 0 && decay <= 1)) {
      fail_option(function, "decays", "holds " + std::to_string(decay), "numbers from 0 to 1");
    }
  }
}

/// Returns a_r lambda_r^distance.
template <class A>
double decay_term(const DecayView<A>& m, Index r, Index distance) {
  const auto at = static_cast<std::size_t>(r);
  return double{m.weights()[at]} * std::pow(double{m.decays()[at]}, static_cast<double>(distance));
}
/// Returns their sum, the coefficient of blocks at this distance.
template <class A>
double decay_sum(const DecayView<A>& m, Index distance) {
  double sum = 0;
  for (Index r = 0; r < m.terms(); ++r) sum += decay_term(m, r, distance);
  return sum;
}

}  // namespace detail

template <Accumulator A>
DecayMixing<A>::DecayMixing(std::span<const A> weights, std::span<const A> decays)
    : terms_(weights.begin(), weights.end()) {
  if (weights.size() != decays.size()) {
    detail::fail_shape("DecayMixing", "decays", "has " + std::to_string(decays.size()) + " entries",
                       std::to_string(weights.size()) + ", one for each weight");
  }
  terms_.insert(terms_.end(), decays.begin(), decays.end());
  detail::expect_decay("DecayMixing", view());
}

template <class A>
MixingMatrix<std::remove_const_t<A>> decay_matrix(const DecayView<A>& m, Index blocks) {
  using T = std::remove_const_t<A>;
  detail::expect_decay("decay_matrix", m);
  auto matrix = MixingMatrix<T>::banded(blocks, blocks, std::max<Index>(blocks, 0), 0);
  for (Index distance = 0; distance < blocks; ++distance) {
    const double coefficient = detail::decay_sum(m, distance);
    for (Index i = distance; i < blocks; ++i) {
      matrix.at(i, i - distance) = static_cast<T>(coefficient);
    }
  }
  return matrix;
}

}  // namespace MHLA_TARGET
}  // namespace mhla

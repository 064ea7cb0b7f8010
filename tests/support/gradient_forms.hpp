#pragma once

/// \file
/// The backward forms of one head as the tests call them (gradient_run.hpp says what a form has).

#include <algorithm>

#include "mhla/gradient/bidirectional.hpp"
#include "mhla/gradient/causal.hpp"
#include "mhla/gradient/linear.hpp"
#include "support/gradient_run.hpp"

namespace mhla::test {

struct BidirectionalForm {
  static constexpr const char* kName = "bidirectional_gradient";
  static constexpr bool kCausal = false;
  static constexpr bool kMixes = true;

  template <class T>
  static Problem<T> problem(std::uint64_t seed) {
    return random_problem<T>(seed, false);
  }
  template <class T>
  static void fit(Problem<T>&) {}
  template <class T, class Op, class X>
  static std::size_t bytes(const Problem<T>& p, const Op& op, const X& executor) {
    return bidirectional_gradient_workspace_bytes(p.inputs(), p.query_blocks, p.key_blocks,
                                                  p.mixing(), op, executor);
  }
  template <class T, class Op>
  static std::size_t kept_bytes(const Problem<T>& p, const Op& op) {
    return bidirectional_kept_bytes(p.inputs(), p.key_blocks, op);
  }
  template <class T, class Op, class X>
  static void forward(const Problem<T>& p, const Op& op, MatrixView<T> out, X& executor,
                      Workspace kept) {
    bidirectional(p.inputs(), p.query_blocks, p.key_blocks, p.mixing(), op, out, {}, executor,
                  kept);
  }
  template <class T, class Op, class X>
  static void backward(const Problem<T>& p, const Op& op, const GradientCall<T>& c, X& executor) {
    bidirectional_gradient(p.inputs(), p.query_blocks, p.key_blocks, p.mixing(), op, c.dout,
                           c.gradients, c.parameters, c.workspace, executor, c.kept);
  }
};

struct CausalForm {
  static constexpr const char* kName = "causal_gradient";
  static constexpr bool kCausal = true;
  static constexpr bool kMixes = true;

  template <class T>
  static Problem<T> problem(std::uint64_t seed) {
    return random_problem<T>(seed, true);
  }
  template <class T>
  static void fit(Problem<T>&) {}
  template <class T, class Op, class X>
  static std::size_t bytes(const Problem<T>& p, const Op& op, const X& executor) {
    return causal_gradient_workspace_bytes(p.inputs(), p.query_blocks, p.mixing(), op, executor);
  }
  template <class T, class Op>
  static std::size_t kept_bytes(const Problem<T>& p, const Op& op) {
    return causal_kept_bytes(p.inputs(), p.query_blocks, op);
  }
  template <class T, class Op, class X>
  static void forward(const Problem<T>& p, const Op& op, MatrixView<T> out, X& executor,
                      Workspace kept) {
    causal(p.inputs(), p.query_blocks, p.mixing(), op, out, {}, executor, kept);
  }
  template <class T, class Op, class X>
  static void backward(const Problem<T>& p, const Op& op, const GradientCall<T>& c, X& executor) {
    causal_gradient(p.inputs(), p.query_blocks, p.mixing(), op, c.dout, c.gradients, c.parameters,
                    c.workspace, executor, c.kept);
  }
};

/// Linear attention: no mixing matrix, no executor, nothing kept.
template <bool kIsCausal>
struct LinearForm {
  static constexpr const char* kName =
      kIsCausal ? "linear_causal_gradient" : "linear_bidirectional_gradient";
  static constexpr bool kCausal = kIsCausal;
  static constexpr bool kMixes = false;

  /// A random problem with a single block, for which MHLA is linear attention.
  template <class T>
  static Problem<T> problem(std::uint64_t seed) {
    auto p = random_problem<T>(seed, kCausal);
    fit(p);
    return p;
  }
  template <class T>
  static void fit(Problem<T>& p) {
    const auto one_block = [](Index n) {
      return AnyPartition::of(Contiguous(n, std::max<Index>(1, n)));
    };
    p.query_blocks = one_block(p.q.rows());
    p.key_blocks = one_block(p.k.rows());
    p.coefficients = Matrix<accumulator_t<T>>::Ones(1, 1);
    p.lower = p.upper = 0;
    if (p.normalizer == NaiveNormalizer::kCrossQuery) p.normalizer = NaiveNormalizer::kKeySum;
  }
  template <class T, class Op, class X>
  static std::size_t bytes(const Problem<T>& p, const Op& op, const X&) {
    return kCausal ? linear_causal_gradient_workspace_bytes(p.inputs(), op)
                   : linear_bidirectional_gradient_workspace_bytes(p.inputs(), op);
  }
  template <class T, class Op, class X>
  static void backward(const Problem<T>& p, const Op& op, const GradientCall<T>& c, X&) {
    auto parameters = c.parameters;
    parameters.mixing = nullptr;
    if constexpr (kCausal) {
      linear_causal_gradient(p.inputs(), op, c.dout, c.gradients, parameters, c.workspace);
    } else {
      linear_bidirectional_gradient(p.inputs(), op, c.dout, c.gradients, parameters, c.workspace);
    }
  }
};

using LinearBidirectional = LinearForm<false>;
using LinearCausal = LinearForm<true>;

}  // namespace mhla::test

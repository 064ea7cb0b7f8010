#pragma once

/// \file
/// The gradients of a problem as a form of the library computes them.
///
/// A Form has kName, the backward function's; kCausal; kMixes, false for linear attention, which
/// has no mixing matrix, no executor and keeps nothing; problem<T>(seed), a random problem; fit(p),
/// which makes any problem one of the form;
/// bytes(p, op, executor); backward(p, op, call, executor); and where it mixes kept_bytes(p, op)
/// and forward(p, op, out, executor, kept).

#include <gtest/gtest.h>

#include <concepts>
#include <vector>

#include "mhla/gradient/gradients.hpp"
#include "support/gradient_problem.hpp"
#include "support/outputs.hpp"

namespace mhla::test {

/// Memory for every gradient of a problem.
template <class T>
struct GradientBuffers {
  using A = accumulator_t<T>;

  Matrix<T> q, k, v, normalizer_q, normalizer_k;
  MixingMatrix<A> mixing;
  std::vector<A> query_weights, key_weights;

  /// Every element starts with the next number of `start`.
  template <class Start>
  GradientBuffers(const Problem<T>& p, Start&& start) : mixing(p.mixing()) {
    const auto fill = [&](const T&) { return static_cast<T>(static_cast<A>(start())); };
    const auto fill_parameter = [&](const A&) { return static_cast<A>(start()); };
    q = map_elements<T>(p.q, fill);
    k = map_elements<T>(p.k, fill);
    v = map_elements<T>(p.v, fill);
    normalizer_q = map_elements<T>(p.normalizer_q, fill);
    normalizer_k = map_elements<T>(p.normalizer_k, fill);
    mixing.for_each([&](A& c) { c = fill_parameter(c); });
    query_weights = map_elements<A>(flat_weights(p.query_map), fill_parameter);
    key_weights = map_elements<A>(flat_weights(p.key_map), fill_parameter);
  }
  explicit GradientBuffers(const Problem<T>& p) : GradientBuffers(p, [] { return 0; }) {}

  Gradients<T> views() {
    Gradients<T> g{.q = q, .k = k, .v = v};
    if (normalizer_q.cols() > 0) {
      g.normalizer_q = normalizer_q;
      g.normalizer_k = normalizer_k;
    }
    return g;
  }
  ParameterGradients<A> parameters() {
    return {.mixing = &mixing, .query_map = query_weights, .key_map = key_weights};
  }
  /// All numbers, as a gradient.
  Variables<double> values() const {
    const auto wide = [](const T& x) { return static_cast<double>(static_cast<A>(x)); };
    const auto widen = [](const A& x) { return static_cast<double>(x); };
    return {map_elements<double>(q, wide),
            map_elements<double>(k, wide),
            map_elements<double>(v, wide),
            map_elements<double>(normalizer_q, wide),
            map_elements<double>(normalizer_k, wide),
            map_elements<double>(mixing.dense(), widen),
            map_elements<double>(query_weights, widen),
            map_elements<double>(key_weights, widen)};
  }
};

/// The name of the first tensor in which a and b differ in a bit; empty if none does.
template <class T>
std::string different_bits(const GradientBuffers<T>& a, const GradientBuffers<T>& b) {
  std::string different;
  const auto compare = [&different](const char* name, const auto& x, const auto& y) {
    const auto bytes = static_cast<std::size_t>(x.size()) * sizeof(*x.data());
    const bool same =
        x.size() == y.size() && (bytes == 0 || std::memcmp(x.data(), y.data(), bytes) == 0);
    if (!same && different.empty()) different = name;
  };
  compare("q", a.q, b.q);
  compare("k", a.k, b.k);
  compare("v", a.v, b.v);
  compare("normalizer_q", a.normalizer_q, b.normalizer_q);
  compare("normalizer_k", a.normalizer_k, b.normalizer_k);
  compare("mixing", a.mixing.storage(), b.mixing.storage());
  compare("query_weights", a.query_weights, b.query_weights);
  compare("key_weights", a.key_weights, b.key_weights);
  return different;
}

/// What a form is called with beside the problem.
template <class T>
struct GradientCall {
  MatrixView<const T> dout{};
  Gradients<T> gradients{};
  ParameterGradients<accumulator_t<T>> parameters{};
  Workspace workspace{};
  Workspace kept{};
};

/// Calls f with the operator of a problem, as the form can take it.
template <class Form, class T, class F>
void with_operator_of(const Problem<T>& p, F&& f) {
  if constexpr (Form::kCausal || !Form::kMixes) {
    p.with_operator([&]<CausalOperator Op>(const Op& op) { f(op); });
  } else {
    p.with_operator([&](const auto& op) { f(op); });
  }
}

/// Adds the gradients of a problem to `to`, in a workspace of exactly the stated bytes.
/// \param keep  lets the forward form keep its summaries, of the same executor
template <class Form, class T, class X>
void add_gradients(const Problem<T>& p, const Matrix<T>& dout, GradientBuffers<T>& to, X&& executor,
                   bool keep = false) {
  with_operator_of<Form>(p, [&](const auto& op) {
    GuardedWorkspace workspace(Form::bytes(p, op, executor));
    GradientCall<T> call{.dout = dout,
                         .gradients = to.views(),
                         .parameters = to.parameters(),
                         .workspace = workspace.get()};
    if constexpr (Form::kMixes) {
      GuardedWorkspace kept(keep ? Form::kept_bytes(p, op) : 0);
      Matrix<T> out = unwritten<T>(p.q.rows(), p.v.cols());
      if (keep) Form::forward(p, op, MatrixView<T>(out), executor, kept.get());
      call.kept = kept.get();
      Form::backward(p, op, call, executor);
      EXPECT_TRUE(kept.intact()) << p.text();
    } else {
      Form::backward(p, op, call, executor);
    }
    EXPECT_TRUE(workspace.intact()) << p.text();
  });
}

/// The gradients of a problem.
template <class Form, class T, class X = Sequential>
GradientBuffers<T> gradients_of(const Problem<T>& p, const Matrix<T>& dout, X&& executor = {},
                                bool keep = false) {
  GradientBuffers<T> g(p);
  add_gradients<Form>(p, dout, g, executor, keep);
  return g;
}

/// A random dout.
template <class T>
Matrix<T> random_dout(const Problem<T>& p) {
  Random rng(p.seed + 77);
  return rng.matrix<T>(p.q.rows(), p.v.cols());
}

}  // namespace mhla::test

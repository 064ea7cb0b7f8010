#pragma once

/// \file
/// Calls of backward forms, and a form without its type, so that tests of all forms are compiled
/// once.

#include <gtest/gtest.h>

#include "mhla/gradient/driver.hpp"
#include "support/dual.hpp"
#include "support/gradient_problem.hpp"
#include "support/outputs.hpp"

namespace mhla::test {

/// Tensors to differentiate, and destinations of their gradients.
template <class In>
struct GradientArguments {
  In in;
  detail::dout_of<In> dout;
  detail::gradients_of<In> gradients;
  detail::parameters_of<In> parameters;
};

/// Calls of a form for one head or for a batch.
template <class In, class Blocks>
struct GradientCalls {
  using Problem = GradientProblem<detail::scalar_of<In>>;

  void (*add)(const GradientArguments<In>&, const Problem&, const Blocks&, const Call&);
  std::size_t (*bytes)(const In&, const Problem&, const Blocks&, const ExecutorRef&);
  bool mixes = false;  // whether the form has these
  std::size_t (*kept_bytes)(const In&, const Problem&, const Blocks&) = nullptr;
  void (*forward)(const In&, const Problem&, const Blocks&, const Call&) = nullptr;
};
template <class Form, class In, class Blocks>
constexpr GradientCalls<In, Blocks> gradient_calls_of() {
  GradientCalls<In, Blocks> calls{&Form::add, &Form::bytes};
  if constexpr (Form().mixes) {
    calls.mixes = true;
    calls.kept_bytes = &Form::kept_bytes;
    calls.forward = &Form::forward;
  }
  return calls;
}

using AnyBlocks = CrossBlocks<AnyPartition, AnyPartition>;

/// A form in numbers of type T: the members of gradient_forms.hpp, for one head.
template <class T>
struct AnyGradient : GradientCalls<Inputs<T>, AnyBlocks> {
  using D = Dual<accumulator_t<T>>;

  const char* name;
  bool causal;
  bool decays;  // coefficients are terms of a decaying matrix
  void (*fit)(GradientProblem<T>& p);
  Matrix<D> (*definition)(const GradientProblem<T>& p, const Variables<D>& x);
};
template <class Form, class T>
concept DecayForm = requires(const GradientProblem<T>& p) {
  Form::terms(p);
};
template <class Form, class T>
inline constexpr AnyGradient<T> kGradientOn{gradient_calls_of<Form, Inputs<T>, AnyBlocks>(),
                                            Form().name,
                                            Form().causal,
                                            DecayForm<Form, T>,
                                            &Form::fit,
                                            &Form::definition};

/// Adds gradients, in a workspace of exactly the stated bytes.
/// \param keep  lets the forward form keep its summaries, with the same executor, and copies them
///     elsewhere, if the form mixes
template <class Form, class In, class P, class Blocks>
void add_gradients(const Form& form, const GradientArguments<In>& a, const P& p,
                   const Blocks& blocks, const ExecutorRef& executor = {}, bool keep = false) {
  keep = keep && form.mixes;
  GuardedWorkspace workspace(form.bytes(a.in, p, blocks, executor));
  GuardedWorkspace kept(keep ? form.kept_bytes(a.in, p, blocks) : 0);
  if (keep) form.forward(a.in, p, blocks, {.executor = executor, .kept = kept.get()});
  MovedBytes copy(kept.get(), 8);
  form.add(a, p, blocks, {.workspace = workspace.get(), .executor = executor, .kept = copy.get()});
  EXPECT_TRUE(workspace.intact() && kept.intact() && copy.intact()) << p.text();
}

/// Adds the gradients of a problem to `to`.
template <class Form, class T>
void add_gradients(const Form& form, const GradientProblem<T>& p, GradientBuffers<T>& to,
                   const ExecutorRef& executor = {}, bool keep = false) {
  add_gradients(form,
                GradientArguments<Inputs<T>>{p.inputs(), p.dout, to.views(), to.parameter_views()},
                p, p.blocks, executor, keep);
}

/// Returns the gradients of a problem.
template <class Form, class T>
GradientBuffers<T> gradients_of(const Form& form, const GradientProblem<T>& p,
                                const ExecutorRef& executor = {}, bool keep = false) {
  GradientBuffers<T> g(p);
  add_gradients(form, p, g, executor, keep);
  return g;
}

}  // namespace mhla::test

#pragma once

/// \file
/// Random problems of a form, and runs of it in a guarded workspace.

#include "contract/forward.hpp"
#include "support/special_values.hpp"

namespace mhla::test {

template <class T>
struct FormRuns {
  const AnyForm<T>& form;

  /// A random problem of this form, sometimes a large one.
  Problem<T> problem(std::uint64_t seed) const {
    auto p = seed % 16 == 15 ? large_problem<T>(seed, form.causal)
                             : random_problem<T>(seed, form.causal);
    form.fit(p);
    return p;
  }
  /// The same, with special values in a tenth of the problems.
  Problem<T> any_problem(std::uint64_t seed, bool infinite = true) const {
    auto p = problem(seed);
    Matrix<T>* const matrices[] = {&p.q, &p.k, &p.v, &p.normalizer_q, &p.normalizer_k};
    make_tenth_special<T>(seed, matrices, infinite);
    return p;
  }

  /// Returns the output, computed in a workspace of exactly the requested bytes.
  Matrix<T> run(const Inputs<T>& in, const forward::Arguments<T>& a, Call call = {}) const {
    Matrix<T> out = unwritten<T>(in.q.rows, in.v.cols);
    GuardedWorkspace workspace(form.bytes(in, a, call.executor));
    call.workspace = workspace.get();
    form.run(in, a, out, call);
    EXPECT_TRUE(workspace.intact());
    return out;
  }
  Matrix<T> run(const Problem<T>& p, const Call& call = {}) const {
    return run(p.inputs(), forward::Arguments<T>(p), call);
  }

  /// Fills a row of keys and values, or of queries.
  static void poison_key(Problem<T>& p, Index t, float value) {
    p.k.row(t).setConstant(T(value));
    p.v.row(t).setConstant(T(value));
    if (p.has_separate_normalizer()) p.normalizer_k.row(t).setConstant(T(value));
  }
  static void poison_query(Problem<T>& p, Index t, float value) {
    p.q.row(t).setConstant(T(value));
    if (p.has_separate_normalizer()) p.normalizer_q.row(t).setConstant(T(value));
  }
};

}  // namespace mhla::test

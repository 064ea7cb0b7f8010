#pragma once

/// \file
/// Requirements of every causal backward form: time has a direction, bit by bit.

#include <cmath>
#include <initializer_list>

#include "support/any_gradient.hpp"
#include "support/gradient_random.hpp"

namespace mhla::test {

template <class T>
struct GradientCausality {
  const AnyGradient<T>& form;

  using A = accumulator_t<T>;
  using Problem = GradientProblem<T>;
  using Buffers = GradientBuffers<T>;

  /// Expects the same bits in rows [begin, begin + count) of some parts.
  static void expect_same_rows(const Buffers& a, const Buffers& b,
                               std::initializer_list<Part> parts, Index begin, Index count,
                               const Problem& p) {
    for (const Part part : parts) {
      if (a.tensors[part].rows() == 0) continue;
      EXPECT_TRUE(same_bits<T>(a.tensors[part].middleRows(begin, count),
                               b.tensors[part].middleRows(begin, count)))
          << kPartNames[part] << " [" << begin << ", " << begin + count << ") " << p.text();
    }
  }
  /// Calls f(problem, its gradients, a token that is not the first).
  template <class F>
  void for_cut_problems(F&& f) const {
    for_problems<T>(form, 60, [&](const Problem& p) {
      if (p.queries() < 2) return;
      f(p, gradients_of(form, p), Random(p.seed).integer(1, p.queries() - 1));
    });
  }

  /// A query reads keys up to its position, so k, v and queries after it do not affect dq.
  void OfQueriesDoesNotDependOnLaterTokens() const {
    for_cut_problems([&](const Problem& p, const Buffers& before, Index first) {
      for (const float poison : {NAN, INFINITY}) {
        Problem changed = p;
        const auto spoil = [&](Matrix<T>& m) {
          if (m.rows() > 0) m.bottomRows(m.rows() - first).setConstant(static_cast<T>(poison));
        };
        for (Matrix<T>& m : changed.tensors) spoil(m);
        spoil(changed.dout);
        expect_same_rows(before, gradients_of(form, changed), {kQ, kNormalizerQ}, 0, first, p);
      }
    });
  }

  /// A key is read by queries from its position on, so earlier queries do not affect dk and dv.
  void OfKeysDoesNotDependOnEarlierQueries() const {
    for_cut_problems([&](const Problem& p, const Buffers& before, Index first) {
      for (const float poison : {NAN, INFINITY}) {
        Problem changed = p;
        for (Matrix<T>* m : {&changed.tensors[kQ], &changed.tensors[kNormalizerQ], &changed.dout}) {
          if (m->rows() > 0) m->topRows(first).setConstant(static_cast<T>(poison));
        }
        expect_same_rows(before, gradients_of(form, changed), {kK, kV, kNormalizerK}, first,
                         p.queries() - first, p);
      }
    });
  }

  void IsZeroBehindTheLastOutputWithAGradient() const {
    for_cut_problems([&](Problem p, const Buffers&, Index first) {
      p.dout.bottomRows(p.queries() - first).setZero();
      const Buffers g = gradients_of(form, p);
      for (const Matrix<T>& m : g.tensors) {
        for (const T x : m.bottomRows(m.rows() > 0 ? m.rows() - first : 0).reshaped()) {
          EXPECT_EQ(static_cast<A>(x), 0) << first << " " << p.text();
        }
      }
    });
  }
};

}  // namespace mhla::test
